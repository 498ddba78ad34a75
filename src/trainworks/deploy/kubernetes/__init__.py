"""Objects of a Kubernetes cluster for the teams of a stack."""
