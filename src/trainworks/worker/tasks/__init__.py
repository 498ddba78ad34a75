"""What a run trains: its task, with model, data and optimizer."""
