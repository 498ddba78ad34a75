"""Write the pictures of the documentation, docs/images/: `make screenshots`, or `python docs/screenshots.py NAME...`.

Trains examples/stdlib-lm.yaml through a queue of its own, which takes three minutes on two quiet cores, serves its
pages, and takes pictures of them with Debian's Chromium. `serve-plan` needs no run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

_DOCS = Path(__file__).parent
_EXAMPLE = _DOCS.parent / "examples" / "stdlib-lm.yaml"
_WIDTH = 1000
_HEIGHTS = {"report": 1375, "serve-jobs": 420, "serve-run": 1375, "serve-plan": 1200}
"""Pixels of each picture from the top of its page."""


def main() -> None:
    """Take the pictures that the command line names, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(_HEIGHTS)}")
    names = parser.parse_args().names or list(_HEIGHTS)
    if unknown := set(names) - set(_HEIGHTS):
        parser.error(f"no picture {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRAINWORKS_DATA"] = f"{folder}/data"
        run = trained(Path(folder)) if names != ["serve-plan"] else Path(folder)
        with served(Path(folder)) as address, sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": _WIDTH, "height": 900})
            page.goto(address)
            for name in names:
                open_page(page, name, address.partition("?")[0], run)
                picture = {"x": 0, "y": 0, "width": _WIDTH, "height": _HEIGHTS[name]}
                page.screenshot(path=_DOCS / "images" / f"{name}.png", clip=picture, full_page=True)
                print(f"docs/images/{name}.png")
            browser.close()


def trained(folder: Path) -> Path:
    """Run directory of the example, trained to its end."""
    program = [sys.executable, "-m", "trainworks"]
    subprocess.run([*program, "submit", "--yes", str(_EXAMPLE)], cwd=folder, check=True)
    (run,) = (folder / "runs").iterdir()
    subprocess.run([*program, "logs", "--follow", run.name], cwd=folder, check=True)
    subprocess.run([*program, "report", run.name], cwd=folder, check=True)
    return run


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Address of the pages, with their token."""
    command = [sys.executable, "-m", "trainworks", "serve", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder)
    assert process.stderr is not None
    try:
        found = re.search(r"http://\S+", said := process.stderr.readline())
        assert found is not None, said
        yield found[0]
    finally:
        process.terminate()
        process.wait()


def open_page(page: Any, name: str, address: str, run: Path) -> None:
    """Go to what the picture shows."""
    if name == "report":
        page.goto((run / "report.html").as_uri())
    elif name == "serve-plan":
        page.goto(f"{address}plan")
        page.get_by_role("button", name="Plan", exact=True).click()
        page.locator("table").first.wait_for(timeout=120_000)
    else:
        page.goto(address if name == "serve-jobs" else f"{address}runs/{run.name}")


if __name__ == "__main__":
    main()
