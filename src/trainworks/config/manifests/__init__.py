"""Jobs of Kubernetes as run files: JobSet, TrainJob, PyTorchJob and LeaderWorkerSet."""
