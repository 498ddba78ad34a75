"""What runs on Ray's nodes, without Ray: the node's bash, its output, its end, and what is left of it."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests.fakes import spec
from tests.jobs.formats.jobs import HOSTILE
from tests.lanes import examples
from trainworks.jobs.job_spec import NodeResources
from trainworks.jobs.program import Program
from trainworks_ray import gang
from trainworks_ray.options import RayOptions
from trainworks_ray.render import gang_of

MEETING = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4321", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
AGENT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import gang
node = gang.Node(json.loads(sys.argv[2]), 0)
node.start({"MASTER_ADDR": "a", "MASTER_PORT": "1", "SKYPILOT_NODE_IPS": "a"})
sys.stdin.read()
"""


def described(script: str, *, grace_s: float = 5.0, **program: Any) -> dict[str, Any]:
    """What the driver is told, of two nodes with two ranks each."""
    runs = Program(**({"script": script, "processes_per_node": 2} | program))
    asked = spec(min_nodes=2, max_nodes=2, node=NodeResources(), grace_s=grace_s)
    return {"id": f"test-{time.monotonic_ns()}", **gang_of(asked, runs, RayOptions())}


def started(script: str, *, number: int = 1, **program: Any) -> gang.Node:
    """The node's agent, at work."""
    node = gang.Node(described(script, **program), number)
    node.start(MEETING)
    return node


def to_the_end(node: gang.Node) -> tuple[list[str], int]:
    """All lines, and the exit code."""
    lines: list[str] = []
    while True:
        more, code = node.read()
        lines += more
        if code is not None:
            return lines, code


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


def first_lines(node: gang.Node, count: int) -> list[str]:
    lines: list[str] = []
    while len(lines) < count:
        lines += node.read()[0]
    return lines


def nothing_is_left_of(node: gang.Node) -> None:
    """A killed process takes a moment to end."""
    until(lambda: gang.marked(node._mark) == [])


@given(HOSTILE, HOSTILE)
@settings(max_examples=examples(12))
def test_every_rank_gets_every_text_and_the_port_that_was_found(text: str, value: str) -> None:
    script = f"""printf '%s/%s/%s/%s\\n' "$RANK" "$MASTER_ADDR:$MASTER_PORT" {shlex.quote(text)} "$HOSTILE" """
    lines, code = to_the_end(started(script, envs={"HOSTILE": value}))
    wanted = "".join(f"{rank}/10.0.0.1:4321/{text}/{value}\n" for rank in (2, 3))
    assert sorted("\n".join(lines)) == sorted(as_lines(wanted)) and code == 0


def as_lines(text: str) -> str:
    """As it is read back: a carriage return in front of a line's end is not kept."""
    return "\n".join(line.rstrip("\r") for line in text.removesuffix("\n").split("\n"))


@pytest.mark.parametrize(
    ("framework", "variable", "value"),
    [
        ("torch", "TORCHRUN_ARGS", "--nnodes=2 --node-rank=1 --master-addr=10.0.0.1 --master-port=4321"),
        ("jax", "JAX_COORDINATOR_ADDRESS", "10.0.0.1:4321"),
        (
            "tensorflow",
            "TF_CONFIG",
            '{"cluster": {"worker": ["10.0.0.1:4321","10.0.0.1:4322","10.0.0.2:4321","10.0.0.2:4322"]}, '
            '"task": {"type": "worker", "index": 2}}',
        ),
    ],
)
def test_every_framework_is_told_of_the_port_that_was_found(framework: Any, variable: str, value: str) -> None:
    lines, _ = to_the_end(started(f'[ "$RANK" != 2 ] || echo "${variable}"', framework=framework, starts="per_rank"))
    assert lines == [value]


def test_the_attempt_and_the_place_are_known_to_setup_and_ranks() -> None:
    node = gang.Node(described('echo "run $NODE_RANK $TRAINWORKS_ATTEMPT"', setup='echo "setup $NODE_RANK"'), 1)
    node.start(MEETING | {"TRAINWORKS_ATTEMPT": "3"})
    assert to_the_end(node) == (["setup 1", "run 1 3", "run 1 3"], 0)


def test_the_code_of_a_rank_that_fails_is_the_node_s_and_ends_the_other() -> None:
    assert to_the_end(started('[ "$RANK" != 3 ] || exit 7; sleep 600'))[1] == 7


def test_a_rank_that_is_killed_is_128_and_its_signal() -> None:
    assert to_the_end(started('[ "$RANK" != 3 ] || kill -9 $$; sleep 600'))[1] == 137


def test_many_lines_are_neither_lost_nor_mixed() -> None:
    lines, _ = to_the_end(started("seq 1 3000", processes_per_node=1))
    assert lines == [str(number) for number in range(1, 3001)]


def test_bytes_that_are_no_text_do_not_end_the_output() -> None:
    lines, _ = to_the_end(started(r"printf 'a\377b\n'; echo c", processes_per_node=1))
    assert lines == ["a\ufffdb", "c"]


def test_a_line_without_an_end_is_read_too() -> None:
    assert to_the_end(started("printf abc", processes_per_node=1)) == (["abc"], 0)


def test_a_variable_that_the_node_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKEN", raising=False)
    lines, code = to_the_end(started("echo $TOKEN", envs={"TOKEN": None}))
    assert "TOKEN is not set where Ray was started on this node" in lines[0] and code == gang.MISSING_VARIABLE


def test_a_variable_of_the_node_reaches_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "x y")
    assert to_the_end(started('echo "$TOKEN"', envs={"TOKEN": None}, processes_per_node=1)) == (["x y"], 0)


def test_a_stop_lets_the_ranks_save() -> None:
    node = started('trap "echo saved; exit 0" TERM; echo begun; sleep 600 & wait')
    assert first_lines(node, 2) == ["begun", "begun"]
    node.stop(60.0)
    lines, code = to_the_end(node)
    assert (lines, code) == (["saved", "saved"], gang.STOPPED)
    nothing_is_left_of(node)


def test_a_stop_at_once_asks_nobody() -> None:
    node = started('trap "echo asked" TERM; echo begun; sleep 600 & wait')
    first_lines(node, 2)
    node.stop(0.0)
    assert to_the_end(node) == ([], 137)
    nothing_is_left_of(node)


def test_a_rank_that_does_not_listen_is_killed_after_a_while() -> None:
    node = started('trap "" TERM; echo begun; sleep 600')
    first_lines(node, 2)
    node.stop(0.3)
    assert to_the_end(node)[1] != 0
    nothing_is_left_of(node)


def test_what_a_rank_has_left_behind_does_not_keep_the_node() -> None:
    node = started("setsid sleep 600 & echo begun", processes_per_node=1)
    assert to_the_end(node) == (["begun"], 0)
    nothing_is_left_of(node)


@pytest.fixture
def agent() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An agent in a process of its own, whose ranks do not listen, and the mark of what it starts."""
    told = described('trap "" TERM; sleep 600', grace_s=0.5)
    folder = str(Path(gang.__file__).parent)
    with subprocess.Popen([sys.executable, "-c", AGENT, folder, json.dumps(told)], stdin=-1, text=True) as one:
        until(lambda: len(gang.marked(f"{told['id']}/0")) >= 3)
        yield one, f"{told['id']}/0"
        one.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_agent_that_is_killed_leaves_nothing_behind(
    agent: tuple[subprocess.Popen[str], str], number: signal.Signals
) -> None:
    one, mark = agent
    one.send_signal(number)
    until(lambda: gang.marked(mark) == [])


def test_the_guard_of_an_agent_that_ends_well_does_nothing() -> None:
    node = started("true")
    assert to_the_end(node)[1] == 0
    until(lambda: not guards_of(node))


def guards_of(node: gang.Node) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if node._mark.encode() in words:
            found.append(folder.name)
    return found
