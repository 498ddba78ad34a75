"""Cost of a run or a year: rented, owned, and in electricity and carbon."""
