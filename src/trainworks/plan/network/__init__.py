"""The network of a cluster: its switches and cables by topology, what traffic it carries, what it is built of."""
