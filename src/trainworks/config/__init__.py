"""What is wanted: the run file as frozen models, constructible on any machine."""
