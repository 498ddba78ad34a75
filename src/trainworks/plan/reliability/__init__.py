"""What failures cost a run: expected goodput as formulas, and the whole run as a simulation of events."""
