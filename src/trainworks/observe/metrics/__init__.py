"""Metric families and the samples of runs, the queue, accelerators and health checks."""
