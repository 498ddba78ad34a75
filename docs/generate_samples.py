"""Write the sample outputs of the pages from the commands that stand beside them.

    python docs/generate_samples.py                       run the commands, and write into each block what they print
    python docs/generate_samples.py --check               name the blocks that differ, and write nothing
    python docs/generate_samples.py --record first-run    train the runs of docs/samples/first-run again, then write

A comment on the line before a fenced block ties it to what it shows; Markdown does not display comments:

    <!-- sample -->                                       in a console: below each `$ trainworks ...`, what it prints
    <!-- sample: trainworks plan run.yaml -->             what this command prints
    <!-- sample: part of trainworks plan run.yaml -->     successive lines of that, from any place
    <!-- sample: trainworks run run.yaml, recorded as lm-1 -->    the run does not start: its record is shown again
    <!-- sample, 130 columns -->                          in a terminal of this width; of 100 columns without it
    <!-- file: run.yaml -->                               the block is this file, which later commands read; one that
                                                          the page does not show stands in the comment itself
    <!-- runs: docs/samples/first-run -->                 recorded runs in the folder `runs`; this mark has no block

The commands of a page run in their order, in a folder of their own that has `examples/`. What a terminal shows of them
is stdout and stderr. In a block, a line `...` stands for lines that are left out, and ` ...` at the end of a line for
its rest. Writing keeps what a block leaves out: its first and last lines, and those around `...`, are looked for by
their likeness in what is printed today.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from unittest.mock import patch

from trainworks import find_run, runs
from trainworks.cli.app import app
from trainworks.cli.problems import end_with, exit_code_of
from trainworks.cli.runs.record import print_brief
from trainworks.errors import TrainworksError
from trainworks.record.run_dir import RunDir
from trainworks.report.live import LineView
from trainworks.report.local_plan import LAYOUTS
from trainworks.report.rendering.console import SafeConsole
from trainworks.report.rendering.renderer import build_document
from trainworks.report.rendering.text import print_document
from trainworks.report.runs.run_progress import RunFollower

ROOT = Path(__file__).resolve().parents[1]
PAGES = [page for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]) if page.name != "CHANGELOG.md"]
COLUMNS = 100
CUT = "..."
_CONTINUED = " " * 10
"""Start of a line that continues the one above it."""
_MARK = re.compile(
    r"^<!-- (?P<kind>sample|file|runs)(?P<about>\b[^\n]*?)"
    r"(?: -->\n(?:```\w+\n(?P<body>.*?)^```$)?|\n(?P<hidden>.*?)^-->$)",
    re.DOTALL | re.MULTILINE,
)
_SAMPLE = re.compile(
    r"(?:: (?P<part>part of )?(?P<command>trainworks .*?))?"
    r"(?:, recorded as (?P<run>\S+))?(?:, (?P<columns>\d+) columns)?"
)


class SampleError(Exception):
    """A block that cannot be generated, with its place."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A command and the lines that a page shows below it."""

    command: str
    lines: tuple[str, ...]
    run: str | None = None
    columns: int = COLUMNS
    is_part: bool = False
    typed: str = ""
    """Its line of the console; empty where the mark has the command."""


@dataclass
class Page:
    """A page whose marked blocks are compared with what its commands print, or are written anew."""

    path: Path
    differing: list[str] = field(default_factory=list)
    """Places of the blocks that show something else than what is printed."""

    @cached_property
    def text(self) -> str:
        """The page as it is written."""
        return self.path.read_text(encoding="utf-8")

    @property
    def has_samples(self) -> bool:
        """Whether a block of the page is generated."""
        return any(mark["kind"] == "sample" for mark in _MARK.finditer(self.text))

    def generated(self) -> str:
        """The page with every sample as it is printed today; `differing` then names those that were not.

        Raises:
            SampleError: a mark cannot be read, or a block has no line that is like one of those printed.
        """
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name).resolve() / "page"
            folder.mkdir()
            (folder / "examples").symlink_to(ROOT / "examples")
            return _MARK.sub(lambda mark: self._generate(mark, folder), self.text)

    def _generate(self, mark: re.Match[str], folder: Path) -> str:
        line = self.text.count("\n", 0, mark.start()) + 1
        place = f"{self.path.relative_to(ROOT)}:{line}"
        about, body = mark["about"].removeprefix(": "), mark["body"]
        if mark["kind"] == "runs":
            shutil.copytree(ROOT / about / "runs", folder / "runs")
            for path in (folder / "runs").iterdir():
                RunDir(path).logs.mkdir()  # by which a run is known; git keeps no empty folder
        elif mark["kind"] == "file" and (content := body or mark["hidden"]):
            (folder / about).write_text(content, encoding="utf-8")
        elif body is None:
            raise SampleError(f"{place}: the mark has no block: write a fenced block on the next line")
        else:
            written = self._written(answers(mark["about"], body, place), folder, place)
            return f"{self.text[mark.start() : mark.start('body')]}{written}{self.text[mark.end('body') : mark.end()]}"
        return mark[0]

    def _written(self, shown: Sequence[Answer], folder: Path, place: str) -> str:
        """The block with what the commands print."""
        text = []
        for answer in shown:
            lines = list(answer.lines)
            printed = [] if answer.typed and not lines else printed_by(answer, folder)
            if lines and not shows(lines, printed, is_part=answer.is_part):
                self.differing.append(f"{place}: {answer.command}")
                lines = adapted(lines, printed, place, is_part=answer.is_part)
            text += [answer.typed] if answer.typed else []
            text += lines
        return "".join(f"{line}\n" for line in text)


def answers(about: str, body: str, place: str) -> list[Answer]:
    """The commands of a sample with what the page shows of each.

    Raises:
        SampleError: the mark cannot be read, or a command is not one of `trainworks` alone.
    """
    read = _SAMPLE.fullmatch(about)
    lines = body.splitlines()
    if read is None or (read["command"] is None) != bool(lines and lines[0].startswith("$ ")):
        raise SampleError(f"{place}: cannot read this mark: docs/generate_samples.py says how one is written")
    columns = int(read["columns"] or COLUMNS)
    if read["command"]:
        return [Answer(read["command"], tuple(lines), read["run"], columns, is_part=read["part"] is not None)]
    found = []
    for block in re.split(r"^(?=\$ )", body, flags=re.MULTILINE)[1:]:
        typed, *below = block.splitlines()
        found.append(Answer(typed.removeprefix("$ "), tuple(below), read["run"], columns, typed=typed))
    return found


_PRINTED: dict[tuple[int, str, str | None, int], list[str]] = {}
"""What was printed, by the files that were there before, the command, its recorded run and the width."""


def printed_by(answer: Answer, folder: Path) -> list[str]:
    """The lines that a terminal shows of a command; a recorded run is shown from its record.

    A command that wrote no file does not run again while the files that it names, the runs and the stores stay the
    same, also for another page.

    Raises:
        SampleError: the command is not one of `trainworks` alone.
    """
    program, *arguments = shlex.split(answer.command, comments=True)
    if program != "trainworks" or {"|", ">", "&&", "&"} & set(arguments):
        raise SampleError(f"`{answer.command}` is more than a command of trainworks: write no sample of it")
    before = _checksum(folder.parent)
    key = (_checksum(folder.parent, arguments), shlex.join(arguments), answer.run, answer.columns)
    if key in _PRINTED:
        return _PRINTED[key]
    out = io.StringIO()
    with _terminal(folder, answer.columns), redirect_stdout(out), redirect_stderr(out):
        if answer.run is not None:
            show_again(answer.run, SafeConsole(file=out, width=answer.columns))
        else:
            _call(arguments)
    text = out.getvalue().replace(f"{folder}/", "")
    for path, shown in (("cache", "~/.cache/trainworks"), ("data", "~/.local/share/trainworks")):
        text = text.replace(f"{folder.parent}/{path}", shown)
    printed = [line.rstrip() for line in text.splitlines()]
    if _checksum(folder.parent) == before:
        _PRINTED[key] = printed
    return printed


def _call(arguments: list[str]) -> None:
    """Run the program in this process to its end, whatever its exit code: a page may show an error."""
    with patch.object(sys, "argv", ["trainworks", *arguments]), suppress(SystemExit):
        try:
            exit_code_of(app)
        except TrainworksError as error:
            end_with(error)


def _checksum(folder: Path, words: Sequence[str] | None = None) -> int:
    """Checksum of all files below a folder; of those of the page itself, only of the ones among `words` if given."""
    checksum = 0
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if words is None or path.parent != folder / "page" or path.name in words:
            checksum = zlib.crc32(path.read_bytes(), zlib.crc32(str(path.relative_to(folder)).encode(), checksum))
    return checksum


@contextmanager
def _terminal(folder: Path, columns: int) -> Iterator[None]:
    """A terminal without colour in a folder, with a cache and a job store beside it: this machine's do not count."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("TRAINWORKS_")}
    variables = {**others, **_stores(folder), "COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb"}
    with chdir(folder), patch.dict(os.environ, variables, clear=True):
        yield


def _stores(folder: Path) -> dict[str, str]:
    """Variables by which the program keeps its files beside this folder."""
    return {f"TRAINWORKS_{name}": str(folder.parent / name.lower()) for name in ("DATA", "CACHE", "LEDGER")}


def show_again(name: str, console: SafeConsole) -> None:
    """Show a recorded run as `trainworks run` has: its plan, its progress in lines, and how it ended.

    The record grows again line by line, each at the time that is written in it. So it takes no time, and the words are
    those of today.
    """
    run = find_run(name)
    plan, workload = run.resolved.plan, run.resolved.run_file.workload
    assert plan is not None, "a recorded run has a plan"
    assert workload is not None, "a recorded run has a workload"
    print_document(build_document(run.resolved).without(LAYOUTS), console)
    with tempfile.TemporaryDirectory() as folder:
        growing = RunDir(Path(folder))
        follower, view = RunFollower(growing), LineView(console, plan.num_steps, workload.unit)
        lines = _record_lines(run.run_dir)
        for number, (at, path, line) in enumerate(lines, 1):
            with (growing.path / path.name).open("a", encoding="utf-8") as file:
                file.write(line)
            if path == run.run_dir.metrics_file and _anchors(run.run_dir, line):
                shutil.copy(run.run_dir.anchor_file, growing.anchor_file)
            progress = follower.look()
            progress.state = run.state if number == len(lines) else progress.state
            view.show(progress, at)
    print_brief(run, console)
    run.run_dir.report_file.unlink()  # it has the time, and no page shows it


def _record_lines(run_dir: RunDir) -> list[tuple[float, Path, str]]:
    """Lines of events and metrics in the order of time."""
    files = (run_dir.events_file, run_dir.metrics_file)
    lines = [(file, line) for file in files for line in file.read_text(encoding="utf-8").splitlines(keepends=True)]
    return sorted(((json.loads(line)["t"], file, line) for file, line in lines), key=lambda each: each[0])


def _anchors(run_dir: RunDir, row: str) -> bool:
    """Whether the step of the plan was anchored at this row."""
    if not run_dir.anchor_file.exists():
        return False
    found = json.loads(run_dir.anchor_file.read_text(encoding="utf-8"))["found"]
    return found is not None and found["step"] == json.loads(row)["step"]


def shows(lines: Sequence[str], printed: Sequence[str], *, is_part: bool) -> bool:
    """Whether the lines of a block are those printed, but for what the block leaves out."""
    pattern = "".join(
        r"(?:.*\n)+?"
        if line.strip() == CUT
        else rf"{re.escape(line.removesuffix(CUT))}.+\n"
        if line.endswith(f" {CUT}")
        else rf"{re.escape(line)}\n"
        for line in lines
    )
    text = "".join(f"{line}\n" for line in printed)
    return (re.search(rf"^{pattern}", text, re.MULTILINE) if is_part else re.fullmatch(pattern, text)) is not None


def adapted(lines: Sequence[str], printed: Sequence[str], place: str, *, is_part: bool) -> list[str]:
    """The block with the lines printed today, and with the same left out as before.

    Each stretch of lines without a cut becomes the lines from the one that is likest its first to the one likest its
    last, which is shown with the lines that continue it, the whole in the order of what is printed.

    Raises:
        SampleError: a stretch has no line that is like a printed one.
    """
    wanted = [line for line in lines if line.strip() != CUT]
    pairs = _likest(wanted, printed)
    starts_cut, ends_cut = lines[0].strip() == CUT, lines[-1].strip() == CUT
    text: list[str] = []
    at, shown_until, stretches = 0, -1, _stretches(lines)
    for index, stretch in enumerate(stretches):
        found = {pairs[at + number]: line for number, line in enumerate(stretch) if at + number in pairs}
        if not found:
            raise SampleError(f"{place}: nothing like this is printed, leave it out: {stretch[0]}")
        first = min(found) if index or starts_cut or is_part else 0
        last = max(found) if index < len(stretches) - 1 or ends_cut or is_part else len(printed) - 1
        while last + 1 < len(printed) and printed[last + 1].startswith(_CONTINUED):
            last += 1
        text += [CUT] if (index or starts_cut) and first > shown_until + 1 else []
        text += [_cut_like(found.get(number, ""), printed[number]) for number in range(first, last + 1)]
        at, shown_until = at + len(stretch), last
    return [*text, CUT] if ends_cut and shown_until < len(printed) - 1 else text


def _stretches(lines: Sequence[str]) -> list[list[str]]:
    """Successive lines of a block between its cuts."""
    stretches: list[list[str]] = [[]]
    for line in lines:
        if line.strip() == CUT:
            stretches.append([])
        else:
            stretches[-1].append(line)
    return [stretch for stretch in stretches if stretch]


def _likest(wanted: Sequence[str], printed: Sequence[str]) -> Mapping[int, int]:
    """Index of a wanted line -> index of the printed one that it became, both in their order; some have none."""
    likeness = [[_likeness(old, new) for new in printed] for old in wanted]
    best = [[0.0] * (len(printed) + 1) for _ in range(len(wanted) + 1)]
    for row in reversed(range(len(wanted))):
        for column in reversed(range(len(printed))):
            both = likeness[row][column] + best[row + 1][column + 1] if likeness[row][column] >= 0.5 else 0.0
            best[row][column] = max(both, best[row + 1][column], best[row][column + 1])
    pairs, row, column = {}, 0, 0
    while row < len(wanted) and column < len(printed):
        if best[row][column] == best[row + 1][column]:
            row += 1
        elif best[row][column] == best[row][column + 1]:
            column += 1
        else:
            pairs[row] = column
            row, column = row + 1, column + 1
    return pairs


def _likeness(old: str, new: str) -> float:
    """How alike two lines are, 0 to 1: by their words, and a little by their figures."""
    old = old.removesuffix(f" {CUT}")
    words = [re.sub(r"[\d.,]+", "#", " ".join(line.split())) for line in (old, new[: len(old) + 10])]
    return 0.9 * SequenceMatcher(None, *words).ratio() + 0.1 * SequenceMatcher(None, old, new).ratio()


def _cut_like(old: str, new: str) -> str:
    """A line cut after as many words as the old one was."""
    if not old.endswith(f" {CUT}"):
        return new
    words = re.findall(r"\s*\S+", new)[: len(old.split()) - 1]
    return new if len(words) == len(new.split()) else f"{''.join(words)} {CUT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A command of a recorded session that trains, and what happens to it at a step of its run."""

    command: tuple[str, ...]
    kill_rank_at: int | None = None
    stop_at: int | None = None
    """Step at which it gets the signal of Ctrl-C."""


_EXAMPLE = "examples/stdlib-lm.yaml"
SESSIONS = {
    "first-run": (
        Training(command=("run", _EXAMPLE)),
        Training(command=("run", _EXAMPLE), stop_at=30),
        Training(command=("resume",), kill_rank_at=60, stop_at=75),
    )
}
"""What is trained for each folder of docs/samples."""
_KEPT = (
    *("run.yaml", "resolved.json", "status.json", "events.jsonl"),
    *("metrics.jsonl", "anchor.json", "usage/node-0.json"),
)


def record(session: str) -> None:
    """Train the runs of a session again, and keep their records in docs/samples: minutes, on every core."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve() / "session"
        folder.mkdir()
        (folder / "examples").symlink_to(ROOT / "examples")
        for training in SESSIONS[session]:
            train(training, folder, {**os.environ, **_stores(folder)})
        target = ROOT / "docs" / "samples" / session / "runs"
        shutil.rmtree(target, ignore_errors=True)
        for run in runs(folder / "runs"):
            _keep(run.run_dir, target / run.id, {str(folder): "/home/ada", str(folder.parent): "/home/ada/.cache"})


def train(training: Training, folder: Path, variables: Mapping[str, str]) -> None:
    """Start the command, do to it what belongs to its session, and wait for its end.

    Raises:
        SampleError: it ended otherwise than it should.
    """
    started = subprocess.Popen([sys.executable, "-m", "trainworks", *training.command], cwd=folder, env=variables)
    number = len(runs(folder / "runs")) + (training.command[0] == "run")
    if training.kill_rank_at is not None:
        events = _run_at_step(folder / "runs", number, training.kill_rank_at).events_file.read_text(encoding="utf-8")
        *_, attempt = (event for event in map(json.loads, events.splitlines()) if event["kind"] == "attempt")
        os.kill(attempt["pids"][0], signal.SIGKILL)
    if training.stop_at is not None:
        _run_at_step(folder / "runs", number, training.stop_at)
        started.send_signal(signal.SIGINT)
    if started.wait() != (0 if training.stop_at is None else 130):
        raise SampleError(f"`trainworks {shlex.join(training.command)}` failed: its output says why")


def _run_at_step(folder: Path, number: int, step: int) -> RunDir:
    """The run of this number, once it has made a step."""
    while True:
        time.sleep(0.2)
        found = runs(folder)
        if len(found) == number and found[-1].run_dir.metrics_file.exists():
            run_dir = found[-1].run_dir
            if f'"step": {step},' in run_dir.metrics_file.read_text(encoding="utf-8"):
                return run_dir


def _keep(run_dir: RunDir, target: Path, names: Mapping[str, str]) -> None:
    """Copy what is shown of a run, with other names for its folders and its machine."""
    others = {**names, f'"{platform.node()}"': '"ada-1"', f", kernel {platform.release()}": ""}
    for path in (run_dir.path / name for name in _KEPT):
        if path.exists():
            text = path.read_text(encoding="utf-8")
            for own, other in others.items():
                text = text.replace(own, other)
            kept = target / path.relative_to(run_dir.path)
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(text, encoding="utf-8")


def main() -> int:
    """Write the samples, or compare them with `--check`; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="only these pages")
    parser.add_argument("--check", action="store_true", help="name the blocks that differ, and write nothing")
    parser.add_argument("--record", choices=SESSIONS, help="train the runs of this session again")
    given = parser.parse_args()
    try:
        if given.record:
            record(given.record)
        differing = []
        for page in map(Page, [path.resolve() for path in given.pages] or PAGES):
            text = page.generated() if page.has_samples else page.text
            differing += page.differing
            if page.differing and not given.check:
                page.path.write_text(text, encoding="utf-8")
    except SampleError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stderr.write("".join(f"{'differs' if given.check else 'written'}: {place}\n" for place in differing))
    return 1 if given.check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
