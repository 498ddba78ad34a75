"""Storage demand of a run, storage systems that satisfy it, and the needs of each node."""
