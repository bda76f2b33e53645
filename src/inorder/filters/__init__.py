"""RocketMQ's SQL92 filters: an expression over the properties of a message, true or not."""
