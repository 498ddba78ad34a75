"""Use cases that bring a software stack onto a cluster."""
