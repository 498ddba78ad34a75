"""Use cases that prove a cluster, a configuration or a claim."""
