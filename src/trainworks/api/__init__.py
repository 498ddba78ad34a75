"""Use cases: one function per command, without typer and rich."""
