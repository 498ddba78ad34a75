"""What was planned against what happened: one report, read from the record alone, in three outputs."""
