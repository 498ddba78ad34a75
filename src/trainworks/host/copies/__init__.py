"""Copies of checkpoints and records in folders and S3-compatible stores."""
