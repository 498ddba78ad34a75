"""Repairs on a cluster of names, with commands that bash runs: the record, kills at every step, and causes of files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import pytest

from tests.fakes import LAUNCH_AT, FakeClock
from trainworks.api.nodes import nodes
from trainworks.api.proving.repair import ClusterRepairs, read_causes, repair, repair_history
from trainworks.backends.backend import Backend, NodeStatus
from trainworks.config.load import load_model
from trainworks.errors import EnvironmentProblem, RunFileError, UsageError
from trainworks.files import take_lock
from trainworks.recover.repairs import MARK, RepairEvent, RepairPolicy

NAMES = ("n1", "n2", "n3", "n4")


@dataclass
class FakeCluster:
    """Four nodes that can be drained, with the jobs that run there."""

    drained: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def nodes(self) -> list[NodeStatus]:
        return [
            NodeStatus(
                name=name,
                state=("draining" if name in self.jobs else "drained") if name in self.drained else "free",
                reason=self.drained.get(name),
                jobs=(self.jobs[name],) if name in self.jobs else (),
            )
            for name in NAMES
        ]

    def drain(self, node: str, reason: str) -> None:
        self.calls.append(f"drain {node}")
        self.drained[node] = reason

    def undrain(self, node: str) -> None:
        self.calls.append(f"undrain {node}")
        del self.drained[node]


def cause(node: str, kind: str, text: str = "", at: float = 1e12) -> RepairEvent:
    """Evidence against a node."""
    return RepairEvent(at, node, "waits", text, kind)


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Dying(ClusterRepairs):
    """Repairs of a process that is killed before or after it writes a certain line of the record."""

    moments_left: int = 10**6

    def _write(self, event: RepairEvent) -> None:
        self._live()
        super()._write(event)
        self._live()

    def _live(self) -> None:
        self.moments_left -= 1
        if self.moments_left == 0:
            raise Killed


@dataclass
class Site:
    """A cluster whose broken nodes are files: `NODE.broken` is repaired by a reset, `NODE.dead` by nothing."""

    folder: Path
    cluster: FakeCluster = field(default_factory=FakeCluster)
    clock: FakeClock = field(default_factory=FakeClock)
    policy: dict[str, Any] = field(default_factory=dict)
    events: list[RepairEvent] = field(default_factory=list)

    def work(self, moments_left: int = 10**6) -> Dying:
        commands = {
            "check": f"test ! -e {self.folder}/$NODE.broken -a ! -e {self.folder}/$NODE.dead",
            "reset": f"rm -f {self.folder}/$NODE.broken; echo reset >> {self.folder}/$NODE.log",
            "reboot": f"echo reboot >> {self.folder}/$NODE.log",
            "uptime": "echo 0.5 1.0",
            "ticket": f'cp "$TICKET" {self.folder}/$NODE.ticket; echo RMA-7',
        }
        policy = RepairPolicy.model_validate({"max_share": 0.25, **commands, **self.policy})
        backend = cast(Backend, self.cluster)
        return Dying(
            backend, self.folder / "r.jsonl", policy, self.clock, self.events.append, moments_left=moments_left
        )

    def repair(self, *causes: RepairEvent, wait_s: float = 1e9) -> dict[str, str]:
        """Last step of each node that is shown."""
        return {event.node: str(event.step) for event in self.work().run(causes, wait_s)}

    def break_(self, node: str, how: str = "broken") -> RepairEvent:
        (self.folder / f"{node}.{how}").touch()
        return cause(node, "xid", "GPU 0 had XID 48: double-bit ECC error", self.clock.now())

    def steps(self, node: str) -> list[str]:
        rows = [json.loads(line) for line in (self.folder / "r.jsonl").read_text().splitlines()]
        return [row["step"] for row in rows if row["node"] == node]

    def actions(self, node: str) -> list[str]:
        log = self.folder / f"{node}.log"
        return log.read_text().split() if log.exists() else []


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


BACK = ["waits", "drain", "drained", "reset", "check", "release", "back"]
OUT = ["waits", "drain", "drained", "reset", "check", "failed", "reboot", "booting", "check", "failed", "ticket", "out"]


def test_a_node_that_a_reset_repairs_is_back(site: Site) -> None:
    assert site.repair(site.break_("n1")) == {"n1": "back"}
    assert (site.steps("n1"), site.actions("n1"), site.cluster.drained) == (BACK, ["reset"], {})


def test_a_node_that_nothing_repairs_is_out_with_a_ticket(site: Site) -> None:
    assert site.repair(site.break_("n1", "dead")) == {"n1": "out"}
    assert (site.steps("n1"), site.actions("n1")) == (OUT, ["reset", "reboot"])
    ticket = json.loads((site.folder / "n1.ticket").read_text())
    assert (ticket["node"], ticket["kind"], ticket["id"]) == ("n1", "xid", f"n1-{int(LAUNCH_AT)}")
    assert site.cluster.drained["n1"] == f"{MARK}GPU 0 had XID 48: double-bit ECC error; ticket n1-{int(LAUNCH_AT)}"
    assert site.events[-1].detail.endswith("n1-1760000000.json: RMA-7")


def test_a_plan_changes_nothing_and_names_the_command(site: Site) -> None:
    (row,) = site.work().plan([site.break_("n1")])
    log = f"rm -f {site.folder}/n1.broken; echo reset >> {site.folder}/n1.log"
    assert (row.step, row.detail) == ("drain", f"GPU 0 had XID 48: double-bit ECC error; then reset; {log}")
    assert (site.cluster.calls, (site.folder / "r.jsonl").exists()) == ([], False)


def test_a_second_failure_within_the_time_is_rebooted(site: Site) -> None:
    site.repair(site.break_("n1"))
    site.clock.sleep(1.0)
    assert site.repair(site.break_("n1", "dead")) == {"n1": "out"}
    assert site.actions("n1") == ["reset", "reboot"]


def test_a_job_keeps_its_node_and_the_next_call_continues(site: Site) -> None:
    site.cluster.jobs["n1"] = "7"
    assert site.repair(site.break_("n1"), wait_s=0.0) == {"n1": "drained"}
    assert (site.actions("n1"), site.cluster.jobs) == ([], {"n1": "7"})
    del site.cluster.jobs["n1"]
    assert site.repair() == {"n1": "back"}
    assert site.steps("n1") == BACK


def test_more_nodes_than_the_share_wait_their_turn(site: Site) -> None:
    assert site.repair(site.break_("n1"), site.break_("n2"), site.break_("n3")) == dict.fromkeys(
        ("n1", "n2", "n3"), "back"
    )
    assert site.cluster.calls == [f"{call} {node}" for node in ("n1", "n2", "n3") for call in ("drain", "undrain")]


def test_nodes_out_with_a_ticket_fill_the_share_and_those_that_wait_are_named(site: Site) -> None:
    rows = {event.node: event for event in site.work().run([site.break_("n1", "dead"), site.break_("n2")])}
    assert (rows["n1"].step, rows["n2"].step) == ("out", "waits")
    assert rows["n2"].detail.endswith("1 of 4 nodes are out for repair, and 1 may be (25 %)")
    assert "n2" not in site.cluster.drained
    assert site.work().plan([])[0].step == "waits"


@pytest.mark.parametrize("reason", ["fan 3", f"{MARK}of another record"])
def test_a_node_that_others_have_drained_is_left_alone(reason: str, site: Site) -> None:
    site.cluster.drained["n1"] = reason
    assert site.repair(site.break_("n1")) == {"n1": "left"}
    assert (site.cluster.calls, site.cluster.drained) == ([], {"n1": reason})


def test_a_node_that_a_human_takes_meanwhile_is_not_released(site: Site) -> None:
    site.cluster.jobs["n1"] = "7"
    site.repair(site.break_("n1"), wait_s=0.0)
    site.cluster.drained["n1"], site.cluster.jobs = "ada looks at it", {}
    assert site.repair() == {"n1": "left"}
    assert (site.actions("n1"), site.cluster.drained) == ([], {"n1": "ada looks at it"})


@pytest.mark.parametrize(
    ("reason", "actions"),
    [
        ("trainworks: xid: GPU 0 had XID 48: double-bit ECC error", ["reset"]),
        ("trainworks: swap: 4 GiB; gpu-count: 7 GPUs answer, 8 expected (and 1 more)", []),
        ("trainworks: xid: GPU 0 had XID 48: error; gpu-count: 7 GPUs answer, 8 expected", ["reboot"]),
        ("trainworks: 7 GPUs of 8", []),
        ("Prolog error", []),
        ("Not responding", ["reboot"]),
    ],
)
def test_without_a_cause_nodes_that_are_out_for_a_fault_are_repaired(
    reason: str, actions: list[str], site: Site
) -> None:
    site.cluster.drained |= {"n1": reason, "n2": "fan 3"}
    assert site.repair() == {"n1": "out" if "swap" in reason else "back"}
    assert site.actions("n1") == actions


def test_a_reason_that_the_site_names_is_taken_over(site: Site) -> None:
    site.cluster.drained["n1"] = "NHC: check_fs"
    site.policy |= {"takes_over": {"NHC: ": "reboot"}, "causes": {"check_fs": "reset"}}
    assert site.repair() == {"n1": "back"}
    assert site.actions("n1") == ["reboot"]


def test_old_evidence_does_not_repair_a_node_again(site: Site) -> None:
    found = site.break_("n1")
    site.clock.sleep(1.0)
    assert [site.repair(found) for _ in "12"] == [{"n1": "back"}, {}]


def test_a_named_node_is_checked_before_anything_else(site: Site) -> None:
    assert site.repair(cause("n1", "named")) == {"n1": "back"}
    assert (site.steps("n1"), site.actions("n1")) == (["waits", "drain", "drained", "check", "release", "back"], [])


def test_a_node_with_a_ticket_is_checked_again_by_name_alone(site: Site) -> None:
    site.repair(site.break_("n1", "dead"))
    site.clock.sleep(1.0)
    assert site.repair(site.break_("n1")) == {"n1": "left"}
    named = cause("n1", "named")
    assert site.repair(named) == {"n1": "out"}
    (site.folder / "n1.dead").unlink()
    (site.folder / "n1.broken").unlink()
    assert (site.repair(named), site.actions("n1")) == ({"n1": "back"}, ["reset", "reboot"])


@pytest.mark.parametrize(
    ("policy", "tried"),
    [
        ({"reboot": "exit 255"}, ["reset", "check", "failed", "reboot", "booting", "check", "failed"]),
        ({"reboot": "exit 1"}, ["reset", "check", "failed", "reboot", "failed"]),
        ({"uptime": "exit 255"}, ["reset", "check", "failed", "reboot", "booting", "failed"]),
        ({"uptime": "echo 86400"}, ["reset", "check", "failed", "reboot", "booting", "failed"]),
        ({"uptime": "echo 0.5; seq 200 >&2"}, ["reset", "check", "failed", "reboot", "booting", "check", "failed"]),
        ({"reset": "exit 1"}, ["reset", "failed", "reboot", "booting", "check", "failed"]),
        ({"reset": ""}, ["reboot", "booting", "check", "failed"]),
        ({"ticket": "exit 3"}, ["reset", "check", "failed", "reboot", "booting", "check", "failed"]),
    ],
    ids=str,
)
def test_a_command_that_fails_leads_on(policy: dict[str, str], tried: list[str], site: Site) -> None:
    site.policy |= policy
    assert site.repair(site.break_("n1", "dead")) == {"n1": "out"}
    assert site.steps("n1") == ["waits", "drain", "drained", *tried, "ticket", "out"]


def test_the_built_in_commands_reach_the_node_by_ssh_as_they_are_meant(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An `ssh` that runs its line here, with programs that write down their arguments in the place of root's."""
    for name, line in {"ssh": 'sh -c "${*:6}"', "sudo": 'echo "$@" >> $LOG; echo 1.5'}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    backend = cast(Backend, site.cluster)
    work = ClusterRepairs(backend, tmp_path / "r.jsonl", RepairPolicy(max_share=1.0), site.clock)
    assert [event.step for event in work.run([site.break_("n1")])] == ["back"]
    assert (tmp_path / "log").read_text().splitlines() == [
        "sh -c nvidia-smi --gpu-reset && echo trainworks: the GPUs were reset > /dev/kmsg",
        "trainworks health --as prolog",
    ]


def test_a_command_that_hangs_has_failed(site: Site) -> None:
    site.policy |= {"reset": "sleep 60", "command_timeout": 0.05, "reboot": ""}
    assert site.repair(site.break_("n1")) == {"n1": "out"}
    assert "took longer than 0.05 s" in next(event.detail for event in site.events if event.step == "failed")


def test_a_slow_node_is_measured_before_it_is_back(site: Site) -> None:
    site.policy["bench"] = f"test ! -e {site.folder}/$NODE.slow"
    (site.folder / "n1.slow").touch()
    assert site.repair(cause("n1", "slow", "n1: 60% of its peers", 1e12)) == {"n1": "out"}


@pytest.mark.lane("test")
@pytest.mark.parametrize("how", ["broken", "dead"])
def test_a_repair_that_is_killed_at_any_moment_continues_where_it_was(how: str, tmp_path: Path) -> None:
    was_killed, moment = True, 0
    while was_killed:
        moment += 1
        site = Site(tmp_path / str(moment))
        site.folder.mkdir()
        found, was_killed = site.break_("n1", how), False
        try:
            site.work(moment).run([found])
        except Killed:
            was_killed = True
        site.repair(found)
        assert site.steps("n1") == (BACK if how == "broken" else OUT)
        assert set(site.cluster.drained) == (set() if how == "broken" else {"n1"})
        assert site.actions("n1").count("reboot") <= 1 + was_killed
    assert moment > 2 * len(BACK)


def test_a_reboot_that_was_done_before_the_kill_is_not_done_again(site: Site) -> None:
    found = site.break_("n1", "dead")
    moments = 2 * OUT.index("reboot") + 3  # the command has run, and its result is not on record
    with pytest.raises(Killed):
        site.work(moments).run([found])
    assert (site.steps("n1")[-1], site.actions("n1")) == ("reboot", ["reset", "reboot"])
    site.clock.sleep(60.0)
    site.repair()
    assert site.actions("n1") == ["reset", "reboot"]


def test_each_line_of_the_record_is_flushed_before_the_next_step(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(os.fstat(file).st_size))
    site.repair(site.break_("n1"))
    lines = (site.folder / "r.jsonl").read_bytes().splitlines(keepends=True)
    assert flushed == list(accumulate(map(len, lines)))


def test_a_torn_last_line_is_left_out(site: Site) -> None:
    site.cluster.jobs["n1"] = "7"
    site.repair(site.break_("n1"), wait_s=0.0)
    record = site.folder / "r.jsonl"
    record.write_text(record.read_text() + '{"t": 1.0, "node": "n1", "st')
    site.cluster.jobs.clear()
    assert site.repair() == {"n1": "back"}


def test_one_process_at_a_time_repairs_a_cluster(site: Site) -> None:
    lock = take_lock(site.folder / "r.lock")
    assert lock is not None
    with pytest.raises(EnvironmentProblem, match="another process repairs"):
        site.repair(site.break_("n1"))
    os.close(lock)
    assert site.cluster.calls == []


def written(folder: Path, content: object) -> Path:
    file = folder / "found.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def alert(name: str = "GpuLost", status: Any = "firing", **labels: str) -> dict[str, Any]:
    """An alert of Alertmanager."""
    labels = {"alertname": name, "node": "n1"} | labels
    said = {"summary": "the driver cannot open a GPU"}
    return {"labels": labels, "annotations": said, "status": status, "startsAt": "2026-11-27T08:00:00.5Z"}


HEALTH = {
    "node": "n1",
    "checks": [
        {"check": "xid", "verdict": "failed", "problems": ["GPU 0 had XID 79: it fell off"]},
        {"check": "swap", "verdict": "warning", "problems": ["4 GiB"]},
    ],
}
FLEET = {
    "nodes": [
        {"node": "n1", "failed": ["xid: GPU 0 had XID 79: it fell off", "shm: 1 MiB free"]},
        {"node": "n2", "failed": []},
    ],
    "odd": [],
}
BENCH = {
    "nodes": [{"name": "n1"}, {"name": "n2"}],
    "outliers": [{"subject": "n1 gpu3", "share": 0.625}, {"subject": "n1 <-> n2", "share": 0.5}, {"subject": "/data"}],
}


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (HEALTH, [("n1", "xid", "GPU 0 had XID 79: it fell off")]),
        (FLEET, [("n1", "xid", "GPU 0 had XID 79: it fell off"), ("n1", "shm", "1 MiB free")]),
        (BENCH, [("n1", "slow", "n1 gpu3: 62% of the rate of its peers")]),
        ({"verification": {}, "bench": BENCH}, [("n1", "slow", "n1 gpu3: 62% of the rate of its peers")]),
        ({"verification": {}, "bench": None}, []),
        ({"alerts": [alert()]}, [("n1", "GpuLost", "the driver cannot open a GPU")]),
        ([alert(status={"state": "active"})], [("n1", "GpuLost", "the driver cannot open a GPU")]),
        ([alert("HealthCheckFailed", check="xid")], [("n1", "xid", "the driver cannot open a GPU")]),
        ([alert(status="resolved"), alert(status={"state": "suppressed"})], []),
        ([{"labels": {"alertname": "RunFailed", "run": "a-1"}}], []),
    ],
)
def test_reports_and_alerts_name_nodes(content: object, found: Sequence[tuple[str, str, str]], tmp_path: Path) -> None:
    assert [
        (each.node, each.kind, each.detail) for each in read_causes(written(tmp_path, content), RepairPolicy())
    ] == found


def test_an_alert_is_as_old_as_it_says(tmp_path: Path) -> None:
    undated = alert() | {"startsAt": None}
    file = written(tmp_path, [alert(), undated])
    assert [each.t for each in read_causes(file, RepairPolicy())] == [1795766400.5, file.stat().st_mtime]


@pytest.mark.parametrize("content", ["no json", "[1]", '{"checks": 3}', "3", '{"alerts": [{"labels": {"node": "a"}}]}'])
def test_another_file_is_refused_with_what_is_wanted(content: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither a report of nodes nor a list of alerts") as refused:
        read_causes(written(tmp_path, content), RepairPolicy())
    assert refused.value.place == "--from"


def test_an_alert_counts_if_an_action_is_known(tmp_path: Path) -> None:
    file = written(tmp_path, [alert("DiskFilling")])
    assert read_causes(file, RepairPolicy()) == []
    assert [each.kind for each in read_causes(file, RepairPolicy(causes={"DiskFilling": "check"}))] == ["DiskFilling"]


def test_a_node_that_the_cluster_does_not_have_is_an_error_by_name_and_left_in_a_file(site: Site) -> None:
    with pytest.raises(UsageError, match="the cluster has no node `n9`"):
        site.repair(cause("n9", "named"))
    assert site.repair(cause("n9", "xid")) == {"n9": "left"}


@pytest.mark.parametrize(
    ("line", "problem"),
    [("check: ''", "`check` must be"), ("max_share: 105%", "between 0 and 100"), ("chek: a", "unknown key `chek`")],
)
def test_a_wrong_policy_is_refused_with_its_line(line: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(f"escalate_within: 3 days\n{line}\n")
    with pytest.raises(RunFileError) as refused:
        load_model(tmp_path / "policy.yaml", RepairPolicy, "policy file")
    assert problem in refused.value.render()
    assert "policy.yaml:2" in refused.value.render()


def test_the_policy_of_the_guide_is_valid_and_its_table_has_every_key(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/repair.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yml\n(.*?)```", guide, re.DOTALL)
    (tmp_path / "repair.yaml").write_text(block)
    assert load_model(tmp_path / "repair.yaml", RepairPolicy, "policy file")[0].max_share == 0.1
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", guide.partition("| key |")[2], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"\w+", row)} == set(RepairPolicy.model_fields)


def test_this_machine_is_repaired_and_remembers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path / "data"))
    policy = tmp_path / "policy.yaml"
    policy.write_text("check: 'true'\n")
    (node,) = {event.node for event in repair("local", nodes=[nodes()[0].name], policy=policy, max_share="100%")}
    assert [str(event.step) for event in repair_history("local") if event.node == node][-2:] == ["release", "back"]
