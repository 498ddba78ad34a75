"""Run real ranks on a tiny model, without the agent and the supervisor around them."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import yaml

from tests.fakes import effective_rows, read_rows
from tests.worker.ranks import FORKSERVER
from trainworks.config.layout import Layout
from trainworks.config.load import parse_run_file
from trainworks.host.network import reserve
from trainworks.host.probe import probe_host
from trainworks.plan.run.layout import choose_layouts
from trainworks.plan.run.plan import make_plan
from trainworks.plan.run.pricing import run_job
from trainworks.plan.run.processes import choose_processes
from trainworks.plan.run.steps import num_steps
from trainworks.plan.shapes.transformer import shape_of_hf_config, shape_of_model
from trainworks.record.calibration import Calibration, GemmRate
from trainworks.record.events.log import read_events
from trainworks.record.manifest import complete_checkpoints
from trainworks.record.metrics import MetricsRow
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir
from trainworks.worker.data.card import DataFolders
from trainworks.worker.data.preparation import prepare_evaluation, training_side
from trainworks.worker.data.prepare import prepare

CALIBRATION = Calibration(
    device="cpu",
    precision="fp32",
    num_ranks=2,
    threads_per_rank=1,
    gemms=(GemmRate(m=1, n=1, k=1, flops_per_s=1e10),) * 3,
    attention_flops_per_s=1e10,
    memory_bytes_per_s=1e10,
    optimizer_params_per_s=1e9,
    op_overhead_s=1e-5,
    all_reduce_latency_s=1e-4,
    all_reduce_bytes_per_s=1e9,
    baseline_bytes=300_000_000,
    seconds=1.0,
)


def write_corpus(folder: Path, *, words: int = 30_000) -> Path:
    """A few files of made-up words, the same every time."""
    folder.mkdir()
    generator = random.Random(0)
    vocabulary = ["".join(generator.choices("abcdefghijklmnop", k=generator.randint(2, 7))) for _ in range(300)]
    for number in range(3):
        text = " ".join(generator.choices(vocabulary, k=words // 3))
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    return folder


def run_file_text(corpus: Path, **changes: Any) -> str:
    """The run file of a tiny model; `changes` maps dotted fields to values."""
    fields: dict[str, Any] = {
        "name": "tiny",
        "workload": {
            "task": "causal-lm",
            "model": {"architecture": "llama", "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2},
            "data": {"source": str(corpus), "sequence_length": 32, "vocabulary": 400},
            "precision": "fp32",
            "global_batch": 8,
            "train_for": "24 steps",
            "optimizer": {"lr": 3e-3, "warmup": "4 steps"},
        },
        "cluster": {"engine": "local", "processes_per_node": 2},
        "checkpoint": {"every": "8 steps"},
    }
    for dotted, value in changes.items():
        *parents, last = dotted.split("__")
        target = fields
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
    return yaml.safe_dump(fields)


@dataclasses.dataclass
class TinyRun:
    """A run directory with everything that its ranks read."""

    run_dir: RunDir
    data: DataFolders
    world_size: int

    @property
    def data_folder(self) -> Path:
        """Folder of the training data."""
        return self.data.train

    def rows(self) -> list[MetricsRow]:
        """The history that led to the final weights."""
        return effective_rows(self.run_dir.metrics_file)

    def curve(self) -> list[tuple[float, float]]:
        """Loss and gradient norm of every step, to the last bit."""
        return [(row["loss"], row["grad_norm"]) for row in self.rows()]

    def train(
        self, *, until: Callable[[], bool] | None = None, kill: int = signal.SIGKILL, before: int | None = None
    ) -> list[int | None]:
        """Start all ranks and wait; once `until` holds, send the signal `kill` to all. Returns exit codes.

        Until then no rank begins the step `before`: a busy machine may stop this process for longer than the whole run
        takes, and what is to happen in the middle of the run would come after its end.
        """
        with _reserved_port() as port:
            return self._train(port, until, kill, before)

    def _train(self, port: int, until: Callable[[], bool] | None, kill: int, before: int | None) -> list[int | None]:
        here = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "TRAINWORKS_"))}
        gates = [FORKSERVER.Pipe(duplex=False) for _ in range(self.world_size if before is not None else 0)]
        ranks = []
        for number in range(self.world_size):
            gate = (before, gates[number][0]) if gates else None
            arguments = (number, self.run_dir.path, self.data, self.world_size, port, os.getpid(), here, gate)
            ranks.append(FORKSERVER.Process(target=_rank, args=arguments))
            ranks[-1].start()
        try:
            while until is not None and any(rank.is_alive() for rank in ranks):
                if until():
                    _signal_all(ranks, kill)
                    break
                time.sleep(0.002)
        finally:
            for end in (end for gate in gates for end in gate):
                end.close()
        for rank in ranks:
            rank.join(540)  # below the time limit of a test
        return [rank.exitcode for rank in ranks]

    def step_is_recorded(self, step: int) -> Callable[[], bool]:
        """A condition for `until`."""
        return lambda: any(row["step"] >= step for row in read_rows(self.run_dir.metrics_file))

    def a_checkpoint_is_complete(self) -> bool:
        """A condition for `until`."""
        return bool(complete_checkpoints(self.run_dir))

    def checkpoint_is_being_written(self, step: int) -> Callable[[], bool]:
        """Files of that checkpoint exist, its manifest perhaps not yet."""
        return lambda: any(self.run_dir.checkpoint(step).glob("*.safetensors"))


@contextmanager
def _reserved_port() -> Iterator[int]:
    """A port on which rank 0 can listen, and which the system gives nobody else before: bound, not listening."""
    with reserve() as reserved:
        yield reserved.getsockname()[1]


def _signal_all(ranks: list[ForkServerProcess], number: int) -> None:
    for rank in ranks:
        if rank.is_alive() and rank.pid is not None:
            with suppress(ProcessLookupError):  # it has lost a rank that was killed before it, and has ended since
                os.kill(rank.pid, number)


def _rank(
    rank: int,
    run_path: Path,
    data: DataFolders,
    world_size: int,
    port: int,
    parent: int,
    env: dict[str, str],
    gate: tuple[int, Connection] | None,
) -> None:
    """Train as one rank.

    Args:
        rank: its number.
        run_path: folder of the run.
        data: folders of its data.
        world_size: number of ranks.
        port: where rank 0 listens.
        parent: process id of this test.
        env: variables of this test, which the fork server, started by the first of them, does not have.
        gate: a step, and a pipe whose other end is closed when the step may begin.
    """
    import torch

    from trainworks.worker.train import train

    if gate is not None:
        _wait_before(*gate)
    torch.seed()  # random in every process, as it is where each agent has a fork server of its own
    os.environ |= env | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    train(str(run_path), str(data.train), 0, parent, None, data.evaluation)


def _wait_before(step: int, gate: Connection) -> None:
    """No step from this one on begins before the other end of `gate` is closed."""
    from trainworks.worker.loop import Trainer

    begin = Trainer._train_step

    def train_step(trainer: Trainer, number: int, *others: Any) -> Any:
        if number >= step:
            gate.poll(None)
        return begin(trainer, number, *others)

    Trainer._train_step = train_step  # type: ignore[method-assign]


def make_run(folder: Path, corpus: Path, cache: Path, **changes: Any) -> TinyRun:
    """Plan a tiny run with made-up rates, prepare its data, and write what its ranks read."""
    run_file, _ = parse_run_file(run_file_text(corpus, **changes), name="tiny.yaml")
    workload = run_file.workload
    assert workload is not None
    processes = choose_processes(run_file, num_cores=1, num_accelerators=0)
    data = workload.data
    if workload.model.hf is not None:
        shape = shape_of_hf_config(json.loads((Path(workload.model.hf) / "config.json").read_bytes()))
    else:
        shape = shape_of_model(workload.model, vocabulary=data.vocabulary, sequence_length=data.sequence_length)
    written = run_file.layout or Layout(dp_replicate=processes.world_size)
    job = run_job(workload, shape, processes, calibration=CALIBRATION, memory_per_rank_bytes=10**10)
    layout = choose_layouts(job, written)[0].layout
    steps = num_steps(workload, tokens_in_data=None)
    run_dir = create_run_dir(folder, run_file.name)
    resolved = ResolvedRun(
        run_id=run_dir.run_id,
        created_at=time.time(),
        trainworks="test",
        run_file=run_file,
        working_folder=str(folder),
        processes=processes,
        host=probe_host(folder),
        plan=make_plan(run_file, shape, layout, processes, CALIBRATION, steps=steps).model_copy(
            update={"log_every_steps": 3}
        ),
        calibration=CALIBRATION,
    )
    run_dir.write_resolved(resolved)
    folder, _ = prepare(data, cache, side=training_side(workload.eval))
    held_out = prepare_evaluation(data, workload.eval, folder, cache)
    return TinyRun(run_dir, DataFolders(folder, held_out), processes.world_size)


def events(run: TinyRun, kind: str) -> list[Any]:
    """Events of one kind; of a line that a rank is writing there may be a part, which does not count."""
    return [event for event in read_events(run.run_dir.events_file) if event["kind"] == kind]
