"""What follows from the events of a run: which failure came first, and whether ranks start again."""
