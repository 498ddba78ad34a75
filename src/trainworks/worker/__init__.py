"""Runs on the nodes: the only folder that imports torch. It reads the resolved run and writes the record."""
