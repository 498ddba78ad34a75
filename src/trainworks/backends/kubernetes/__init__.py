"""Jobs on Kubernetes: JobSets, queued by Kueue where a queue is named."""
