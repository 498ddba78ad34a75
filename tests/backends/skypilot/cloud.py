"""A cloud on this machine behind a program `sky`: `python cloud.py STATE jobs launch|queue|cancel|logs ...`.

It reads tasks as SkyPilot does, and runs their `run` with bash, SkyPilot's variables and a home folder of its own for
each node: the machine. A file `preempt` in the folder of a task takes its machines away, with all of their processes
and home folders; others are rented at once. An exit code of `recover_on_exit_codes` rents others, too, and so does any
other while `max_restarts_on_errors` allows it; every end returns them. The tasks of a job group run at the same time,
each in a folder of its own in that of the job; when the `primary_tasks` have ended, the others are cancelled. A
`workdir` is copied to the machines, where scripts begin in it. What does not end after a cancellation is taken away.

Files in STATE make the program fail: with `away` the API server answers no question but for output; with `loses
answers` it takes the next job, and is away before it has answered; `word` has another word for the status RUNNING.
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
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import yaml

_POLL_S = 0.05
_GRACE_S = 3.0
"""From the cancellation of a task to the end of its machines, at the longest."""
_AWAY = "sky.exceptions.ApiServerConnectionError: Could not connect to SkyPilot API server at http://127.0.0.1:46580."


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
        for home in folder.glob("**/machine-*"):
            _take_away(home)


def jobs(state: Path) -> list[dict[str, Any]]:
    """Records of all tasks: the newest job first, and its tasks in their order."""
    numbers = sorted(map(int, (folder.name for folder in state.glob("[0-9]*"))), reverse=True)
    return [_record(task) for number in numbers for task in _tasks(state / f"{number}")]


def _tasks(folder: Path) -> list[Path]:
    """Folders of the tasks of a job, in their order."""
    files = [*folder.glob("job.json"), *folder.glob("*/job.json")]
    return sorted((file.parent for file in files), key=lambda task: int(_record(task)["task_id"]))


def _record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "job.json").read_bytes())
    return found


def _write(job: dict[str, Any], folder: Path) -> None:
    new = folder / "job.json.new"
    new.write_text(json.dumps(job))
    new.replace(folder / "job.json")


def _launch(state: Path, words: list[str]) -> None:
    first, *others = yaml.safe_load_all(Path(words[-1]).read_text())
    group = first if first.get("execution") == "parallel" else None
    number = 1 + max((int(job["job_id"]) for job in jobs(state)), default=0)
    names = [word for option, word in pairwise(words) if option == "--secret"]
    secret = {name: os.environ[name] for name in names}
    common = {"job_id": number, "job_name": first["name"], "status": "PENDING", "recovery_count": 0}
    if group is not None:
        assert len({task["name"] for task in others}) == len(others) > 0
        common |= {"schedule_state": "ALIVE", "is_job_group": True}
    for index, task in enumerate(others if group else [first]):
        folder = state / f"{number}" / (task["name"] if group else "")
        folder.mkdir(parents=True)
        primary = (
            {"is_primary_in_job_group": task["name"] in group.get("primary_tasks", [task["name"]])} if group else {}
        )
        task["envs"] = task.get("envs", {}) | ({"SKYPILOT_JOBGROUP_NAME": group["name"]} if group else {})
        (folder / "task.json").write_text(json.dumps(task))
        asked = {"resources": f"{task['num_nodes']}x[CPU:{task['resources'].get('cpus', 1)}]"}
        _write(common | asked | primary | {"task_id": index, "task_name": task["name"]}, folder)
    with (state / f"{number}" / "controller.log").open("wb") as log:
        command = [sys.executable, __file__, str(state), "controller", str(number)]
        controller = subprocess.Popen(command, env=os.environ | secret, stdout=log, stderr=log, start_new_session=True)
    (state / f"{number}" / "controller.pid").write_text(f"{controller.pid}")
    if (state / "loses answers").exists():
        (state / "away").touch()
        sys.exit(_AWAY)
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
    tasks = _tasks(folder)
    deciding = [task for task in tasks if _record(task).get("is_primary_in_job_group", True)]
    with ThreadPoolExecutor(len(tasks)) as pool:
        running = {task: pool.submit(_control_task, task) for task in tasks}
        wait([running[task] for task in deciding])
        for task in tasks:
            if task not in deciding:
                (task / "cancel").touch()
    for task in tasks:
        job = _record(task)
        _write(job | ({"schedule_state": "DONE"} if "schedule_state" in job else {}), task)


def _start(task: dict[str, Any], folder: Path, homes: list[Path]) -> list[subprocess.Popen[bytes]]:
    """Start the script of a task on each of its machines."""
    scripts = []
    for rank, home in enumerate(homes):
        home.mkdir()
        where = home / "sky_workdir" if "workdir" in task else home
        if where != home:
            shutil.copytree(task["workdir"], where)
        machine = {
            "HOME": str(home),
            "SKYPILOT_NODE_RANK": str(rank),
            "SKYPILOT_NODE_IPS": "\n".join(["127.0.0.1"] * len(homes)),
            "SKYPILOT_NUM_NODES": str(len(homes)),
            "SKYPILOT_NUM_GPUS_PER_NODE": "0",
        }
        with (folder / f"output-{rank}").open("ab") as output:
            command, env = ["bash", "-c", task["run"]], os.environ | task["envs"] | machine
            scripts.append(subprocess.Popen(command, cwd=where, env=env, stdout=output, stderr=output))
    return scripts


def _run_once(task: dict[str, Any], folder: Path, job: dict[str, Any]) -> list[int | None]:
    """Rent machines for a task until it ends, or loses them; returns the exit codes that its scripts had before."""
    homes = [folder / f"machine-{job['recovery_count']}-{rank}" for rank in range(task["num_nodes"])]
    scripts = _start(task, folder, homes)
    codes: list[int | None] = [None]
    over_at = float("inf")
    while None in codes and not any(codes) and not (folder / "preempt").exists() and time.monotonic() < over_at:
        if (folder / "cancel").exists() and job["status"] != "CANCELLING":
            _write(job := job | {"status": "CANCELLING"}, folder)
            over_at = time.monotonic() + _GRACE_S
            for script in scripts:
                script.send_signal(signal.SIGTERM)
        time.sleep(_POLL_S)
        codes = [script.poll() for script in scripts]
    for home in homes:
        _take_away(home)
    for script in scripts:
        script.wait()
    return codes


def _control_task(folder: Path) -> None:
    """What SkyPilot's controller does for a task, until it has ended."""
    task, job = json.loads((folder / "task.json").read_text()), _record(folder)
    recovery, restarts = task["resources"].get("job_recovery", {}), 0
    while True:
        _write(job := job | {"status": "RUNNING", "start_at": time.time()}, folder)
        codes = _run_once(task, folder, job)
        ended, code = {"end_at": time.time()}, next((code for code in codes if code), None)
        if (folder / "cancel").exists():
            return _write(job | ended | {"status": "CANCELLED"}, folder)
        if not any(codes) and None not in codes:
            return _write(job | ended | {"status": "SUCCEEDED"}, folder)
        if code is not None and code not in recovery.get("recover_on_exit_codes", []):
            restarts += 1
            if restarts > recovery.get("max_restarts_on_errors", 0):
                reason = f"Job exited with exit code {code}. To see the details, run: sky jobs logs {job['job_id']}"
                return _write(job | ended | {"status": "FAILED", "failure_reason": reason}, folder)
        (folder / "preempt").unlink(missing_ok=True)
        _write(job := job | {"status": "RECOVERING", "recovery_count": job["recovery_count"] + 1}, folder)


def _print_queue(state: Path) -> None:
    text, word = json.dumps(jobs(state), indent=2), state / "word"
    sys.stdout.write((text.replace("RUNNING", word.read_text()) if word.exists() else text) + "\n")


def _print_logs(folder: Path) -> None:
    for file in sorted(folder.glob("output-*")):
        rank = file.name.removeprefix("output-")
        for line in file.read_text().splitlines():
            sys.stdout.write(f"({'head' if rank == '0' else f'worker{rank}'}, rank={rank}, pid=1) {line}\n")


def main(state: Path, words: list[str]) -> None:
    """Do what `sky` is called for."""
    match words:
        case ["jobs", "launch" | "queue" | "cancel", *_] if (state / "away").exists():
            sys.exit(_AWAY)
        case ["controller", number]:
            _control(state / number)
        case ["jobs", "launch", *rest]:
            _launch(state, rest)
        case ["jobs", "queue", *_]:
            _print_queue(state)
        case ["jobs", "cancel", "--yes", number]:
            for task in _tasks(state / number):
                (task / "cancel").touch()
        case ["jobs", "logs", *rest]:
            _print_logs(
                state.joinpath(*rest[rest.index("--tail") + 2 :])
            )  # the number of a job, and of one task its name


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
