"""Use cases: one function per command, without typer and rich."""

import trainworks.report.renderer  # noqa: F401, results of use cases show themselves
