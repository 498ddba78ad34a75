"""A stack without a scheduler: what is left out, and what two machines still get."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.deploy.test_rollout import FakeNodes
from trainworks.api import deploying
from trainworks.api.deploying import Upkeep, render_stack
from trainworks.api.proving.review import review
from trainworks.config.load import parse_run_file
from trainworks.config.stack import Stack, is_stack_file, load_stack
from trainworks.deploy.delivered import AppliedHosts, delivered_files
from trainworks.deploy.layers import write_project
from trainworks.deploy.playbook import Answer
from trainworks.deploy.rollout import Batch, BatchStep, batches, rollout_of
from trainworks.deploy.upgrade import plan_upgrade
from trainworks.deploy.verification import services_of, verify
from trainworks.errors import RunFileError, UsageError
from trainworks.jobs.described_nodes import hosts_of, with_described_nodes

EXAMPLE = Path("examples/cluster/stack-two-boxes.yaml")
STACK, _ = load_stack(EXAMPLE)
FILES = render_stack(EXAMPLE)
AT = STACK.hosts("compute")["box2"]
VARIABLES = yaml.safe_load(FILES["group_vars/all.yaml"])


def changed(tmp_path: Path, **changes: str) -> Path:
    """The example with other texts."""
    text = EXAMPLE.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "stack.yaml").write_text(text)
    return tmp_path / "stack.yaml"


def test_nothing_of_slurm_reaches_a_node_and_all_that_is_no_scheduler_does(tmp_path: Path) -> None:
    delivered = delivered_files(STACK, FILES, {})
    paths = {path for host in delivered.values() for path in host}
    assert [path for path in paths if "slurm" in path or "munge" in path] == []
    assert {"/usr/local/sbin/check-node.sh", "/etc/systemd/system/trainworks-exporter.service"} <= {*delivered["box2"]}
    of_slurm = {name for name in VARIABLES if name.startswith(("slurm_", "munge_"))} - {"slurm_database_password"}
    assert len(of_slurm) >= 7 and not any(VARIABLES[name] for name in of_slurm)
    services = {name for host in ("box1", "box2") for name in services_of(STACK, host)}
    assert {"nfs-server", "chrony", "shared.mount", "trainworks-exporter", "prometheus"} <= services
    assert [name for name in services if "slurm" in name or "munge" in name] == []
    plays = yaml.safe_load(FILES["site.yaml"])
    roles = {role["role"] for play in plays for role in play["roles"]}
    assert {"base", "gpu", "tuning", "users", "environments", "monitoring"} <= roles
    assert not roles & {"scheduler", "access", "backup"}
    groups = yaml.safe_load(FILES["inventory.yaml"])["all"]["children"]
    assert not {"controller", "database"} & {*groups}
    assert [*groups["environments"]["hosts"]] == ["box1"]
    write_project(FILES, tmp_path, folder="")
    assert review(tmp_path).findings == []


def test_ranks_and_clocks_find_each_other_behind_the_firewall() -> None:
    assert VARIABLES["clock_hosts"] == ["box1"]
    assert {each["options"] for each in VARIABLES["exporters"].values()} == {"--collect gpus,health"}
    assert VARIABLES["firewall_ports"] == {
        "all": ["9855/tcp", "9100/tcp"],
        "storage": ["2049/tcp"],
        "compute": [],
        "monitoring": [],
        "box1": ["123/udp"],
    }


def test_an_environment_that_is_on_no_shared_file_system_is_on_each_node(tmp_path: Path) -> None:
    files = render_stack(changed(tmp_path, **{"at: /shared/environments": "at: /opt/environments"}))
    (found,) = yaml.safe_load(files["group_vars/all.yaml"])["environments"]
    assert (found["hosts"], found["is_local"]) == (["box1", "box2"], True)
    assert [*yaml.safe_load(files["inventory.yaml"])["all"]["children"]["environments"]["hosts"]] == ["box1", "box2"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[login, storage, ", "[login, controller, storage, ", "the role `controller` is one of Slurm"),
        ("[login, storage, ", "[login, database, storage, ", "the role `database` is one of Slurm"),
        ("export: /shared", "export: /export/shared", "from /export/shared, where its programs do not look"),
        ("users:", "kubernetes: {gpu_operator: v26.7.0, jobset: v0.10.1, kueue: v0.19.2}\nusers:", "a queue for each"),
    ],
)
def test_what_has_no_sense_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(RunFileError, match=message):
        load_stack(changed(tmp_path, **{old: new}))


def test_with_slurm_each_user_has_an_account(tmp_path: Path) -> None:
    text = Path("examples/cluster/stack.yaml").read_text()
    (tmp_path / "stack.yaml").write_text(text.replace(", account: vision", ""))
    with pytest.raises(RunFileError, match="the user `alice` has no `account`"):
        load_stack(tmp_path / "stack.yaml")


def test_the_steps_and_layers_of_slurm_are_refused(tmp_path: Path) -> None:
    kept = Upkeep(changed(tmp_path), tmp_path / "project")
    for step, names, message in (("backup", [], "has no Slurm"), ("rotate", ["munge"], "no secret `munge`")):
        with pytest.raises(UsageError, match=message):
            kept.take(step, names)
    with pytest.raises(UsageError, match="no database"):
        kept.take("restore", ["dump.sql.gz"])
    (tmp_path / "stack.d/slurm.d").mkdir(parents=True)
    (tmp_path / "stack.d/slurm.d/long.conf").write_text("KillWait=5\n")
    with pytest.raises(UsageError, match=r"no slurm\.conf"):
        render_stack(tmp_path / "stack.yaml")


def test_jobs_reach_its_machines_by_ssh_alone(tmp_path: Path) -> None:
    assert is_stack_file(str(EXAMPLE))
    text = "name: demo\nrun: python train.py\ncluster: {}\n"
    with pytest.raises(UsageError, match="has no `slurm` that a job could be submitted to") as refused:
        with_described_nodes(*parse_run_file(text.format(EXAMPLE), name="run.yaml"))
    assert "`engine: ssh`" in (refused.value.hint or "")
    by_ssh = text.format(f"{{of: {EXAMPLE}, engine: ssh}}")
    run_file = with_described_nodes(*parse_run_file(by_ssh, name="run.yaml"))
    hosts = [host for group in load_stack(EXAMPLE)[0].groups("compute") for host in group.names]
    assert run_file.cluster.ssh.hosts == tuple(hosts) and run_file.nodes == len(hosts)
    assert hosts_of(parse_run_file(by_ssh, name="run.yaml")[0].cluster) == run_file.cluster.ssh


@dataclass
class FakeBoxes(FakeNodes):
    """Nodes that were applied to, or not, and where programs compute, or not."""

    new: bool = False

    def command(self, hosts: Collection[str], command: str) -> Mapping[str, Answer]:
        if command.startswith("test -e"):
            return {host: Answer(int(self.new), "") for host in hosts}
        if "compute-apps" not in command:
            return super().command(hosts, command)
        self.asked.append(f"wait {','.join(hosts)}")
        return {host: Answer(124 * self.busy, "") for host in hosts}


@pytest.mark.parametrize(
    ("nodes", "asked", "steps", "stopped"),
    [
        (FakeBoxes(), ["preview", "wait", "apply", "health"], ["free", "applied", "healthy"], ""),
        (FakeBoxes(new=True), ["apply", "health"], ["applied", "healthy"], ""),
        (FakeBoxes(busy=True), ["preview", "wait"], ["failed"], "box1: programs were still computing"),
    ],
    ids=["free", "new", "busy"],
)
def test_each_node_waits_until_its_gpus_are_free_the_server_first(
    nodes: FakeBoxes, asked: list[str], steps: list[str], stopped: str
) -> None:
    assert batches(STACK, None) == [Batch(("box1",), True), Batch(("box2",), True)]
    nodes.drifted, taken = frozenset({"box1", "box2"}), list[BatchStep]()
    done = rollout_of(STACK, nodes, taken.append, 60).run(batches(STACK, None))
    hosts = ["box1"] if stopped else ["box1", "box2"]
    assert nodes.asked == [f"{each} {host}" for host in hosts for each in asked]
    assert [(step.hosts, step.step) for step in taken] == [((host,), each) for host in hosts for each in steps]
    assert done.stopped.startswith(stopped) and bool(done.stopped) == bool(stopped)


def test_a_node_that_leaves_is_asked_where_it_was_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, Sequence[str]]] = []

    def answer(into: Path, hosts: Collection[str], command: str, inventories: Sequence[str]) -> dict[str, Answer]:
        asked.append((",".join(hosts), inventories))
        assert yaml.safe_load((into / "leaving.yaml").read_text())["all"]["hosts"] == {"box2": {"ansible_host": AT}}
        return {host: Answer(124, "") for host in hosts}

    monkeypatch.setattr(deploying, "run_command", answer)
    project = tmp_path / "project"
    project.mkdir()
    AppliedHosts({}).write(project, STACK, new=["box1", "box2"])
    line = next(line for line in EXAMPLE.read_text().splitlines() if "hosts: box2" in line)
    done = Upkeep(changed(tmp_path, **{f"{line}\n": ""}), project, wait_s=5).take("remove", ["box2"])
    assert asked == [("box2", ("leaving.yaml",))]
    assert done.stopped == "box2: programs were still computing on GPUs after 5 s"


def said(host: str, stack: Stack = STACK) -> str:
    """What a host prints that is as the stack says."""
    lines = ["os\t\tubuntu 24.04", "clock\t\t0.000003,Normal", "user\talice\t2001", "kernel\t\t6.8.0-60-generic"]
    lines += [f"service\t{name}\tactive" for name in services_of(stack, host)]
    lines += ["mount\t/shared\tbox1:/shared nfs4"] * (host == "box2")
    lines += ["slurm\t\t", "health\t\tpasses", "driver\tnvidia\t580.126.18", "iommu\t\t", "acs\t\t"]
    ports = (("node", 9100), ("trainworks", 9855))
    targets = [f"target\t{job} {name}:{port}\tup" for name in ("box1", "box2") for job, port in ports]
    return "\n".join([*lines, *targets * (host == "box1")]) + "\n"


def test_nodes_that_are_as_the_stack_says_pass_and_upgrade_no_slurm() -> None:
    facts = {name: Answer(0, said(name)) for name in ("box1", "box2")}
    no_files: dict[str, dict[str, object]] = {"box1": {}, "box2": {}}
    found = verify(STACK, no_files, facts)  # type: ignore[arg-type]
    assert [each for each in found.verdicts if each.outcome == "fail"] == []
    assert "munge" not in {each.check for each in found.verdicts}
    old = {name: {"slurm": {"": ""}, "driver": {"nvidia": "575.1"}, "package": {}} for name in facts}
    steps = plan_upgrade(STACK, old, None).steps
    assert [(step.batch, dict(step.parts)) for step in steps] == [
        (Batch((name,), True), {"driver": ("575.1", "580")}) for name in ("box1", "box2")
    ]
