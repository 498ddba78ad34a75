"""What pages show of the first run are the lines that the program prints, in their order, with figures of one run."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from itertools import dropwhile, pairwise
from pathlib import Path

import pytest
from rich.console import Console

from tests.plan.shapes import calibration
from tests.report.conftest import RunWriter
from trainworks.config.run_description import load_tasks
from trainworks.measure.model_config import model_shape
from trainworks.plan.run.layout import choose_layouts
from trainworks.plan.run.plan import make_plan
from trainworks.plan.run.pricing import run_job
from trainworks.record.processes import Processes
from trainworks.report.live import LineView
from trainworks.report.local_plan import LAYOUTS
from trainworks.report.rendering.renderer import build_document
from trainworks.report.rendering.text import render_text
from trainworks.report.run_report import brief
from trainworks.report.runs.run_progress import RunFollower

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "stdlib-lm.yaml"
GUIDE = (ROOT / "docs" / "guides" / "first-run.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
CUT = ("...",)
Shape = tuple[str, ...]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> list[Shape]:
    """All lines that `trainworks run` of the example prints, plan, progress and end, and those of `report`."""
    run_file, _ = load_tasks(EXAMPLE)[0]
    assert run_file.workload is not None
    workload = run_file.workload.model_copy(update={"precision": "bf16"})
    run_file = run_file.model_copy(update={"workload": workload})
    shape = model_shape(workload)
    processes = Processes(nodes=1, processes_per_node=2, threads_per_process=1, device="cpu")
    job = run_job(workload, shape, processes, calibration=calibration(num_ranks=2), memory_per_rank_bytes=10**10)
    best, *_ = compared = choose_layouts(job, None)
    plan = make_plan(run_file, shape, best.layout, processes, calibration(), steps=300, compared=compared)
    run = RunWriter(tmp_path_factory.mktemp("runs"), plan, None)
    run.run_dir.write_resolved(run.run_dir.read_resolved().model_copy(update={"run_file": run_file}))
    console = Console(file=io.StringIO(), width=400)
    view, follower = LineView(console, 300), RunFollower(run.run_dir)

    def show() -> None:
        view.show(follower.look(), run.at)

    run.event("submitted", nodes=1, processes_per_node=2).event("data_progress", done_bytes=0, total_bytes=10**7)
    show()
    run.event("data_ready", num_tokens=10**7, seconds=9.0, cached=False).wait(3.0).attempt().steps(40)
    show()
    for _ in range(6):
        run.steps(49).steps(1, evaluation=5.0).checkpoint()
        show()
    run.event("sample", step=300, prompt="def __init__(self", text=", name):").finish()
    written = console.file.getvalue()  # type: ignore[attr-defined]
    planned = render_text(build_document(run.run_dir.read_resolved()).without(LAYOUTS), width=400)
    report = run.report()
    end = render_text(brief(report, "runs/stdlib-lm-1", "trainworks report stdlib-lm-1"), width=400)
    texts = [planned, written, end, render_text(build_document(report), width=400)]
    return list(shapes([line for text in texts for line in text.splitlines()]))


def shapes(lines: Sequence[str]) -> Iterator[Shape]:
    """The label of each fact or row of a table with its number of columns, and the names of a line of progress.

    Sentences and paragraphs, which differ from run to run, have none.
    """
    for line in lines:
        if line.strip() == "...":
            yield CUT
        elif " | " in line:
            yield tuple(
                re.match(r"[a-zA-Z -]*[a-zA-Z]", part)[0].removesuffix(" none yet") for part in line.split(" | ")
            )  # type: ignore[index]
        elif re.match(r" *[a-zA-Z/]+( [a-zA-Z/]+)*  +\S", line) and not line.lstrip().startswith("stdlib-lm"):
            indent = "  " if line.startswith("  ") else ""
            label, *columns = re.split(r"  +", line.strip())
            yield indent + label, str(len(columns))


def samples() -> Iterator[tuple[str, list[str]]]:
    """Every sample of a session: name and lines."""
    answer = re.search(r"^\$ trainworks run examples/stdlib-lm.yaml.*?\n(.*?)^\$ ", README, re.DOTALL | re.MULTILINE)
    assert answer is not None
    yield "README", answer[1].splitlines()
    blocks = re.findall(r"```text\n(.*?)```", GUIDE.partition("## Change a value")[0], re.DOTALL)
    for name, block in zip(("plan", "progress", "end", "report"), blocks, strict=True):
        yield name, block.splitlines()


@pytest.mark.parametrize(("name", "lines"), list(samples()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_page_shows_the_lines_of_the_first_run_as_they_are_printed(
    session: list[Shape], name: str, lines: list[str]
) -> None:
    shown = list(dropwhile(lambda shape: shape == CUT, shapes(lines)))
    assert len(shown) >= 2
    at = session.index(shown[0])
    for before, line in pairwise(shown):
        if line == CUT:
            continue
        assert line in session[at + 1 :], f"{name}: nothing like {line} is printed after {session[at]}"
        found = session.index(line, at + 1)
        assert before == CUT or found == at + 1, f"{name}: {session[at + 1 : found]} is missing before {line}"
        at = found
