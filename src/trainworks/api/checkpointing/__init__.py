"""Use cases of checkpoints."""
