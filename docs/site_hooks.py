"""mkdocs hooks: add the pages and files outside of `docs/` that pages link to, and rewrite those links.

A link is relative to the file in the repository, so that it also works where the Markdown is read as source. The copy
button of a console gives the commands alone. A link of the finished site that leads nowhere is a warning.
"""

from __future__ import annotations

import html
import logging
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = ("GLOSSARY.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "benchmarks/RESULTS.md")
CONSOLE = re.compile(r'<div class="(language-console [^"]*)">(.*?)</div>', re.DOTALL)
PROMPT = "$ "
TAG = re.compile(r"<[^>]+>")
TARGET = re.compile(r'<(?:a|link|script|img)\b[^>]*?\s(?:href|src)="([^"#?]+)[^"]*"')
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


def on_page_content(content: str, **_: Any) -> str:
    """Give each console the text that its button copies; one without a command gets no button."""
    return CONSOLE.sub(_with_commands, content)


def _with_commands(match: re.Match[str]) -> str:
    lines = html.unescape(TAG.sub("", match[2])).splitlines()
    typed = "\n".join(line.removeprefix(PROMPT) for line in lines if line.startswith(PROMPT))
    attributes = f'class="{match[1]}" data-copy="{html.escape(typed)}"' if typed else f'class="{match[1]} no-copy"'
    return f"<div {attributes}>{match[2]}</div>"


def on_post_build(config: Any) -> None:
    """Warn of links to files that the site does not have."""
    site = Path(config.site_dir)
    for page in sorted(site.rglob("*.html")):
        for target in set(TARGET.findall(page.read_text(encoding="utf-8"))):
            is_outside = re.match(r"[a-z]+:|//", target) is not None
            if not is_outside and not _on_site(site, page, unquote(html.unescape(target))).exists():
                logging.getLogger("mkdocs.hooks").warning("%s: no file `%s`", page.relative_to(site), target)


def _on_site(site: Path, page: Path, target: str) -> Path:
    return site / target.lstrip("/") if target.startswith("/") else page.parent / target
