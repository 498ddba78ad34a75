"""One node of a command: `... trainworks.agent.command_agent RUN_DIR NODE PARENT PORTS ATTEMPT ADDRESSES SERVICES`.

Starts the command's processes with the variables of `job.frameworks`; the first that fails ends the others. It needs no
torch: the command may be in any framework, or in none. PARENT is the process to end with, ADDRESSES are those of all
nodes, and SERVICES a port of each in a job with roles.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from trainworks.agent.environments.build import BuiltEnvironment, build
from trainworks.agent.environments.containers import ContainerRuntime, mark
from trainworks.agent.environments.start import note_failure, record_environment
from trainworks.agent.launch import run_mark
from trainworks.agent.script_metrics import ScriptMetricsReader, tracker_environment
from trainworks.errors import TrainworksError
from trainworks.files import write_atomic
from trainworks.host import process
from trainworks.host.node_usage import follow_usage
from trainworks.host.notices import follow_notices
from trainworks.jobs.environment import KEPT_VARIABLES, default_environment, role_environment
from trainworks.jobs.frameworks import Rendezvous, command_environment, setup_environment
from trainworks.jobs.program import shell_of
from trainworks.record.events.job import AgentStartedEvent, FailureEvent
from trainworks.record.events.training import AttemptEvent
from trainworks.record.exit_code import as_exit_code
from trainworks.record.metrics import TOKENS_PER_STEP
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir

_POLL_S = 0.02
_NOTES = 4
"""Lines in which to look for an exception with notes below it."""
_GRACE_S = 5.0
"""Grace of ranks that end because another one failed; after a request to stop the job's own grace holds."""


class _CommandNode:
    """A node of a command; `known` are the variables by which the roles of the job find each other."""

    def __init__(
        self, run_dir: RunDir, whole: ResolvedRun, node: int, rendezvous: Rendezvous, known: Mapping[str, str]
    ) -> None:
        self._run_dir = run_dir
        self._group = whole.processes.group_of(node)
        self._leads = self._group.role in (None, whole.leading_role)
        self._resolved = resolved = whole.on_node(node)
        self._node = node
        self._place = node - self._group.first_node
        self._ranks = self._group.ranks_of(node)
        self._rendezvous = rendezvous
        self._known = known
        self._stopping = False
        self._environment: BuiltEnvironment | None = None
        self._container = _container_of(run_dir, resolved)

    def ask_to_stop(self, number: int, frame: object) -> None:
        self._stopping = True

    def run(self) -> int:
        """Set up, start all ranks, wait; returns the first bad exit code, or 0. No container is left behind."""
        try:
            return self._run()
        finally:
            if self._container is not None:
                self._container.remove(self._container_names())

    def _run(self) -> int:
        if (code := self._build_environment() or self._set_up()) != 0:
            return code
        if self._place == 0:
            event = AttemptEvent(
                kind="attempt", attempt=self._rendezvous.attempt, world_size=self._resolved.processes.world_size
            )
            self._run_dir.note(event if self._group.role is None else event | {"role": self._group.role})
        with suppress(FileExistsError):  # `exist_ok` looks at it again, when a short first node has removed it
            self._run_dir.script_trackers.mkdir()
        own = self._ranks if self._leads else range(0)  # metrics of a job are those of one role
        metrics = ScriptMetricsReader(
            self._run_dir, self._resolved, own, self._rendezvous.attempt, self._group.first_rank
        )
        ranks = [self._start(local_rank) for local_rank in range(len(self._ranks))]
        metrics.begin([rank.pid for rank in ranks])
        code = self._wait_for(ranks)
        metrics.end(whole=code == 0)
        return code

    def _wait_for(self, ranks: list[process.Child]) -> int:
        follow_usage(
            self._run_dir,
            self._node,
            every_s=self._resolved.run_file.job.idle.sample_every_s,
            on_accelerators=self._resolved.processes.device == "cuda",
            # Under Slurm an `srun` of the ranks' own may have started processes here, too.
            marks=run_mark(self._run_dir) if "SLURM_JOB_ID" in os.environ else None,
        )
        follow_notices(self._run_dir, self._node, self._resolved.run_file.recover.notices)
        while True:
            codes = [rank.exit_code() for rank in ranks]
            failed = next((index for index, code in enumerate(codes) if code), None)
            if failed is not None and not self._stopping:
                self._note_failure(failed, ranks[failed].pid, codes[failed] or 0)
            if failed is not None or self._stopping:
                process.end_descendants(self._resolved.run_file.job.grace if self._stopping else _GRACE_S)
                return as_exit_code(codes[failed] or 0) if failed is not None else 128 + signal.SIGTERM
            if all(code == 0 for code in codes):
                return 0
            process.wait_any([rank for rank, code in zip(ranks, codes, strict=True) if code is None], _POLL_S)

    def _build_environment(self) -> int:
        """Build the packages of the ranks on this node; returns 0, or the exit code of a failure."""
        wanted = self._resolved.environment
        try:
            if self._container is not None:
                record_environment(self._run_dir, self._node, self._container.facts(wanted))
                return 0
            if wanted is None or wanted.kind == "image":
                return 0
            self._environment = build(wanted, trains=False, stopping=lambda: self._stopping)
        except TrainworksError as error:
            if self._stopping:
                return 128 + signal.SIGTERM
            note_failure(self._run_dir, self._node, error)
            return error.exit_code
        record_environment(self._run_dir, self._node, self._environment.facts)
        return 0

    def _set_up(self) -> int:
        setup = self._resolved.run_file.setup
        if setup is None:
            return 0
        log = self._run_dir.node_log(self._node)
        child = process.spawn(self._shell(setup), log=log, env=setup_environment(self._env(0)), folder=self._folder())
        while (code := child.exit_code()) is None and not self._stopping:
            process.wait_any([child], _POLL_S)
        if self._stopping:
            process.end_descendants(_GRACE_S)
            return 128 + signal.SIGTERM
        if code:
            words = [f"setup{self._of_role} exited with code {code}", _tail(log)]
            self._note("user_error", None, code, ": ".join(filter(None, words)))
        return as_exit_code(code or 0)

    def _start(self, local_rank: int) -> process.Child:
        run_file = self._resolved.run_file
        command = list(self._resolved.command) if self._resolved.command else self._shell(run_file.run or "")
        self._run_dir.note_rank_start(self._ranks[local_rank])
        log, env = self._run_dir.rank_log(self._ranks[local_rank]), self._env(local_rank)
        if self._container is not None:
            env = mark(env)
            command = self._container.command(command, self._container_names()[local_rank], env, self._folder())
        try:
            return process.spawn(command, log=log, env=env, folder=self._folder())
        except OSError as error:
            self._note("launch_failed", self._ranks[local_rank], 127, f"cannot start `{command[0]}`: {error.strerror}")
            process.end_descendants(_GRACE_S)
            sys.exit(127)

    def _container_names(self) -> list[str]:
        """Names of the containers of this node, one for each rank; another attempt has others."""
        mark = f"{self._run_dir.run_id}-{os.getpid()}"
        return [f"trainworks-{mark}-rank-{rank}" for rank in self._ranks]

    def _folder(self) -> Path:
        return Path(self._resolved.working_folder)

    def _env(self, local_rank: int) -> dict[str, str]:
        run_file = self._resolved.run_file
        ranks = command_environment(
            run_file.framework, self._resolved.processes, self._rendezvous, node=self._place, local_rank=local_rank
        )
        ranks |= {**self._known, "SKYPILOT_TASK_ID": self._run_dir.run_id, "TRAINWORKS_COMMAND": "1"}
        if (plan := self._resolved.plan) is not None:
            ranks |= {TOKENS_PER_STEP: str(plan.tokens_per_step)}
        own = run_mark(self._run_dir) | run_file.written_envs
        given = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        env = default_environment(self._resolved.processes) | os.environ | ranks | given | own
        if run_file.metrics.source not in ("output", "none"):
            env |= tracker_environment(self._run_dir.script_trackers.resolve(), env)
        return self._environment.variables(env) if self._environment else env

    def _shell(self, script: str) -> list[str]:
        """Bash that stops at the first error.

        A SkyPilot task relies on a bash that continues. A batch script names its own interpreter, which gets a file, as
        from Slurm: not every interpreter takes a text.
        """
        if self._resolved.run_file.framework == "slurm":
            write_atomic(self._run_dir.batch_script, script, durable=False)
            return [*shell_of(script), str(self._run_dir.batch_script)]
        strict = ["-euo", "pipefail"] if self._resolved.processes.starts != "per_node" else []
        return ["/bin/bash", *strict, "-c", script]

    @property
    def _of_role(self) -> str:
        return "" if self._group.role is None else f" of role `{self._group.role}`"

    def _note_failure(self, local_rank: int, pid: int, code: int) -> None:
        rank = self._ranks[local_rank]
        ending = f"was killed by {process.signal_name(-code)}" if code < 0 else f"exited with code {code}"
        tail = _tail(self._run_dir.rank_log(rank))
        message = f"the command{self._of_role} {ending}"
        message += f": {tail}" if tail else ""
        self._note("killed" if code < 0 else "user_error", rank, code, message, pid)

    def _note(self, cause: str, rank: int | None, code: int, message: str, pid: int | None = None) -> None:
        event = FailureEvent(
            kind="failure",
            attempt=self._rendezvous.attempt,
            rank=rank,
            node=self._node,
            host=socket.gethostname(),
            pid=pid,
            cause=cause,
            exit_code=code,
            signal=process.signal_name(-code) if code < 0 else None,
            message=message,
        )
        self._run_dir.note(event if self._group.role is None else event | {"role": self._group.role})


def _container_of(run_dir: RunDir, resolved: ResolvedRun) -> ContainerRuntime | None:
    """How to start containers on this machine; None for ranks outside of them, and on clusters."""
    options = resolved.run_file.cluster.local.container
    if options is None or resolved.run_file.cluster.engine != "local":
        return None
    folders = (run_dir.path.resolve(), Path(resolved.working_folder))
    return ContainerRuntime(options, folders, on_accelerators=resolved.processes.device == "cuda")


def _tail(log: Path) -> str:
    """The last line with a word in it; programs print their error there.

    mpirun rules a line below it, and a Python exception may have notes below it, as those of JAX do.
    """
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    said = [line.rstrip() for line in text.splitlines() if re.search(r"\w", line)]
    headings = [index for index, line in enumerate(said) if line.startswith("Traceback (most recent call last)")]
    trace = said[headings[-1] + 1 :] if headings else []
    exception = next((line for line in trace if not line.startswith((" ", "\t"))), "")
    last = exception if exception in said[-_NOTES:] else "".join(said[-1:])
    return last.strip()[:300]


def main(run_folder: str, node: str, parent: str, ports: str, attempt: str, addresses: str, services: str = "") -> int:
    """Run this node's ranks to their end."""
    process.adopt_orphans()
    run_dir = RunDir(Path(run_folder))
    resolved, every = run_dir.read_resolved(), addresses.split(",")
    group = resolved.processes.group_of(int(node))
    nodes = tuple(every[group.nodes.start : group.nodes.stop])  # of a script that is Slurm's job, the first alone
    rendezvous = Rendezvous(
        address=nodes[0],
        nodes=nodes,
        ports=tuple(map(int, ports.split(","))),
        hostfile=str(run_dir.hostfile(group.role).resolve()),
        attempt=int(attempt),
        as_root=os.geteuid() == 0,
    )
    service_ports = [int(port) for port in services.split(",") if port]
    known = role_environment(resolved.processes, node=int(node), addresses=every, ports=service_ports)
    agent = _CommandNode(run_dir, resolved, int(node), rendezvous, known)
    for number in (signal.SIGTERM, signal.SIGURG):
        signal.signal(number, agent.ask_to_stop)
    if run_dir.stop_file.exists():  # asked for before there was somebody to hear it
        return 128 + signal.SIGTERM
    if node == "0" and parent != "0" and resolved.run_file.cluster.engine == "local":  # a cluster finds out itself
        process.when_ended(int(parent), partial(run_dir.note_loss, int(parent)))
    process.die_with_parent(signal.SIGTERM, int(parent) or None)
    run_dir.note(AgentStartedEvent(kind="agent_started", node=int(node)))
    return agent.run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
