"""The client for code that blocks: each object stands on its async twin, behind one portal."""
