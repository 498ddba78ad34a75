"""Arithmetic: from what is wanted and what is known to a prediction. No files, no clock, no processes."""
