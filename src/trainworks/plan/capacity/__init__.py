"""Capacity for several teams: a trace of jobs replayed on fixed, on-demand and spot nodes."""
