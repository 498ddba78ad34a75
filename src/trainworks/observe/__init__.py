"""What people and their tools see of runs, queues and nodes; reads the record, never a worker."""
