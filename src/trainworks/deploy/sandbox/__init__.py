"""Real cluster software on one machine, to try things out."""
