"""What a run asks of storage, which kinds of storage give it, and what that takes of each node."""
