"""The folder of all runs: make, list and find run directories."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

from trainworks.errors import UnknownRunError
from trainworks.record.run_dir import RunDir


def create_run_dir(root: Path, name: str) -> RunDir:
    """Create `root/name-N` with the first free N; creating the folder is atomic.

    Only this user can write the folder, under any umask, because a dispatcher executes its contents.
    """
    root.mkdir(parents=True, exist_ok=True)
    number = max(_by_number(root, name), default=0) + 1
    while True:
        path = root / f"{name}-{number}"
        try:
            path.mkdir(mode=0o755)
        except FileExistsError:
            number += 1
            continue
        run_dir = RunDir(path)
        run_dir.logs.mkdir(mode=0o755)
        run_dir.checkpoints.mkdir(mode=0o755)
        return run_dir


def _by_number(root: Path, name: str) -> dict[int, RunDir]:
    """The runs `root/name-N`, by N."""
    found = ((re.fullmatch(re.escape(name) + r"-(\d+)", run.path.name), run) for run in run_dirs(root))
    return {int(match[1]): run for match, run in found if match}


def list_runs(root: Path) -> list[RunDir]:
    """Every run directory below `root`, oldest first."""
    return sorted(run_dirs(root), key=lambda run: (_created_at(run), run.run_id))


def run_dirs(root: Path) -> list[RunDir]:
    """Every run directory below `root` in no order; none is opened."""
    folders = root.iterdir() if root.is_dir() else ()
    found = (RunDir(folder) for folder in folders if folder.name[0] != ".")
    return [run_dir for run_dir in found if run_dir.logs.is_dir()]


def _created_at(run_dir: RunDir) -> float:
    """Time of resolving the run; the times of the folder change with every file in it."""
    try:
        return float(json.loads(run_dir.resolved_file.read_bytes())["created_at"])
    except (OSError, ValueError, KeyError, TypeError):
        return run_dir.path.stat().st_ctime


def find_run(root: Path, wanted: str | None) -> RunDir:
    """The run of an id or a path, or the last one of a name; the newest of all when None.

    Raises:
        UnknownRunError: it does not exist; the hint names known runs.
    """
    runs = list_runs(root)
    if wanted is None:
        if not runs:
            raise UnknownRunError(f"no runs in `{root}`", hint="start one: trainworks run run.yaml")
        return runs[-1]
    composed = unicodedata.normalize("NFC", wanted)  # as a run is named; a keyboard may send the decomposed form
    for candidate in (RunDir(root / composed), RunDir(Path(wanted))):
        if candidate.logs.is_dir():
            return candidate
    if not wanted.isdecimal() and (named := _by_number(root, composed)):  # a number is that of a job
        return named[max(named)]
    known = ", ".join(run.run_id for run in runs[-5:]) or "none"
    raise UnknownRunError(f"no run `{wanted}` in `{root}`", hint=f"known runs: {known}")
