"""Jobs on machines that ssh reaches: the queue here, and what it starts there."""
