"""Experiment trackers: sinks of parameters, metrics with steps, artifacts and the end of a run."""
