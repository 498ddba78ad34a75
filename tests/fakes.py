"""Stand-ins at the seams of the program, and the small objects that many tests begin with."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tests.plan.shapes import workload
from trainworks.agent.node_agents import Nodes
from trainworks.config.run_file import RunFile
from trainworks.host.process import Output
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.record.environment import HostFacts
from trainworks.record.events.log import append_event, read_lines_from
from trainworks.record.metrics import MetricsRow
from trainworks.record.processes import Processes
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir

LAUNCH_AT = 1_760_000_000.0
HOST = HostFacts(
    hostname="ada-1",
    operating_system="Debian GNU/Linux 12",
    processor="AMD EPYC 9454",
    processor_formats=("bf16",),
    num_cores=2,
    memory_bytes=16 * 10**9,
    disk_free_bytes=10**11,
    python="3.11.2",
    packages={"torch": "2.13.0"},
)


class FakeClock:
    """A clock that stands still until somebody sleeps; what was planned for a time happens during that sleep."""

    def __init__(self, now: float = LAUNCH_AT) -> None:
        self._now = now
        self._planned: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Advance at once."""
        self._now += seconds
        if self._now > LAUNCH_AT + 3600:
            raise TimeoutError("an hour of fake time has passed: somebody waits for ever")
        due = [action for at, action in self._planned if at <= self._now]
        self._planned = [(at, action) for at, action in self._planned if at > self._now]
        for action in due:
            action()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Plan something."""
        self._planned.append((self._now + seconds, action))


@dataclass(frozen=True)
class Life:
    """One start of an agent: it writes events, and ends after `seconds`."""

    exit_code: int
    seconds: float = 1.0
    says: Sequence[tuple[Any, dict[str, Any]]] = ()


class FakeAgent:
    """A process that ends by the clock."""

    def __init__(self, clock: FakeClock, life: Life) -> None:
        self._clock = clock
        self._exit_code = life.exit_code
        self._ends_at = clock.now() + life.seconds

    def exit_code(self) -> int | None:
        """None until its time has come."""
        return self._exit_code if self._clock.now() >= self._ends_at else None

    def end(self, exit_code: int) -> None:
        """End now, unless it has ended."""
        if self.exit_code() is None:
            self._exit_code, self._ends_at = exit_code, self._clock.now()


@dataclass
class Asked:
    """What somebody asked of the nodes."""

    starts: list[int] = field(default_factory=list)
    stops: int = 0
    kills: int = 0


class FakeNodes(Nodes):
    """Nodes whose lives are written down in advance, one list per node; they restart as the trainer's do."""

    def __init__(
        self, run_dir: RunDir, resolved: ResolvedRun, clock: FakeClock, lives: Sequence[Sequence[Life]]
    ) -> None:
        super().__init__(run_dir, resolved)
        self._clock = clock
        self._lives = [list(node) for node in lives]
        self.asked = Asked()
        self.answer: int | None = 0
        """Exit code with which the agents obey a request to stop; None: they do not."""
        self.together = False
        """Whether all nodes start again when one is lost, as those of a command do."""

    def _prepare(self) -> None:
        pass

    def restartable(self, exit_code: int) -> bool:
        return exit_code < 0

    def restart(self, node: int) -> None:
        for other in self._agents if self.together else (node,):
            self._start(other)

    def ask_to_stop(self) -> None:
        self.asked.stops += 1
        if self.answer is not None:
            self._end_all(self.answer)

    def kill_all(self) -> None:
        self.asked.kills += 1
        self._end_all(-signal.SIGKILL)

    def _end_all(self, exit_code: int) -> None:
        for agent in self._agents.values():
            agent.end(exit_code)

    def _start(self, node: int) -> None:
        self.asked.starts.append(node)
        super()._start(node)

    def _agent(self, node: int) -> Any:
        life = self._lives[node].pop(0)
        agent = FakeAgent(self._clock, life)
        for kind, fields in life.says:
            append_event(self._run_dir.events_file, {"kind": kind, **fields})
        return agent

    def wait(self, timeout_s: float) -> None:
        self._clock.sleep(timeout_s)


class FakeSlurm:
    """Slurm's programs, as `host.process.run` would run them: answers by program, and what was asked.

    An answer is stdout, an Output, an exception to be raised, or a list of these, one per call.
    """

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.calls: list[list[str]] = []
        self.scripts: list[str] = []
        self.env: dict[str, str] = {}

    def __call__(
        self,
        command: Sequence[str],
        *,
        timeout_s: float,
        env: dict[str, str],
        stdin: str | None,
        pass_fds: Sequence[int] = (),
        keeps_stderr: bool = False,
    ) -> Output:
        """One call of a program."""
        self.calls.append(list(command))
        self.env = env
        if stdin is not None:
            self.scripts.append(stdin)
        answer = self._answers.get(command[0], "")
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Output) else Output(0, answer, "")

    def asked(self, program: str) -> list[str]:
        """The calls of one program, as a shell would write them."""
        return [" ".join(call) for call in self.calls if call[0] == program]


def processes(nodes: int = 1, processes_per_node: int = 1) -> Processes:
    """Ranks of one thread on CPUs."""
    return Processes(nodes=nodes, processes_per_node=processes_per_node, threads_per_process=1, device="cpu")


def job(kind: Any = "training", *, nodes: int = 1, max_restarts: int = 0, **sections: Any) -> ResolvedRun:
    """A resolved run of one rank per node."""
    work = {"workload": workload()} if kind == "training" else {"run": "true"}
    written = {"name": "demo", "recover": {"max_restarts": max_restarts}} | work | sections
    return resolved_command(run_file=RunFile.model_validate(written), processes=processes(nodes))


def on_engine(resolved: ResolvedRun, engine: str) -> ResolvedRun:
    """The same run on a cluster of another backend."""
    cluster = resolved.run_file.cluster.model_copy(update={"engine": engine})
    return resolved.model_copy(update={"run_file": resolved.run_file.model_copy(update={"cluster": cluster})})


def spec(**changes: Any) -> JobSpec:
    """A job spec of four nodes of eight accelerators."""
    node = NodeResources(accelerators=8, accelerator="h100")
    defaults: dict[str, Any] = {"run_id": "demo-1", "name": "demo", "min_nodes": 4, "max_nodes": 4, "node": node}
    return JobSpec(**(defaults | {"working_folder": "/home/ada"} | changes))


def resolved_command(run_id: str = "demo-1", **changes: Any) -> ResolvedRun:
    """A resolved run of the command `true`."""
    resolved = ResolvedRun(
        run_id=run_id,
        created_at=LAUNCH_AT,
        trainworks="0.1.0",
        run_file=RunFile(name="demo", run="true"),
        working_folder="/",
        processes=processes(),
        host=HOST,
    )
    return resolved.model_copy(update=changes)


def metrics_row(step: int, *, attempt: int = 1, step_s: float = 0.1, **changes: Any) -> MetricsRow:
    """Step N of a run whose steps take 100 ms, all of it compute."""
    row = MetricsRow(
        step=step,
        attempt=attempt,
        t=LAUNCH_AT + step * step_s,
        loss=4.0,
        grad_norm=1.0,
        lr=3e-4,
        tokens=1000,
        step_s=step_s,
        data_s=0.0,
        compute_s=step_s,
        communication_s=0.0,
        optimizer_s=0.0,
        checkpoint_s=0.0,
        other_s=0.0,
    )
    return row | changes  # type: ignore[return-value]


def read_rows(file: Path) -> list[MetricsRow]:
    """All complete rows of a metrics file, as they were written."""
    return cast(list[MetricsRow], read_lines_from(file, 0)[0])


def effective_rows(file: Path) -> list[MetricsRow]:
    """The last row of every step, in order of the steps: the history that led to the final weights."""
    effective: list[MetricsRow] = []
    for row in read_rows(file):
        while effective and effective[-1]["step"] >= row["step"]:
            effective.pop()
        effective.append(row)
    return effective


SMALL_WORKLOAD = """\
workload:
  task: causal-lm
  model: {architecture: llama, layers: 1, hidden: 32, heads: 2}
  data: {source: text.txt, sequence_length: 32, vocabulary: 300}
  global_batch: 2
  train_for: 4000 steps
"""
"""Seconds of training for a run file, from `text.txt` in the current folder."""
