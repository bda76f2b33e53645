"""Consumer groups: configs, members, notices, and questions to consumers."""
