"""The command line: one file per subject, no arithmetic."""
