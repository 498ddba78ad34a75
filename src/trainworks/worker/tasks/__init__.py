"""Tasks of a run, with their model, data and optimizer."""
