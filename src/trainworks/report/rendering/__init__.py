"""Documents, and their renderers: text, JSON, page."""
