"""Messages for a time of day: stored, recalled, delivered to the millisecond."""
