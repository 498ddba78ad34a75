"""A cloud on this machine behind a program `sky`: `python cloud.py STATE jobs launch|queue|cancel|logs ...`.

It reads tasks as SkyPilot does, and runs their `run` with bash, SkyPilot's variables and a home folder of its own: the
machine. A file `preempt` in the folder of a job takes the machine away, with all of its processes and its home folder;
the next one is rented at once. An exit code of `recover_on_exit_codes` rents another one, too; every end returns it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import yaml

_POLL_S = 0.05


@contextmanager
def opened(folder: Path) -> Iterator[Path]:
    """A cloud in a folder, with the program `sky`; in the end all of its controllers and machines are gone."""
    folder.mkdir()
    program = folder / "sky"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" "{folder}" "$@"\n')
    program.chmod(0o755)
    try:
        yield folder
    finally:
        for file in folder.glob("*/controller.pid"):
            with suppress(psutil.Error):
                psutil.Process(int(file.read_text())).kill()
        for home in folder.glob("*/machine-*"):
            _take_away(home)


def jobs(state: Path) -> list[dict[str, Any]]:
    """Records of all jobs, newest first."""
    found = [json.loads(file.read_bytes()) for file in state.glob("*/job.json")]
    return sorted(found, key=lambda job: int(job["job_id"]), reverse=True)


def _write(job: dict[str, Any], folder: Path) -> None:
    new = folder / "job.json.new"
    new.write_text(json.dumps(job))
    new.replace(folder / "job.json")


def _launch(state: Path, words: list[str]) -> None:
    task = yaml.safe_load(Path(words[-1]).read_text())
    number = len(jobs(state)) + 1
    folder = state / f"{number}"
    folder.mkdir()
    names = [word for option, word in pairwise(words) if option == "--secret"]
    asked = {"resources": f"{task['num_nodes']}x[CPU:{task['resources']['cpus']}]"}
    variables = task.get("envs", {}) | {name: os.environ[name] for name in names}
    (folder / "task.json").write_text(json.dumps(task))
    _write({"job_id": number, "job_name": task["name"], "status": "PENDING", "recovery_count": 0} | asked, folder)
    with (folder / "controller.log").open("wb") as log:
        command = [sys.executable, __file__, str(state), "controller", str(number)]
        controller = subprocess.Popen(
            command, env=os.environ | variables, stdout=log, stderr=log, start_new_session=True
        )
    (folder / "controller.pid").write_text(f"{controller.pid}")
    sys.stdout.write(f"Managed Job ID: {number}\n")


def _take_away(home: Path) -> None:
    """Kill everything that runs on a machine, and delete its disk."""
    while True:
        left = []
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                if one.environ().get("HOME") == str(home) and one.status() != psutil.STATUS_ZOMBIE:
                    left.append(one)
        if not left:
            break
        for one in left:
            with suppress(psutil.Error):
                one.kill()
        time.sleep(_POLL_S)
    shutil.rmtree(home)


def _control(folder: Path) -> None:
    """What SkyPilot's controller does for a job, until it has ended."""
    task, job = json.loads((folder / "task.json").read_text()), json.loads((folder / "job.json").read_text())
    recovery = task["resources"].get("job_recovery", {})
    preempt, cancel = folder / "preempt", folder / "cancel"
    while True:
        home = folder / f"machine-{job['recovery_count']}"
        home.mkdir()
        _write(job := job | {"status": "RUNNING", "start_at": time.time()}, folder)
        machine = {
            "HOME": str(home),
            "SKYPILOT_NODE_RANK": "0",
            "SKYPILOT_NODE_IPS": "127.0.0.1",
            "SKYPILOT_NUM_NODES": "1",
            "SKYPILOT_NUM_GPUS_PER_NODE": "0",
        }
        with (folder / "output").open("ab") as output:
            script = subprocess.Popen(
                ["bash", "-c", task["run"]], cwd=home, env=os.environ | machine, stdout=output, stderr=output
            )
        while (code := script.poll()) is None and not preempt.exists():
            if cancel.exists() and job["status"] != "CANCELLING":
                _write(job := job | {"status": "CANCELLING"}, folder)
                script.send_signal(signal.SIGTERM)
            time.sleep(_POLL_S)
        _take_away(home)
        script.wait()
        ended = {"end_at": time.time()}
        if cancel.exists():
            return _write(job | ended | {"status": "CANCELLED"}, folder)
        if code == 0:
            return _write(job | ended | {"status": "SUCCEEDED"}, folder)
        if code is not None and code not in recovery.get("recover_on_exit_codes", []):
            reason = f"Job exited with exit code {code}. To see the details, run: sky jobs logs {job['job_id']}"
            return _write(job | ended | {"status": "FAILED", "failure_reason": reason}, folder)
        preempt.unlink(missing_ok=True)
        _write(job := job | {"status": "RECOVERING", "recovery_count": job["recovery_count"] + 1}, folder)


def main(state: Path, words: list[str]) -> None:
    """Do what `sky` is called for."""
    match words:
        case ["controller", number]:
            _control(state / number)
        case ["jobs", "launch", *rest]:
            _launch(state, rest)
        case ["jobs", "queue", *_]:
            sys.stdout.write(json.dumps(jobs(state), indent=2) + "\n")
        case ["jobs", "cancel", "--yes", number]:
            (state / number / "cancel").touch()
        case ["jobs", "logs", *_, number]:
            for line in (state / number / "output").read_text().splitlines():
                sys.stdout.write(f"(head, rank=0, pid=1) {line}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
