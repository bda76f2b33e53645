"""Parked keys."""
