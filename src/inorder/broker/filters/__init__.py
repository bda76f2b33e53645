"""SQL92 filters of groups: which expression a group has for a topic, and its file."""
