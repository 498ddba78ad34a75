"""The run file as frozen models that can be built on any machine."""
