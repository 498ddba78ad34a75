"""What a run leaves: the contract between the workers that write it and the control plane that reads it."""
