"""The processes that copy beside a run: its checkpoints, and its record."""
