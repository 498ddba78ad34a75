"""What is computed from the record of a run; the modules above this folder show it."""
