"""Sight: what the record says about a run, while it goes on."""
