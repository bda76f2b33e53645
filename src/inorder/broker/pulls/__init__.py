"""Pulls and long polls."""
