"""Who may do what: users, policies, one table of request codes, and the guard of a server."""
