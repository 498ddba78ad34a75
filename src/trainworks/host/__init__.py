"""The machine: the only door to processes, sockets, the clock and hardware probing."""
