"""Findings in the files of a training cluster: scripts, configuration, training code and texts."""
