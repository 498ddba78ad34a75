"""Jobs of Kubernetes as run files: JobSet, TrainJob and PyTorchJob."""
