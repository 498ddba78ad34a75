"""Every page against the program: commands parse, run files are valid, links and named files exist."""

from __future__ import annotations

import doctest
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import typer
import yaml
from typer.testing import CliRunner

from trainworks.cli.app import _imported, app
from trainworks.cli.commands import ALIASES, COMMANDS
from trainworks.config.source import Source
from trainworks.plan.shapes.transformer import PLANNED_TYPES

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("benchmarks/*.md"),
        *ROOT.glob("deploy/**/*.md"),
    ]
    if path.name != "CHANGELOG.md"
)


def blocks(page: Path, *languages: str) -> Iterator[tuple[int, str]]:
    """Fenced blocks of these languages with the line that they begin at."""
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if found[1] in languages:
            yield text.count("\n", 0, found.start()) + 2, found[2]


def commands() -> Iterator[Any]:
    """`trainworks` command lines: those typed at a prompt, and those in running text that have an option."""
    for page in PAGES:
        for start, block in blocks(page, "console"):
            for number, line in enumerate(block.splitlines(), start):
                if line.startswith("$ trainworks ") and " | describe" not in line and " | status" not in line:
                    yield pytest.param(line[2:], id=f"{page.relative_to(ROOT)}:{number}")
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            for typed in re.findall(r"`(trainworks [a-z]+ [^`]*--[^`]*)`", line):
                yield pytest.param(typed, id=f"{page.relative_to(ROOT)}:{number}")


def run_files() -> Iterator[Any]:
    """YAML blocks that are run files or parts of one; an indented block is a part of `workload`.

    A block whose lines all give the same key shows alternatives, one a line.
    """
    for page in PAGES:
        for start, block in blocks(page, "yaml"):
            lines = block.splitlines()
            alternatives = lines if len({line.partition(":")[0] for line in lines}) == 1 else [block]
            for number, text in enumerate(alternatives, start):
                whole = f"workload:\n{text}" if text.startswith(" ") else text
                yield pytest.param(whole, id=f"{page.relative_to(ROOT)}:{number}")


@cache
def partial_schema() -> dict[str, Any]:
    """The schema of the run file without what is required: a page may show one key alone."""
    schema = json.loads(CliRunner().invoke(app, ["schema"]).stdout)
    return dict(_without_required(schema))


def _as_an_editor_reads(value: Any) -> Any:
    """The values as YAML 1.2 has them: `3e-3` is a number there, and text in YAML 1.1."""
    if isinstance(value, dict):
        return {key: _as_an_editor_reads(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_as_an_editor_reads(one) for one in value]
    return float(value) if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?e-?\d+", value) else value


def _without_required(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_required(value) for key, value in schema.items() if key != "required"}
    return [_without_required(one) for one in schema] if isinstance(schema, list) else schema


def arguments(typed: str) -> list[str]:
    """What the program is given: without a comment, and without what the shell does with the output."""
    words = shlex.split(typed, comments=True)[1:]
    ends = [index for index, word in enumerate(words) if word in ("|", ">", "&&", "2>&1", "&")]
    return words[: ends[0]] if ends else words


@pytest.mark.parametrize("typed", list(commands()))
def test_a_command_of_a_page_parses(typed: str) -> None:
    name, *rest = dropwhile(lambda word: word.startswith("-"), arguments(typed))  # `-v` may stand before the command
    name = ALIASES.get(name, name)
    assert name in COMMANDS
    command = _imported(name)
    while isinstance(command, click.Group):
        command, rest = command.commands[rest[0]], rest[1:]
    context = typer.Context(command, info_name=name, **command.context_settings)
    command.make_parser(context).parse_args(rest)


@pytest.mark.parametrize("block", list(run_files()))
def test_a_run_file_of_a_page_is_valid(block: str) -> None:
    jsonschema.validate(_as_an_editor_reads(Source("page", block).parse()), partial_schema())


@pytest.mark.parametrize("page", [page for page in PAGES if "```pycon" in page.read_text(encoding="utf-8")], ids=str)
def test_the_python_of_a_page_prints_what_the_page_shows(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    session = "\n".join(block for _, block in blocks(page, "pycon"))
    examples = doctest.DocTestParser().get_doctest(session, {}, page.name, str(page), 0)
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples).failed == 0


@pytest.mark.lane("test-all")  # 100 seconds of a processor without its cache, most of them for our own modules
def test_the_python_of_the_guides_type_checks(tmp_path: Path) -> None:
    """One run of mypy for all pages that call the public functions; names that a page leaves to its reader are open."""
    for page in sorted(ROOT.glob("docs/guides/*.md")):
        sessions = ["\n".join(map(_without_prompts, (block for _, block in blocks(page, "pycon"))))]
        for number, code in enumerate([*sessions, *(block for _, block in blocks(page, "python"))]):
            if "import trainworks" in code or "from trainworks" in code:
                (tmp_path / f"{page.stem.replace('-', '_')}_{number}.py").write_text(code)
    written = sorted(tmp_path.glob("*.py"))
    assert len(written) > 5
    options = ["--strict", "--allow-untyped-defs", "--ignore-missing-imports", "--disable-error-code=name-defined"]
    options += ["--follow-imports=silent", f"--cache-dir={ROOT / '.mypy_cache' / 'guides'}"]
    check = [sys.executable, "-m", "mypy", "--config-file=", *options, *map(str, written)]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(check, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _without_prompts(session: str) -> str:
    return "\n".join(line[4:] for line in session.splitlines() if line.startswith((">>>", "...")))


def anchors(page: Path) -> set[str]:
    """Headings of a page as links name them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(
        r"(?<![\w/.])((?:examples|benchmarks|tests|deploy|docs)/[\w./-]*\w)", page.read_text(encoding="utf-8")
    )
    missing = [path for path in named if not (ROOT / path).exists()]
    assert not missing


SOURCE = ROOT / "src" / "trainworks"
_PARTS = "|".join(sorted(path.name for path in SOURCE.iterdir() if path.is_dir()))


def defines(dotted: str) -> bool:
    """The source has this module, or a function, class or method of this name in it; nothing is imported."""
    parts = dotted.split(".")
    for depth in range(len(parts), 0, -1):
        module = SOURCE.joinpath(*parts[:depth]).with_suffix(".py")
        if module.is_file():
            names = [rf"^ {{{4 * level}}}(?:class|def) {name}\b" for level, name in enumerate(parts[depth:])]
            return all(re.search(name, module.read_text(encoding="utf-8"), re.MULTILINE) for name in names)
    return SOURCE.joinpath(*parts).is_dir()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_of_the_source_that_a_page_gives_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    prefix = "" if page.name in ("CONTRIBUTING.md", "architecture.md") else r"trainworks\."  # elsewhere they are keys
    dotted = re.findall(rf"`{prefix}((?:{_PARTS})(?:\.\w+){{2,}})`", text)
    paths = re.findall(rf"`((?:{_PARTS})/[\w/]*(?:\.py)?)`", text)
    assert [name for name in dict.fromkeys(dotted) if not defines(name)] == []
    assert [path for path in dict.fromkeys(paths) if not (SOURCE / path).exists() and not (ROOT / path).exists()] == []


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").exists()


def test_the_guide_lists_every_causal_model_type_that_trains() -> None:
    guide = (ROOT / "docs" / "guides" / "hugging-face-weights.md").read_text(encoding="utf-8")
    listed = {name for row in re.findall(r"^\| (`.*?) \|", guide, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    latent_attention = {"deepseek_v2", "deepseek_v3", "kimi_k2"}
    assert listed >= set(PLANNED_TYPES) - {"bert", "vit", "dinov2"} - latent_attention


def test_the_workflow_runs_ci_once_as_root_on_debian_with_time_for_slow_cores() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert sorted(commands) == [".ci/run", "git diff --exit-code docs", "make docs"]
    job = workflow["jobs"]["test"]
    assert job["container"]["image"] == "python:3.11-bookworm"  # root, apt, and the oldest Python of pyproject.toml
    assert job["timeout-minutes"] >= 120
