"""From a source to batches: prepare it once, then read it in an order that only the seed and the step decide."""
