"""RocketMQ's queue locks, kept in the lease table."""
