"""Choose, run and read measurements of a machine."""
