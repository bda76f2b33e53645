"""Replies to requests: pushed to the client that asked, and stored in the cluster's reply topic."""
