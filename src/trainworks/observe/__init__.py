"""Runs as people and their tools see them: read from the record, never from a worker."""
