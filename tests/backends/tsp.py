"""A double of Task Spooler's `tsp`: `python tsp.py FOLDER [-l | -r ID | -k ID | -K | -L LABEL COMMAND...]`.

Jobs run one after another, in the order of their numbers, each in a process group of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def rows(folder: Path) -> dict[int, dict[str, Any]]:
    """All jobs, by number."""
    return {int(file.stem): json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def write(folder: Path, number: int, job: dict[str, Any]) -> None:
    """Replace what is known of a job."""
    new = folder / f"{number}.new"
    new.write_text(json.dumps(job))
    new.replace(folder / f"{number}.json")


def run(folder: Path, number: int) -> None:
    """Wait for the turn of a job, and run it."""
    with (folder / "turn").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if number not in rows(folder):
            return
        job = rows(folder)[number]
        with (folder / f"{number}.out").open("wb") as out:
            child = subprocess.Popen(job["command"], stdout=out, stderr=out, start_new_session=True)
            write(folder, number, job | {"state": "running", "pid": child.pid})
            code = child.wait()
        write(folder, number, job | {"state": "finished", "code": code if code >= 0 else -1})


def add(folder: Path, label: str, command: list[str]) -> int:
    """Queue a command; returns its number."""
    number = len(list(folder.glob("*.out")))
    (folder / f"{number}.out").touch()
    write(folder, number, {"state": "queued", "label": label, "command": command})
    runner, quiet = [sys.executable, __file__, str(folder), "run", str(number)], subprocess.DEVNULL
    subprocess.Popen(runner, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
    return number


def listed(folder: Path) -> Iterator[str]:
    """Lines of `tsp -l`."""
    yield "ID   State      Output               E-Level  Times(r/u/s)   Command [run=0/1]"
    for number, job in rows(folder).items():
        times = f"{job['code']:<8} 1.02/0.00/0.00" if "code" in job else " " * 23
        output = "(file)" if job["state"] == "queued" else "/tmp/ts-out.Of3ov9"
        yield f"{number:<4} {job['state']:<10} {output:<20} {times} [{job['label']}]python"


def end(folder: Path, number: int) -> None:
    """Remove a job that waits, and send SIGTERM to one that runs."""
    job = rows(folder)[number]
    if job["state"] == "queued":
        (folder / f"{number}.json").unlink()
    elif job["state"] == "running":
        os.killpg(job["pid"], signal.SIGTERM)


def main(folder: Path, words: list[str]) -> None:
    """Do what `tsp` is called for."""
    folder.mkdir(exist_ok=True)
    match words:
        case ["-L", label, *command]:
            sys.stdout.write(f"{add(folder, label, command)}\n")
        case ["-l"]:
            sys.stdout.writelines(f"{line}\n" for line in listed(folder))
        case ["-r" | "-k", number]:
            end(folder, int(number))
        case ["-K"]:
            for number in reversed(rows(folder)):
                end(folder, number)
        case ["run", number]:
            run(folder, int(number))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
