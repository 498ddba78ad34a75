"""Faults injected into a real run, from outside of it, and what became of each."""
