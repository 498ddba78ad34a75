"""How the job store came to be what it is: one file in `versions/` per change of its tables."""
