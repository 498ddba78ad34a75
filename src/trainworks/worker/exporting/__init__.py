"""What `worker.export` is made of."""
