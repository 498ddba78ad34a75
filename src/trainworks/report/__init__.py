"""What is shown: a result becomes a document, and a document becomes text, JSON or an HTML page."""

import trainworks.report.rendering.renderer  # noqa: F401, results show themselves through it
