"""From one model to its part on this rank: what each axis of the layout does to it."""
