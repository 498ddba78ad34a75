"""Causes of lost time, from the record of a run."""
