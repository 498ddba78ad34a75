"""Parts of a proposal for a cluster."""
