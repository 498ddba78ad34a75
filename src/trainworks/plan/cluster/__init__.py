"""Plans of a described cluster: the layouts of a workload on it, and the same on fewer and more nodes."""
