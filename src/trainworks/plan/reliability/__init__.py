"""Cost of failures for a run: expected goodput as formulas, and an event simulation of a run."""
