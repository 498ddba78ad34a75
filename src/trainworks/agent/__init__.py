"""On a node: the supervisor of a job and the agents that start and watch its ranks."""
