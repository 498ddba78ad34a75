"""Parts of the stack file."""
