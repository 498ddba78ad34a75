"""The report of a run, built from its record alone."""
