"""Transactions: halves, their ends, and the questions to producers that did not end theirs."""
