"""Use cases that show runs to people and their tools: diagnosis, comparison, logs, metrics, trackers."""
