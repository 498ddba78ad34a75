"""Use cases: one function per command, without typer and rich."""

import trainworks.report  # noqa: F401, it lets results show themselves
