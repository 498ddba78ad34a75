"""Commands that show runs and nodes to people and their tools."""
