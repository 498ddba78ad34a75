"""Backend for a running Ray cluster, through the HTTP interface of its jobs."""
