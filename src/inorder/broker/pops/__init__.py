"""POP: the broker hands messages out for a time, and takes acknowledgements of single messages."""
