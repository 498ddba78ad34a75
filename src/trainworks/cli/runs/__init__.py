"""Commands that start runs and read their records."""
