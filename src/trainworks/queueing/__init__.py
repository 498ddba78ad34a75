"""Scheduling decisions over a snapshot: starts, preemptions and pending reasons. Pure code."""
