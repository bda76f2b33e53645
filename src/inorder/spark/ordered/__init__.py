"""`process_in_order`: a handler for each key, with state, on Spark."""
