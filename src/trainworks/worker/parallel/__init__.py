"""Parallelism: the part of a model on this rank, by axis of the layout."""
