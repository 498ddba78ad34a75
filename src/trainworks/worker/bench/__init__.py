"""Measurements that need torch: devices of a node, and transfers between ranks."""
