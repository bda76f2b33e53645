"""Queues that the broker shares out among members that ask for them, by pull or by pop."""
