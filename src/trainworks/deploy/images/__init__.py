"""Images of containers and of machines."""
