"""Rules of order that client and broker share: pure functions and tables."""
