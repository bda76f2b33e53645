"""Topics: configs, attributes, and notes of changes."""
