"""Use cases of what is kept of runs, and for how long."""
