"""mkdocs hooks: add the pages and files outside of `docs/` that pages link to, and rewrite those links.

A link is relative to the file in the repository, so that it also works where the Markdown is read as source.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = ("GLOSSARY.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "benchmarks/RESULTS.md")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the repository's root, and the examples as files to download."""
    examples = (path for path in (ROOT / "examples").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    for path in (*(ROOT / page for page in PAGES), *sorted(examples)):
        files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links from places in the repository to places in the site."""
    source = Path(page.file.abs_src_path)

    def site_link(match: re.Match[str]) -> str:
        target = (source.parent / match[1]).resolve()
        return f"]({os.path.relpath(_site_path(target), Path(page.file.src_uri).parent)}"

    return LINK.sub(site_link, markdown)


def _site_path(path: Path) -> Path:
    return path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT)
