"""What tests in a browser share: sizes and colour schemes, a page with its complaints, and what a page has to pass."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
BROKEN_WORDS = """() => {
  const broken = [], texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    if (text.parentElement.closest("pre, textarea, select")) continue;
    for (const word of text.data.matchAll(/[A-Za-z]{2,}/g)) {
      const range = new Range();
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(({ top }) => Math.round(top))).size > 1) broken.push(word[0]);
    }
  }
  return broken;
}"""
"""Words of a page that stand on two lines."""


@dataclass
class Desk:
    """A browser's window at a server."""

    page: Any
    address: str
    size: str
    scheme: str
    problems: list[str] = field(default_factory=list)
    """What the console complains about, refused scripts and styles among them, and requests that failed."""
    audited: list[str] = field(default_factory=list)
    """Names of the pages that were checked."""

    def open(self, path: str) -> None:
        """Go to a page of the server."""
        self.page.goto(f"{self.address}{path}")

    def audit(self, name: str) -> None:
        """Check the page that is shown: axe-core has no finding, it fits into the window, and its words are whole."""
        from axe_playwright_python.sync_playwright import Axe

        where = f"{name}, {self.size}, {self.scheme}"
        shoot(self.page, f"{self.size}-{self.scheme}-{name}")
        found = Axe().run(self.page).response["violations"]
        findings = [
            f"{rule['id']} at {' '.join(node['target'])}: {node['failureSummary']}"
            for rule in found
            for node in rule["nodes"]
        ]
        assert findings == [], "\n".join([where, *findings])
        assert self.page.evaluate("document.documentElement.scrollWidth") <= SIZES[self.size]["width"], where
        assert self.page.evaluate(BROKEN_WORDS) == [], where
        is_dark = self.page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        assert is_dark == (self.scheme == "dark"), where
        assert self.problems == [], where
        self.audited.append(name)


def sit_down(chromium: Any, port: int, *, size: str = "desktop", scheme: str = "light") -> Desk:
    """A new window of that size and colour scheme, without a cookie."""
    page = chromium.new_context(viewport=SIZES[size], color_scheme=scheme).new_page()
    page.set_default_timeout(60_000)
    desk = Desk(page, f"http://127.0.0.1:{port}", size, scheme)
    page.on("console", lambda message: desk.problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: desk.problems.append(str(error)))
    page.on("response", lambda answer: desk.problems.append(answer.url) if answer.status >= 400 else None)
    page.on("requestfailed", lambda request: desk.problems.extend(_failure(request)))
    return desk


def _failure(request: Any) -> list[str]:
    """The failure of a request; a page that is left gives up its stream of events and what it has not read yet."""
    return [] if request.failure == "net::ERR_ABORTED" else [f"{request.url}: {request.failure}"]


def shoot(page: Any, name: str) -> None:
    """Keep a picture, where `TRAINWORKS_SCREENSHOTS` names a folder."""
    if folder := os.environ.get("TRAINWORKS_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
