"""Sweeps over settings of a run: which trials, which of them to stop early, and what a range test says."""
