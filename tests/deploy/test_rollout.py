"""Batches of an apply: nodes are drained before, checked and resumed after, and the first failure ends it."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.config.stack import Stack, load_stack
from trainworks.deploy.playbook import Answer, HostCounts, PlaybookRun, TaskResult
from trainworks.deploy.rollout import Batch, BatchStep, Rollout, batches

STACK, _ = load_stack(Path("examples/cluster/stack.yaml"))
ALL_IDLE = "".join(f"gpu0{number}|idle|none\n" for number in range(1, 5))


@dataclass
class FakeNodes:
    """Nodes of a stack that answer as they are told, and remember what was asked of them."""

    states: str = ALL_IDLE
    drifted: frozenset[str] = frozenset()
    failing: frozenset[str] = frozenset()
    sick: frozenset[str] = frozenset()
    busy: bool = False
    deaf: bool = False
    asked: list[str] = field(default_factory=list)

    def apply(self, hosts: Collection[str], *, dry_run: bool) -> PlaybookRun:
        self.asked.append(f"{'preview' if dry_run else 'apply'} {','.join(hosts)}")
        counts = tuple(
            HostCounts(host, 9, int(host in self.drifted), 0, int(host in self.failing and not dry_run))
            for host in hosts
        )
        results = tuple(TaskResult(host, "changed", "Configure Slurm", "x") for host in hosts if host in self.drifted)
        return PlaybookRun(results, counts)

    def command(self, hosts: Collection[str], command: str) -> Mapping[str, Answer]:
        if "POWER_UP" in command:
            return {host: Answer(124 if self.deaf else 0, "") for host in hosts}
        if "sinfo" in command:
            return {host: Answer(0 if self.states else 1, self.states) for host in hosts}
        if "squeue" in command:
            return {host: Answer(124 if self.busy else 0, "") for host in hosts}
        if command.startswith("scontrol"):
            self.asked.append(command.removesuffix(" 2>&1"))
            return {host: Answer(0, "") for host in hosts}
        self.asked.append(f"health {','.join(hosts)}")
        return {host: Answer(int(host in self.sick), "gpu lost\n" * (host in self.sick)) for host in hosts}


@dataclass
class StoppingNodes(FakeNodes):
    """One of them has been idle for so long that Slurm stops it while the first batch is previewed."""

    def apply(self, hosts: Collection[str], *, dry_run: bool) -> PlaybookRun:
        self.states = self.states.replace("gpu02|idle|", "gpu02|drained~|") if dry_run else ALL_IDLE
        return super().apply(hosts, dry_run=dry_run)


def rolled(nodes: FakeNodes, size: int = 2) -> tuple[PlaybookRun, list[BatchStep]]:
    """What an apply in batches returns, and its steps."""
    steps: list[BatchStep] = []
    order = [batch for batch in batches(STACK, size) if batch.computes]
    return Rollout("login1", nodes, steps.append, 60).run(order), steps


@given(size=st.integers(1, 9), hosts=st.sets(st.sampled_from(["login1", "store1", "gpu01", "gpu02", "gpu03", "gpu04"])))
def test_every_wanted_host_is_in_one_batch_of_at_most_that_size(size: int, hosts: set[str]) -> None:
    order = batches(STACK, size, hosts)
    assert sorted(name for batch in order for name in batch.hosts) == sorted(hosts)
    assert all(len(batch.hosts) <= size for batch in order if batch.computes)
    assert [batch.computes for batch in order] == sorted(batch.computes for batch in order), "servers come first"


def test_a_rack_is_what_hangs_under_one_set_of_leaves(tmp_path: Path) -> None:
    text = Path("examples/cluster/stack.yaml").read_text().replace("gpu[01-04]", "gpu[001-128]")
    (tmp_path / "stack.yaml").write_text(text)
    stack: Stack = load_stack(tmp_path / "stack.yaml")[0]
    assert [len(batch.hosts) for batch in batches(stack, None)] == [2, 32, 32, 32, 32]
    assert batches(STACK, None)[1] == Batch(("gpu01", "gpu02", "gpu03", "gpu04"), True)


def test_nodes_that_save_power_are_woken_before_anything_is_asked_of_them() -> None:
    nodes = FakeNodes(states=ALL_IDLE.replace("gpu02|idle", "gpu02|idle~").replace("gpu04|idle", "gpu04|idle%"))
    done, steps = rolled(nodes)
    assert not done.failed
    assert [(step.hosts, step.step) for step in steps if step.step == "woken"] == [
        (("gpu02",), "woken"),
        (("gpu04",), "woken"),
    ]
    assert steps[0].step == "woken"
    asleep = FakeNodes(states=nodes.states, deaf=True)
    done, steps = rolled(asleep)
    assert done.failed and "gpu02: Slurm has not started them after 60 s" in done.stopped
    assert not asleep.asked


def test_a_node_is_started_once_and_not_again_while_it_boots(tmp_path: Path) -> None:
    """`gpu02` stops, is off, boots and is there; `gpu04` is off a look later than it."""
    looks = ("gpu02 idle%;gpu04 idle%", "gpu02 idle~;gpu04 idle%", "gpu02 idle#;gpu04 idle~", "gpu02 idle#;gpu04 idle#")
    programs = {
        "sinfo": f"n=$(cat n); echo $((n + 1)) > n; looks=({shlex.join(looks)} 'gpu02 idle;gpu04 idle')\n"
        "tr ';' '\\n' <<< \"${looks[n]}\"\n",
        "scontrol": 'echo "$*" >> asked\n',
        "sleep": "",
    }
    (tmp_path / "n").write_text("0")
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}")
        (tmp_path / name).chmod(0o755)

    class OnThisMachine(FakeNodes):
        def command(self, hosts: Collection[str], command: str) -> Mapping[str, Answer]:
            env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
            done = subprocess.run(
                ["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
            )
            return {host: Answer(done.returncode, done.stdout + done.stderr) for host in hosts}

    states = {"gpu02": ("idle%", "none"), "gpu04": ("idle%", "none"), "gpu01": ("idle", "none")}
    assert Rollout("login1", OnThisMachine(), lambda step: None, 60).wake(states) == ""
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["update NodeName=gpu02 State=POWER_UP", "update NodeName=gpu04 State=POWER_UP"]


def test_nodes_that_stop_while_an_apply_looks_at_them_are_woken_after_they_are_drained() -> None:
    nodes = StoppingNodes(drifted=frozenset({"gpu01"}))
    done, steps = rolled(nodes)
    assert not done.failed
    seen = [(step.hosts, step.step) for step in steps]
    first = ("gpu01", "gpu02")
    assert seen[:3] == [(first, "drained"), (("gpu02",), "woken"), (first, "applied")]


def test_a_batch_is_drained_applied_checked_and_resumed_before_the_next_one() -> None:
    nodes = FakeNodes(drifted=frozenset({"gpu01", "gpu03"}))
    done, steps = rolled(nodes)
    assert not done.failed
    one = "gpu01,gpu02"
    assert nodes.asked[:5] == [
        f"preview {one}",
        f"scontrol update NodeName={one} State=DRAIN Reason='trainworks deploy'",
        f"apply {one}",
        f"health {one}",
        f"scontrol update NodeName={one} State=RESUME",
    ]
    assert [step.step for step in steps] == ["drained", "applied", "healthy", "resumed"] * 2


def test_nodes_that_are_as_the_stack_says_are_neither_drained_nor_changed() -> None:
    nodes = FakeNodes()
    done, steps = rolled(nodes)
    assert nodes.asked == ["preview gpu01,gpu02", "preview gpu03,gpu04"]
    assert [step.step for step in steps] == ["unchanged", "unchanged"]
    assert (done.changed, done.failed, len(done.hosts)) == (False, False, 4)


@pytest.mark.parametrize("broken", [{"failing": frozenset({"gpu02"})}, {"sick": frozenset({"gpu02"})}])
def test_the_first_failure_ends_it_and_leaves_its_nodes_drained(broken: dict[str, frozenset[str]]) -> None:
    nodes = FakeNodes(drifted=frozenset({"gpu01", "gpu03"}), **broken)
    done, steps = rolled(nodes)
    assert done.failed
    assert done.stopped.startswith("gpu02: ")
    assert steps[-1].step == "failed"
    assert not [line for line in nodes.asked if "RESUME" in line or "gpu03" in line]


def test_nodes_whose_jobs_do_not_end_take_jobs_again_and_are_not_changed() -> None:
    nodes = FakeNodes(drifted=frozenset({"gpu01"}), busy=True)
    done, _ = rolled(nodes)
    assert done.stopped == "gpu01,gpu02: jobs were still running after 60 s, and their nodes take jobs again"
    assert nodes.asked[-1] == "scontrol update NodeName=gpu01,gpu02 State=RESUME"
    assert "apply gpu01,gpu02" not in nodes.asked


def test_a_node_that_was_drained_for_another_reason_is_not_resumed() -> None:
    states = ALL_IDLE.replace("gpu01|idle|none", "gpu01|drained|Xid 79")
    nodes = FakeNodes(states=states, drifted=frozenset({"gpu01"}))
    rolled(nodes)
    assert "scontrol update NodeName=gpu02 State=RESUME" in nodes.asked


def test_an_apply_that_was_interrupted_resumes_its_nodes_the_next_time() -> None:
    nodes = FakeNodes(
        states=ALL_IDLE.replace("gpu01|idle|none", "gpu01|drained|trainworks deploy"), drifted=frozenset({"gpu01"})
    )
    rolled(nodes)
    assert "scontrol update NodeName=gpu01,gpu02 State=RESUME" in nodes.asked


@pytest.mark.parametrize("states", ["", ALL_IDLE.replace("idle", "unknown*")])
def test_a_new_cluster_is_applied_to_without_a_drain(states: str) -> None:
    nodes = FakeNodes(states=states, drifted=frozenset({"gpu01"}))
    rolled(nodes)
    assert nodes.asked == ["apply gpu01,gpu02", "health gpu01,gpu02", "apply gpu03,gpu04", "health gpu03,gpu04"]
