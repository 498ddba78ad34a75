"""Driver of a job on Ray's head node: starts the program of every node, prints their output, and ends them.

The backend uploads this file with `gang.json` beside it, as the package `trainworks_gang`. It needs only Ray there, not
Trainworks.

    python -m trainworks_gang                    run the gang of gang.json
    python -m trainworks_gang end                kill all processes of that gang
    python __main__.py guard MARK SECONDS        end the processes that a lost node agent left on its node

The nodes are bundles of one placement group (STRICT_SPREAD): all or none, on different nodes of Ray. An actor in each
bundle runs the node's script in bash, in its own session. The last line of the job reports how it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess  # noqa: TID251, Trainworks is not installed on Ray's nodes
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ENDED = "trainworks: ended "
NAMESPACE = "trainworks"
MARK = "TRAINWORKS_GANG"
PATIENCE_S = 5.0
"""Grace of the other nodes after one has failed."""
NODE_LOST = 75
MISSING_VARIABLE = -1
"""Placeholder for the exit code of a program that was not started."""
STOPPED = 143
MAX_LINES = 500
POLL_S = 1.0


def description() -> dict[str, Any]:
    """Description of the gang, which the backend wrote beside this file."""
    content: dict[str, Any] = json.loads(Path(__file__).with_name("gang.json").read_text(encoding="utf-8"))
    return content


class Node:
    """Agent of one node; as an actor it holds the node's resources while it lives."""

    def __init__(self, gang: dict[str, Any], node: int) -> None:
        self._gang = gang
        self._mark = f"{gang['id']}/{node}"
        self._env = {"NODE_RANK": str(node), MARK: self._mark}
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_LINES)
        self._bash: subprocess.Popen[bytes] | None = None
        self._text: Any = None
        self._guard: Any = None
        self._threads: list[threading.Thread] = []

    def meet(self) -> tuple[str, int]:
        """Address of this node, and a free port on it."""
        import ray.util  # noqa: PLC0415, only where Ray is

        address = ray.util.get_node_ip_address()
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as free:
            free.bind((address, 0))
            return address, int(free.getsockname()[1])

    def start(self, env: dict[str, str]) -> None:
        """Run the node's script with these variables."""
        env = {**os.environ, **self._gang["envs"], **env, **self._env}
        if missing := [name for name in self._gang["envs_of_node"] if name not in env]:
            self._lines.put(f"trainworks: {missing[0]} is not set where Ray was started on this node ({node_name()})")
            self._lines.put(None)
            return
        reader, writer = os.pipe()
        guard = [sys.executable, __file__, "guard", self._mark, str(self._gang["grace_s"])]
        subprocess.run(
            ["/bin/sh", "-c", '"$@" < "/dev/fd/$0" &', str(reader), *guard],
            pass_fds=[reader],
            start_new_session=True,
            check=True,
        )
        os.close(reader)
        self._guard = os.fdopen(writer, "w")
        # A file, because `bash -c` would report the end of its jobs in the output.
        self._text = tempfile.NamedTemporaryFile("w", prefix="trainworks-", suffix=".sh", encoding="utf-8")  # noqa: SIM115
        self._text.write(self._gang["text"])
        self._text.flush()
        self._bash = subprocess.Popen(
            ["/bin/bash", self._text.name],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read_all, self._end_with_bash)]
        for thread in self._threads:
            thread.start()

    def _read_all(self) -> None:
        assert self._bash is not None and self._bash.stdout is not None
        with self._bash.stdout as output:
            for line in output:
                self._lines.put(line.decode(errors="replace").rstrip("\r\n"))
        self._lines.put(None)

    def _end_with_bash(self) -> None:
        """Wait for bash, and kill leftover processes, which would hold accelerators and the output."""
        assert self._bash is not None
        self._bash.wait()
        end_marked(self._mark, signal.SIGKILL)
        self._text.close()
        with contextlib.suppress(OSError):
            self._guard.write("done\n")
            self._guard.close()

    def read(self) -> tuple[list[str], int | None]:
        """New lines, or none after a timeout; and the exit code once there are no more lines."""
        lines: list[str] = []
        with contextlib.suppress(queue.Empty):
            line = self._lines.get(timeout=POLL_S)
            while line is not None:
                lines.append(line)
                if len(lines) == MAX_LINES:
                    return lines, None
                line = self._lines.get(timeout=0.02)
            return lines, self._exit_code()
        return lines, None

    def _exit_code(self) -> int:
        if self._bash is None:
            return MISSING_VARIABLE
        code = self._bash.wait()
        for thread in self._threads:
            thread.join()
        return 128 - code if code < 0 else code

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM to bash, which forwards it, and SIGKILL to everything that is left after the grace."""
        if self._bash is None or self._bash.poll() is not None:
            return
        if grace_s > 0:
            self._bash.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._bash.wait(grace_s)
        end_marked(self._mark, signal.SIGKILL)


def node_name() -> str:
    """Host name of this machine."""
    return socket.gethostname()


def marked(mark: str) -> list[int]:
    """Processes on this machine with this mark in their environment."""
    variable = f"{MARK}={mark}".encode()
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if variable in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
    return pids


def end_marked(mark: str, number: signal.Signals) -> bool:
    """Signal all processes with this mark; returns whether there were any."""
    pids = marked(mark)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return bool(pids)


def guard(mark: str, grace_s: float) -> int:
    """Wait for the node agent to finish; if it dies, end the processes that it started."""
    if sys.stdin.readline():
        return 0
    end_marked(mark, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.2)  # noqa: TID251, Trainworks is not installed here
    end_marked(mark, signal.SIGKILL)
    return 0


class Driver:
    """Starts the gang, restarts it after failures, and watches it."""

    def __init__(self, gang: dict[str, Any]) -> None:
        import ray  # noqa: PLC0415, the guard does not need it

        self._ray = ray
        self._gang = gang
        self._actors: list[Any] = []
        self._group: Any = None
        self._stopping: str | None = None
        """Reason why all nodes were stopped: a user's request, or the time limit."""
        self._failure: dict[str, Any] | None = None

    def ask_to_stop(self, number: int, frame: object) -> None:
        """Signal handler: Ray sends SIGTERM when the job is stopped."""
        self._stopping = self._stopping or "stopped"

    def run(self) -> int:
        """Run all attempts; returns the exit code of the job."""
        for attempt in range(1, int(self._gang["max_restarts"]) + 2):
            self._release_nodes()
            self._failure = None
            self._attempt(attempt)
            if self._stopping is not None or self._failure is None:
                break
            say(f"trainworks: attempt {attempt}: {self._failure['message']}")
        return self._ended()

    def _ended(self) -> int:
        if self._stopping is None and self._failure is None:
            return 0
        report = {"cause": None, "exit_code": STOPPED, "message": "stopped on request"}
        if self._stopping == "time_limit":
            report = {"cause": "time_limit", "exit_code": STOPPED, "message": "time limit exceeded"}
        elif self._stopping is None and self._failure is not None:
            report = self._failure
        say(f"{ENDED}{json.dumps(report)}")
        code = report["exit_code"]
        assert isinstance(code, int)
        return code

    def _attempt(self, number: int) -> None:
        from ray.util.placement_group import placement_group  # noqa: PLC0415

        bundles = [dict(self._gang["bundle"]) for _ in range(self._gang["nodes"])]
        self._group = placement_group(bundles, strategy="STRICT_SPREAD", name=self._gang["id"])
        while self._stopping is None and not self._group.wait(POLL_S):
            pass
        if self._stopping is None:
            self._start(self._group, number)
            self._watch()

    def _release_nodes(self) -> None:
        """Release the nodes of the previous attempt; those of the last one are released with this process."""
        from ray.util.placement_group import remove_placement_group  # noqa: PLC0415

        for actor in self._actors:
            self._ray.kill(actor)
        if self._group is not None:
            remove_placement_group(self._group)
        self._actors, self._group = [], None

    def _start(self, group: Any, number: int) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: PLC0415

        bundle = dict(self._gang["bundle"])
        amounts = {
            "num_cpus": bundle.pop("CPU"),
            "num_gpus": bundle.pop("GPU", 0),
            "memory": bundle.pop("memory", None),
        }
        remote = self._ray.remote(Node)
        self._actors = [
            remote.options(
                name=f"{self._gang['id']}/{number}/{node}",
                namespace=NAMESPACE,
                max_concurrency=4,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, node),
                resources=bundle,
                **amounts,
            ).remote(self._gang, node)
            for node in range(self._gang["nodes"])
        ]
        try:
            addresses = self._ray.get([actor.meet.remote() for actor in self._actors])
            env = {
                "MASTER_ADDR": addresses[0][0],
                "MASTER_PORT": str(addresses[0][1]),
                "SKYPILOT_NODE_IPS": "\n".join(address for address, _ in addresses),
                "TRAINWORKS_ATTEMPT": str(number),
            }
            self._ray.get([actor.start.remote(env) for actor in self._actors])
        except self._ray.exceptions.RayError as error:
            self._fail_with(error, None)

    def _watch(self) -> None:
        """Print the output of the nodes until all of them have ended."""
        deadline = time.monotonic() + (self._gang["time_limit_s"] or float("inf"))
        stopped = self._failure is not None
        reads = {actor.read.remote(): node for node, actor in enumerate(self._actors)}
        while reads:
            ready, _ = self._ray.wait(list(reads), timeout=POLL_S)
            for reference in ready:
                node = reads.pop(reference)
                if self._print_output(reference, node):
                    reads[self._actors[node].read.remote()] = node
            if self._stopping is None and time.monotonic() > deadline:
                self._stopping = "time_limit"
            if not stopped and (self._stopping or self._failure):
                stopped = True
                self._stop_all(self._gang["grace_s"] if self._stopping else PATIENCE_S)

    def _print_output(self, reference: Any, node: int) -> bool:
        """Print new lines of one node; returns whether it may print more."""
        try:
            lines, code = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._fail_with(error, node)
            return False
        for line in lines:
            say(f"[node {node}] {line}")
        if code == MISSING_VARIABLE:
            self._fail(node, "environment", 3, lines[-1].removeprefix("trainworks: "))
        elif code:
            self._fail(node, "user_error" if code < 128 else "killed", code, f"node {node} exited with code {code}")
        return code is None

    def _fail_with(self, error: Exception, node: int | None) -> None:
        text = str(error)
        cause = "oom" if "OutOfMemory" in type(error).__name__ or "memory pressure" in text else "node_lost"
        where = "a node" if node is None else f"node {node}"
        why = " ".join(text.rpartition("The actor is dead because ")[2].split())
        self._fail(node, cause, NODE_LOST, f"{where} was lost: {why[:300]}")

    def _fail(self, node: int | None, cause: str, code: int, message: str) -> None:
        """Record the first failure; later ones follow from it."""
        if self._failure is None:
            self._failure = {"cause": cause, "exit_code": code, "node": node, "message": message}

    def _stop_all(self, grace_s: float) -> None:
        for actor in self._actors:
            actor.stop.remote(grace_s)


def say(line: str) -> None:
    """Print a line into the log of the job."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def end(gang: dict[str, Any]) -> int:
    """Kill all processes of a gang that another driver runs."""
    import ray  # noqa: PLC0415

    ray.init(log_to_driver=False, logging_level="error")
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    nodes = [ray.get_actor(name, namespace=NAMESPACE) for name in names if name.startswith(f"{gang['id']}/")]
    ray.wait([node.stop.remote(0.0) for node in nodes], num_returns=len(nodes), timeout=10.0) if nodes else None
    return 0


def main(arguments: list[str]) -> int:
    """Run the command in the arguments; returns the exit code."""
    if arguments[:1] == ["guard"]:
        return guard(arguments[1], float(arguments[2]))
    if arguments == ["end"]:
        return end(description())
    import ray  # noqa: PLC0415

    ray.init(log_to_driver=False, logging_level="error")
    driver = Driver(description())
    signal.signal(signal.SIGTERM, driver.ask_to_stop)
    return driver.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
