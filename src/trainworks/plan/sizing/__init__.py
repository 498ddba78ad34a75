"""Choice of a cluster: compatible hardware, alternatives that meet a goal, and reasons against the others."""
