"""Use cases of runs that are continued."""
