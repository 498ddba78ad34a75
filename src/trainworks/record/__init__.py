"""The record of a run: the contract between the workers that write it and the control plane that reads it."""
