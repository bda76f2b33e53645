"""Statistics, settings at run time, and message queries."""
