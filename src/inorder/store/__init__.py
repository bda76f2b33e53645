"""The files of a broker: RocketMQ's data directory, byte for byte. Synchronous, no threads."""
