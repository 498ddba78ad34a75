"""Which cluster: hardware that goes together, alternatives that meet a goal, and why the others do not."""
