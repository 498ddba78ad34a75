"""Models that the worker trains: a decoder that every layout can cut, and whatever `transformers` has."""
