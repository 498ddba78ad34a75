"""Network of a cluster: switches and cables by topology, traffic, and bill of materials."""
