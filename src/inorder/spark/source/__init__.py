"""Topics as rows."""
