"""Heartbeats, hangs and failures of ranks."""
