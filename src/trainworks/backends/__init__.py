"""From a job request to processes, on this machine or on a cluster."""
