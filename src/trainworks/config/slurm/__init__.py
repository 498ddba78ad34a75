"""Batch scripts of Slurm, and the words that Slurm and its users write."""
