"""Plans for this machine, from rates that were measured on it a moment ago."""
