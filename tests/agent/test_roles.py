"""A job with roles on this machine: its commands start, fail, start again and end as their roles say."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes import HOST, resolved_command
from tests.faults.launcher import wait_until
from trainworks.agent.launch import make_ready, run_mark
from trainworks.config.run_file import RunFile
from trainworks.host import process
from trainworks.jobs.environment import ROLE
from trainworks.observe.log_lines import RunLogs
from trainworks.plan.run.processes import choose_role_processes
from trainworks.record.environment import AcceleratorFacts
from trainworks.record.events.job import FailureEvent
from trainworks.record.events.log import of_kind, read_events
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.recover.failures import first_failure
from trainworks.recover.restarts import Begin, lives_of, restarts_used

pytestmark = [pytest.mark.slow, pytest.mark.lane("test-all")]

WAITS = "echo up; exec sleep 600"
SERVER = {"run": WAITS, "decides": False}
UNTIL_TOLD = 'until [ -e "$TRAINWORKS_RUN_DIR/go" ]; do sleep 0.05; done'


def gpus(count: int) -> tuple[AcceleratorFacts, ...]:
    """Accelerators that a machine is said to have."""
    return tuple(AcceleratorFacts(index=index, name="H100", memory_bytes=80 * 10**9) for index in range(count))


class RunOfRoles:
    """A job with roles under a supervisor of its own."""

    def __init__(self, run_dir: RunDir, folder: Path = Path("/"), **keys: Any) -> None:
        self.run_dir = run_dir
        host = HOST.model_copy(update={"accelerators": gpus(keys.pop("gpus", 0)), "num_cores": 8})
        run_file = RunFile.model_validate({"name": "demo", "job": {"grace": "30 s"}} | keys)
        processes = choose_role_processes(run_file, host)
        self.resolved = resolved_command(run_file=run_file, processes=processes, working_folder=str(folder))
        run_dir.write_resolved(self.resolved)
        make_ready(run_dir, self.resolved.processes, 0.0)
        command = process.python_module("trainworks.agent.supervisor", str(run_dir.path), "0")
        self.supervisor = process.spawn(command, log=run_dir.supervisor_log)

    def end(self) -> RunStatus:
        """Wait for it."""
        self.supervisor.wait(60)
        return self.run_dir.read_status()

    def say_go(self) -> None:
        """Let the commands end that wait for it."""
        (self.run_dir.path / "go").touch()

    def said(self, rank: int) -> list[str]:
        """Lines of a rank."""
        log = self.run_dir.rank_log(rank)
        return log.read_text().splitlines() if log.exists() else []

    def ranks(self, role: str) -> list[int]:
        """Processes of a role that run now."""
        return [one.pid for one in process.processes_with(run_mark(self.run_dir) | {ROLE: role})]

    def up(self, rank: int, times: int = 1) -> None:
        """Wait until a rank has started so often."""
        wait_until(lambda: self.said(rank).count("up") == times)

    def failures(self) -> list[FailureEvent]:
        """What failed, in order."""
        return of_kind(read_events(self.run_dir.events_file), FailureEvent)


@pytest.fixture
def start(run_dir: RunDir) -> Iterator[Callable[..., RunOfRoles]]:
    """Starts the one job of a test, of which nothing is left behind."""
    made: list[RunOfRoles] = []

    def begin(**keys: Any) -> RunOfRoles:
        made.append(RunOfRoles(run_dir, **keys))
        return made[0]

    yield begin
    for job in made:
        job.supervisor.signal_group(signal.SIGKILL)
        job.supervisor.wait(60)
        process.sweep(run_mark(job.run_dir))


@pytest.mark.lane("test")
def test_the_roles_find_each_other_and_the_servers_end_with_the_job(start) -> None:
    told = 'echo "$TRAINWORKS_ROLE $TRAINWORKS_ROLE_INDEX/$TRAINWORKS_ROLE_SIZE $RANK/$WORLD_SIZE $EXTRA"'
    places = 'echo "$TRAINWORKS_PORT $TRAINWORKS_ADDRESSES_ROLL_OUT"'
    trainer = {"run": f"{told}; {places}", "nodes": 2, "processes_per_node": 2, "depends_on": ["fetch"]}
    saves = "trap 'echo saved; exit' TERM; echo up; while true; do sleep 0.05; done"
    job = start(
        envs={"EXTRA": "all"},
        roles={
            "roll-out": {"run": f"{places}; {saves}", "decides": False, "nodes": 2, "envs": {"EXTRA": "one"}},
            "fetch": {"run": f"{told}; {UNTIL_TOLD}; echo fetched"},
            "trainer": trainer,
        },
    )
    for rank in (0, 1):
        job.up(rank)
    assert job.said(3) == []  # the trainer waits for `fetch`
    job.say_go()
    assert job.end().state == "SUCCEEDED"
    assert job.said(2) == ["fetch 0/1 0/1 all", "fetched"]
    assert [job.said(rank)[0] for rank in range(3, 7)] == [f"trainer {rank // 2}/2 {rank}/4 all" for rank in range(4)]
    ports = [job.said(rank)[0].split()[0] for rank in (0, 1)]
    assert job.said(3)[1].split()[1] == ",".join(f"127.0.0.1:{port}" for port in ports)
    assert len({*ports, *(job.said(rank)[1].split()[0] for rank in (3, 5))}) == 4
    assert [job.said(rank)[-1] for rank in (0, 1)] == ["saved", "saved"]
    names = {line.source for line in RunLogs(job.run_dir).new_lines(everything=True)}
    assert names == {"roll-out-0", "roll-out-1", "fetch-0", *(f"trainer-{rank}" for rank in range(4))}
    assert job.failures() == []


def test_a_role_sees_its_accelerators_and_no_others(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    says = 'echo "gpus $CUDA_VISIBLE_DEVICES"'
    server = {"run": says, "nodes": 2, "resources": {"accelerators": "gpu:1"}}
    trainer = {"run": says, "nodes": 2, "resources": {"accelerators": "gpu:2"}, "processes_per_node": 1}
    job = start(gpus=6, roles={"fetch": {"run": says}, "server": server, "trainer": trainer})
    assert job.end().state == "SUCCEEDED"
    assert [job.said(rank) for rank in range(5)] == [["gpus "], ["gpus 0"], ["gpus 1"], ["gpus 2,3"], ["gpus 4,5"]]


def test_a_killed_server_starts_again_alone_at_its_address(start) -> None:
    server = {"run": f"echo $TRAINWORKS_PORT; {WAITS}", "decides": False, "restarts": 1}
    job = start(roles={"server": server, "trainer": {"run": f"echo up; {UNTIL_TOLD}"}})
    job.up(0)
    job.up(1)
    (trainer,) = job.ranks("trainer")[:1]
    os.kill(job.ranks("server")[0], signal.SIGKILL)
    job.up(0, times=2)
    assert trainer in job.ranks("trainer")
    assert job.run_dir.read_status().state in ("RECOVERING", "RUNNING")
    job.say_go()
    assert job.end().state == "SUCCEEDED"
    first, _, second, _ = job.said(0)
    assert first == second
    (failure,) = job.failures()
    assert (failure["role"], failure["cause"], failure["rank"]) == ("server", "killed", 0)
    assert failure["message"].startswith("the command of role `server` was killed by SIGKILL")
    events = read_events(job.run_dir.events_file)
    assert restarts_used(events) == 0  # those of the job are untouched
    life = lives_of(events)[1]
    assert (life.begin, life.part) == (Begin.ROLE, "`server`: rank 0 on node 0")


def test_a_killed_agent_of_a_role_leaves_no_rank_behind(start) -> None:
    job = start(roles={"server": SERVER | {"restarts": 1}, "trainer": {"run": UNTIL_TOLD}})
    job.up(0)
    (rank,) = job.ranks("server")
    os.kill(_parent(rank), signal.SIGKILL)
    job.up(0, times=2)
    assert len(job.ranks("server")) == 1 and rank not in job.ranks("server")
    job.say_go()
    assert job.end().state == "SUCCEEDED"
    assert [(each["role"], each["cause"]) for each in job.failures()] == [("server", "agent_lost")]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_role_without_a_restart_of_its_own_takes_one_of_the_job(start) -> None:
    """All roles start again, those that have succeeded, too."""
    fails_once = 'echo up; [ "$TRAINWORKS_ATTEMPT" != 1 ] || exit 7'
    job = start(
        recover={"max_restarts": 1},
        roles={
            "server": SERVER,
            "fetch": {"run": "echo up"},
            "trainer": {"run": fails_once, "depends_on": ["fetch"]},
        },
    )
    assert job.end().state == "SUCCEEDED"
    assert [job.said(rank).count("up") for rank in range(3)] == [2, 2, 2]
    events = read_events(job.run_dir.events_file)
    assert restarts_used(events) == 1
    assert [life.begin for life in lives_of(events)] == [Begin.SUBMIT, Begin.RANKS]


@pytest.mark.parametrize("role", ["server", "trainer"])
def test_a_failure_beyond_all_restarts_ends_the_job_and_names_its_role(start, role: str) -> None:
    roles = {"server": SERVER, "trainer": {"run": WAITS}}
    job = start(roles=roles | {role: roles[role] | {"run": "echo no luck; exit 3"}})
    status = job.end()
    assert (status.state, status.cause, status.exit_code) == ("FAILED", "user_error", 3)
    assert status.message == f"the command of role `{role}` exited with code 3: no luck"
    assert status.hint is not None and f"roles.{role}.restarts" in status.hint
    assert job.ranks("server") + job.ranks("trainer") == []


def test_a_server_that_ends_before_the_job_has_failed_unless_it_may(start) -> None:
    job = start(
        roles={
            "eval": {"run": "true", "decides": False, "may_end": True},
            "server": {"run": "true", "decides": False},
            "trainer": {"run": WAITS},
        }
    )
    status = job.end()
    assert (status.state, status.exit_code) == ("FAILED", 1)
    assert status.message == "the command of role `server` exited with code 0 before the roles that decide"
    assert status.hint == "set `roles.server.may_end: true` if it may end so"
    failure = first_failure(read_events(job.run_dir.events_file))
    assert failure is not None and failure["role"] == "server"


def test_a_server_may_end_at_the_moment_at_which_its_last_client_does(start) -> None:
    server = {"run": UNTIL_TOLD, "decides": False}
    job = start(roles={"server": server, "trainer": {"run": f"echo up; {UNTIL_TOLD}; sleep 0.2"}})
    job.up(1)
    job.say_go()
    assert job.end().state == "SUCCEEDED"
    assert job.failures() == []


def test_a_stop_ends_all_roles_and_starts_none(start) -> None:
    job = start(roles={"server": SERVER, "fetch": {"run": WAITS}, "trainer": {"run": WAITS, "depends_on": ["fetch"]}})
    job.up(0)
    job.up(1)
    job.supervisor.signal_group(signal.SIGTERM)
    status = job.end()
    assert (status.state, status.exit_code) == ("STOPPED", 0)
    assert job.said(2) == []
    assert [job.ranks(role) for role in ("server", "fetch", "trainer")] == [[], [], []]


def test_all_roles_end_with_a_killed_supervisor(start) -> None:
    job = start(roles={"server": SERVER, "trainer": {"run": WAITS}})
    job.up(0)
    job.up(1)
    os.kill(job.supervisor.pid, signal.SIGKILL)
    wait_until(lambda: job.ranks("server") + job.ranks("trainer") == [])


def test_the_example_climbs_with_two_servers_of_which_one_is_killed(start) -> None:
    root = Path(__file__).parents[2]
    job = start(folder=root, **yaml.safe_load((root / "examples/roles.yaml").read_text()))
    wait_until(lambda: len(job.said(1)) > 2)
    os.kill(job.ranks("reward")[0], signal.SIGKILL)
    assert job.end().state == "SUCCEEDED"
    assert job.said(0)[0].startswith("prepared by Python")
    assert float(job.said(1)[-1].partition("loss=")[2]) < 1e-4
    assert [failure["role"] for failure in job.failures()] == ["reward"]
    with job.run_dir.metrics_file.open() as metrics:
        assert sum(1 for _ in metrics) == 15  # steps of the role that decides and that no other waits for
