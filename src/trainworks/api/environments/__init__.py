"""Environments of runs: read their files, build them for a plan, show what a run has used."""
