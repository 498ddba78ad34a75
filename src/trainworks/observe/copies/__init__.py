"""Copies of checkpoints in folders and S3-compatible stores: the places, and the process that copies beside a run."""
