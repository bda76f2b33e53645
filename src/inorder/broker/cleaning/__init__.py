"""Deleting what is not needed any more, when an operator asks for it: 306, 316, 329."""
