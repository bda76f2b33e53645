"""What is wrong with a cluster: checks of facts, each pure."""
