"""One version everywhere, and a README that a package index shows rightly."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import trainworks

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"trainworks:(\d+\.\d+\.\d+)|trainworks-(\d+\.\d+\.\d+)-py3|rev: v(\d+\.\d+\.\d+)")
FILES = ("docs/**/*.md", "deploy/**/Dockerfile", "Containerfile", "src/trainworks/config/engines.py")


def test_every_page_and_image_names_this_version() -> None:
    found = {
        (str(path.relative_to(ROOT)), *filter(None, match.groups()))
        for pattern in FILES
        for path in ROOT.glob(pattern)
        for match in NAMED.finditer(path.read_text(encoding="utf-8"))
    }
    assert len(found) >= 5
    assert {(name, version) for name, version in found if version != trainworks.__version__} == set()


def test_the_changelog_has_this_version() -> None:
    assert f"\n## [{trainworks.__version__}] - 20" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_readme_of_the_package_has_absolute_links() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    for each in project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        shown = re.sub(each["pattern"], each["replacement"], shown)
    targets = re.findall(r"\]\(([^)]*)\)", shown)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith("https://")] == []
