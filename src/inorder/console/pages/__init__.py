"""The pages of the console: pure functions from what was read to HTML."""
