"""What is set up on machines: rendered as text first, then applied."""
