"""Small tools for tasks: named groups, periodic work, waiting for a mark, backing off."""
