"""Slurm, through its command line: 22.05 and newer, with and without accounting."""
