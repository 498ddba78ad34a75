"""Runs between their request and their start."""
