"""Synthetic runs, written through the functions that write the real record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainworks.config.layout import ResolvedLayout
from trainworks.config.run_file import RunFile
from trainworks.record.environment import HostFacts
from trainworks.record.events.log import append_event
from trainworks.record.ledger import Ledger
from trainworks.record.memory import MemoryTerms
from trainworks.record.metrics import MetricsRow, append_metrics
from trainworks.record.model_shape import ModelShape
from trainworks.record.processes import Processes
from trainworks.record.resolved import Plan, ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir
from trainworks.record.status import RunStatus
from trainworks.record.step_time import StepTimeGroups
from trainworks.record.usage import NodeUsage
from trainworks.report.runs.summary import Report, build_report

LAUNCH_AT = 1_760_000_000.0
WORKLOAD = {
    "task": "causal-lm",
    "model": {"architecture": "llama", "layers": 6, "hidden": 256, "heads": 8},
    "data": {"source": "python-stdlib", "sequence_length": 256},
    "global_batch": 32,
    "train_for": "300 steps",
}
STEP_TERMS = {"data_s": 0.002, "compute_s": 0.08, "communication_s": 0.03, "optimizer_s": 0.006}


def make_plan(**changes: Any) -> Plan:
    """A plan whose step takes 100 ms: 80 compute, 12 communication, 6 optimizer, 2 data."""
    plan = Plan(
        model=ModelShape(
            layers=6,
            hidden=256,
            heads=8,
            kv_heads=8,
            head_dim=32,
            feed_forward=704,
            vocabulary=4096,
            max_sequence_length=256,
            gated_mlp=True,
            tie_embeddings=True,
            learned_positions=False,
            num_parameters=5_900_000,
        ),
        layout=ResolvedLayout(dp_replicate=1, dp_shard=2, cp=1, tp=1, pp=1, ep=1, micro_batch=8, grad_accum_steps=2),
        num_steps=300,
        tokens_per_step=8192,
        model_flops_per_token=38e6,
        peak_flops_per_s=8e12,
        peak_source="measured: best GEMM of the calibration",
        step_time=StepTimeGroups(compute_s=0.08, communication_s=0.012, optimizer_s=0.006, data_s=0.002),
        memory=MemoryTerms(
            baseline_bytes=350_000_000,
            weights_bytes=24_000_000,
            gradients_bytes=24_000_000,
            optimizer_bytes=48_000_000,
            activations_bytes=420_000_000,
            logits_bytes=134_000_000,
            checkpoint_bytes=0,
        ),
        checkpoint_bytes=71_000_000,
        checkpoint_every_steps=50,
        checkpoint_every_s=None,
        log_every_steps=10,
        run_time_s=40.0,
    )
    return plan.model_copy(update=changes)


class RunWriter:
    """Writes one run as time goes by on its own clock: `at` is now. `changes` are keys of its workload."""

    def __init__(
        self, root: Path, plan: Plan | None, command: str | None, name: str = "stdlib-lm", **changes: Any
    ) -> None:
        self.run_dir: RunDir = create_run_dir(root, name)
        self.at = LAUNCH_AT
        self.step = 0
        self.attempt_number = 0
        work = {"run": command} if command else {"workload": WORKLOAD | changes}
        self.run_dir.write_resolved(
            ResolvedRun(
                run_id=self.run_dir.run_id,
                created_at=LAUNCH_AT - 1.0,
                trainworks="0.1.0",
                run_file=RunFile.model_validate({"name": "stdlib-lm", **work}),
                working_folder="/home/ada",
                processes=Processes(nodes=1, processes_per_node=2, threads_per_process=1, device="cpu"),
                host=HostFacts(
                    hostname="ada-1",
                    operating_system="Debian GNU/Linux 12",
                    processor="AMD EPYC 9454",
                    num_cores=2,
                    memory_bytes=16 * 10**9,
                    disk_free_bytes=10**11,
                    python="3.11.2",
                    packages={"torch": "2.9.0", "numpy": "2.3.0"},
                ),
                plan=plan,
            )
        )

    def wait(self, seconds: float) -> RunWriter:
        """Let time go by."""
        self.at += seconds
        return self

    def event(self, kind: str, **fields: Any) -> RunWriter:
        """Write an event now."""
        append_event(self.run_dir.events_file, {"kind": kind, "t": self.at, **fields})
        return self

    def launch(self, *, start_s: float = 3.0, **fields: Any) -> RunWriter:
        """Submit, and begin the next attempt after `start_s`."""
        return self.event("submitted", nodes=1, processes_per_node=2).wait(start_s).attempt(**fields)

    def attempt(self, *, from_step: int | None = None, **fields: Any) -> RunWriter:
        """All ranks have met; go on after `from_step`, or after the last step."""
        self.attempt_number += 1
        self.step = self.step if from_step is None else from_step
        return self.event("attempt", attempt=self.attempt_number, world_size=2, resumed_from_step=self.step, **fields)

    def steps(
        self,
        num_steps: int,
        *,
        memory: int | None = 900_000_000,
        skipped: str | None = None,
        overflow: float | None = None,
        **terms: float,
    ) -> RunWriter:
        """Train, one row per step."""
        rows = [self._row({**STEP_TERMS, **terms}) for _ in range(num_steps)]
        for row in rows if skipped else []:
            row["skipped"] = skipped
        for row in rows if overflow is not None else []:
            row["overflow"] = overflow
        if rows and memory:
            rows[-1]["memory_peak_bytes"] = memory
        append_metrics(self.run_dir.metrics_file, rows)
        return self

    def checkpoint(self) -> RunWriter:
        """A manifest is written."""
        return self.event(
            "checkpoint", attempt=self.attempt_number, step=self.step, stall_s=0.02, write_s=0.4, bytes=71_200_000
        )

    def fail(self, **fields: Any) -> RunWriter:
        """Rank 1 fails."""
        about = {"cause": "killed", "message": "killed by signal 9 (SIGKILL)", "signal": "SIGKILL", "exit_code": None}
        who = {"attempt": self.attempt_number, "rank": 1, "node": 0, "pid": 4711, "traceback": ""}
        return self.event("failure", **{**who, **about, **fields})

    def status(self, state: str, **fields: Any) -> RunWriter:
        """The supervisor's view, in status.json and as an event."""
        self.run_dir.write_status(RunStatus(state=state, updated_at=self.at, **fields))
        return self.event("state", state=state, cause=fields.get("cause"), message=fields.get("message"))

    def others(self, used_s: float | None, *, of_s: float, node: int = 0) -> RunWriter:
        """What an agent has counted: seconds of the cores that other programs used, of so many seconds."""
        zeros = dict.fromkeys(("agent_pid", "monotonic_s", "cpu_s", "io_bytes", "network_bytes", "disk_waits"), 0)
        counted = {"accelerator_s": None, "others_s": used_s, "cores_s": of_s}
        self.run_dir.write_usage(node, NodeUsage.model_validate(zeros | counted))
        return self

    def finish(self) -> RunWriter:
        """The last step is done."""
        return self.event("finished", step=self.step).status("SUCCEEDED")

    def report(self, *, state: str | None = None) -> Report:
        """The report as of now; `state` is what somebody outside sees."""
        return build_report(self.run_dir, self.at, state=state)

    def ledger(self) -> Ledger:
        """The time ledger as of now; the run must have a plan."""
        ledger = self.report().ledger
        assert ledger is not None
        return ledger

    def _row(self, terms: dict[str, Any]) -> MetricsRow:
        self.step += 1
        stall_s, other_s = terms.pop("checkpoint_s", 0.0), terms.pop("other_s", 0.001)
        loss = terms.pop("loss", 2.2 + 6.1 * 0.985**self.step)
        held_out, figures = terms.pop("evaluation", None), terms.pop("figures", None)
        evaluation_s = terms.pop("evaluation_s", 0.0 if held_out is None else 0.4)
        callback_s = terms.pop("callback_s", 0.0)
        step_s = sum(terms.values()) + stall_s + other_s + evaluation_s + callback_s
        self.at += step_s
        row = MetricsRow(
            step=self.step,
            attempt=self.attempt_number,
            t=self.at,
            loss=loss,
            grad_norm=1.0,
            lr=3e-4,
            tokens=8192,
            step_s=step_s,
            data_s=terms["data_s"],
            compute_s=terms["compute_s"],
            communication_s=terms["communication_s"],
            optimizer_s=terms["optimizer_s"],
            checkpoint_s=stall_s,
            other_s=other_s,
        )
        if callback_s:
            row["callback_s"] = callback_s
        if figures is not None:
            row["figures"] = figures
        if held_out is not None:
            row |= {
                "evaluation_s": evaluation_s,
                "evaluation": held_out if isinstance(held_out, dict) else {"loss": held_out, "samples": 160},
            }
        return row


RunStart = Callable[..., RunWriter]


@pytest.fixture
def start_run(tmp_path: Path) -> RunStart:
    """A function that makes the next run of a fresh folder: `command=`, or a workload with changes to its plan."""

    def start(*, command: str | None = None, **plan_changes: Any) -> RunWriter:
        return RunWriter(tmp_path, None if command else make_plan(**plan_changes), command)

    return start


@pytest.fixture
def finished_run(start_run: RunStart) -> RunWriter:
    """300 steps with two restarts: a kill at step 127, a full disk's failed checkpoint, an out-of-memory at 231."""
    run = start_run()
    run.event("submitted", nodes=1, processes_per_node=2).wait(0.5).status("RUNNING")
    run.event("data_ready", folder="/cache/stdlib", num_tokens=12_400_000, seconds=2.1, cached=False)
    run.wait(2.6).attempt().steps(5, compute_s=0.12).steps(45).wait(0.02).checkpoint()
    run.steps(50, communication_s=0.034).checkpoint()
    run.steps(27).wait(0.9).fail().wait(2.4).attempt(from_step=100).steps(50, compute_s=0.083).checkpoint()
    run.steps(50).event("checkpoint_failed", attempt=2, step=200, message="no space left on device").steps(31)
    run.fail(
        cause="out of memory",
        message="MemoryError: rank 0 needs 412 MB",
        rank=0,
        signal=None,
        exit_code=1,
        traceback='Traceback (most recent call last):\n  File "loop.py", line 88, in step\nMemoryError',
    )
    run.fail(cause="peer_lost", message="connection closed by peer", rank=1, signal=None, exit_code=1)
    run.wait(2.0).attempt(from_step=150).steps(150, communication_s=0.031).checkpoint().wait(0.3)
    prompt = "def read_lines("
    run.event("sample", step=300, prompt=prompt, text="path):\n    with open(path) as file:\n        return file\n")
    return run.finish()
