"""Backends run jobs on this machine or on a cluster."""
