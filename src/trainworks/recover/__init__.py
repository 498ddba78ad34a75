"""Decisions after a failure: its first cause, and whether ranks may restart."""
