"""Sweeps over settings of a run, through the queue of any backend."""
