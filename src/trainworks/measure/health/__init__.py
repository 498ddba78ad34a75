"""Health checks of a node, and the nodes of a fleet side by side."""
