"""Commands about jobs and nodes."""
