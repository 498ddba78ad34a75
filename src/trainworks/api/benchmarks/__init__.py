"""Use cases that measure a cluster by a run of their own."""
