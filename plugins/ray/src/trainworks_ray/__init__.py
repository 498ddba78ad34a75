"""A Ray cluster that runs already, through the HTTP interface of its jobs."""
