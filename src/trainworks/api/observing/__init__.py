"""Use cases that watch, compare and diagnose runs."""
