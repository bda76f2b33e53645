"""Users and rules: the requests of tools, and what the guard asks of a broker."""
