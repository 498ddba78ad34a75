"""Acceptance measurements: what a cluster does, held against what it can do and what it should do."""
