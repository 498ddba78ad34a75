"""Environments of runs on a node: build one, list what is in it, start a program in it."""
