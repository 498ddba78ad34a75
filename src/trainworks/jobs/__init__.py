"""A request: what to start, in which environment, and which states it goes through. No files, no processes."""
