"""Statistics, settings at run time, message queries."""
