"""This machine: a queue without a daemon, and runs that start at once."""
