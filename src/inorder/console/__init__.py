"""The web console: `inorder console`, a client of the cluster that serves pages to a browser."""
