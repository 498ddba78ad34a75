"""What `trainworks dev` starts on a node: an ssh server or JupyterLab of the user's own, and the record of both."""
