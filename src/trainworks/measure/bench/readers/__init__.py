"""Readers of what other benchmark programs print."""
