"""Models: a decoder for every layout, and models of `transformers`."""
