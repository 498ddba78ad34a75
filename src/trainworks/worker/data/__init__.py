"""Training data: prepared once per source, then read in an order that depends only on the seed and the step."""
