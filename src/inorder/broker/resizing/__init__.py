"""Versions of a topic's key map, and the release of groups that wait for one."""
