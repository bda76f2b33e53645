"""What the broker tells a monitoring system: numbers, health, slow operations."""
