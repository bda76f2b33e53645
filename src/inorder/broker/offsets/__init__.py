"""Offsets of groups: commits, progress, resets."""
