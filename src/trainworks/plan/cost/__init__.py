"""What a run or a year costs: rented, owned, and in electricity and carbon."""
