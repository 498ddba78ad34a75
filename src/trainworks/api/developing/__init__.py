"""Use cases of development on the nodes of a cluster."""
