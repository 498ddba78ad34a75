"""Commands that bring a software stack onto a cluster."""
