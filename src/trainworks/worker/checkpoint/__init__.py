"""Checkpoints and their checksums."""
