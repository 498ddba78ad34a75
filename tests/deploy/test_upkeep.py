"""Nodes that come and go, secrets that are replaced, backups: in which order, and what a failure leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.deploy.test_rollout import FakeNodes
from trainworks.api import deploying
from trainworks.api.deploying import Upkeep
from trainworks.cli.app import app
from trainworks.config.stack import load_stack
from trainworks.deploy.delivered import AppliedHosts
from trainworks.deploy.playbook import SITE, Answer, HostCounts, Playbook, PlaybookRun
from trainworks.deploy.rollout import BatchStep
from trainworks.errors import UsageError

ANSIBLE = Path(sys.executable).with_name("ansible-playbook")
EXAMPLE = Path("examples/cluster/stack.yaml")
SERVERS = ["login1", "store1"]


@dataclass
class FakeCluster(FakeNodes):
    """Nodes whose playbooks are remembered, too, and fail on some hosts."""

    unreachable: frozenset[str] = frozenset()
    broken: list[str] = field(default_factory=list)
    """Playbooks that fail, one time each."""
    inventory: Mapping[str, object] = field(default_factory=dict)

    def play(
        self, into: Path, playbook: Playbook = SITE, *, limit: str, dry_run: bool = False, on_result: object = None
    ) -> PlaybookRun:
        tags = f" {','.join(playbook.tags)}" if playbook.tags else ""
        self.asked.append(f"{playbook.name}{tags} on {limit}")
        for name in playbook.inventories:
            self.inventory = yaml.safe_load((into / name).read_text())
        failed = playbook.name in self.broken
        if failed:
            self.broken.remove(playbook.name)
        return PlaybookRun(
            (), tuple(HostCounts(host, 1, 1, int(host in self.unreachable), int(failed)) for host in limit.split(","))
        )

    def answer(
        self, into: Path, hosts: Collection[str], command: str, inventories: Sequence[str] = ()
    ) -> Mapping[str, Answer]:
        if command == "true":
            return {host: Answer(None if host in self.unreachable else 0, "") for host in hosts}
        if "squeue" in command or "until [" in command:
            self.asked.append("wait for jobs" if "squeue" in command else "wait for slurmd")
            return {host: Answer(124 if self.busy else 0, "") for host in hosts}
        return self.command(hosts, command)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """The nodes of the example, in place of Ansible."""
    fake = FakeCluster()
    monkeypatch.setattr(deploying, "run_playbook", fake.play)
    monkeypatch.setattr(deploying, "run_command", fake.answer)
    return fake


def keeping(folder: Path, nodes: str = "gpu[01-04]", steps: list[BatchStep] | None = None) -> Upkeep:
    """The example with these nodes, whose project has the last apply of four."""
    stack = folder / "stack.yaml"
    stack.write_text(EXAMPLE.read_text().replace("gpu[01-04]", nodes))
    project = folder / "project"
    project.mkdir(exist_ok=True)
    before, _ = load_stack(EXAMPLE)
    names = [name for group in before.nodes for name in group.names]
    if not (project / "applied.json").exists():
        AppliedHosts({}).write(project, before, new=names)
    (project / "secrets").mkdir(exist_ok=True)
    (project / "secrets" / "munge.key").write_text("first\n")
    return Upkeep(stack, project, wait_s=60, on_step=(steps if steps is not None else []).append)


def test_a_node_that_leaves_has_no_jobs_then_no_alarm_then_no_keys_and_then_no_name(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    kept = keeping(tmp_path, "gpu[01-03]")
    assert not kept.take("remove", ["gpu04"]).failed
    assert cluster.asked == [
        "scontrol update NodeName=gpu04 State=DRAIN Reason='trainworks deploy'",
        "wait for jobs",
        "site.yaml monitoring on login1",
        "remove.yaml on gpu04",
        "site.yaml base,firewall,storage,scheduler,monitoring on login1,store1,gpu01,gpu02,gpu03",
    ]
    assert cluster.inventory["all"]["hosts"] == {"gpu04": {"ansible_host": "10.10.1.4"}}  # type: ignore[index]
    assert "gpu04" not in AppliedHosts.read(kept.into).hosts
    assert "gpu04" not in (kept.into / "roles/scheduler/files/slurm.conf").read_text()


def test_a_node_whose_jobs_do_not_end_stays(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.busy = True
    kept = keeping(tmp_path, "gpu[01-03]")
    assert "jobs were still running" in kept.take("remove", ["gpu04"]).stopped
    assert cluster.asked[-1] == "scontrol update NodeName=gpu04 State=RESUME"
    assert "gpu04" in AppliedHosts.read(kept.into).hosts


def test_a_machine_that_is_gone_is_forgotten_with_a_warning(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.unreachable = frozenset({"gpu04"})
    steps: list[BatchStep] = []
    kept = keeping(tmp_path, "gpu[01-03]", steps)
    assert not kept.take("remove", ["gpu04"]).failed
    assert steps[-1] == BatchStep(("gpu04",), "unreachable", "it may still have the cluster's secrets: rotate them")


def test_a_new_node_is_healthy_before_the_others_hear_of_it(cluster: FakeCluster, tmp_path: Path) -> None:
    kept = keeping(tmp_path, "gpu[01-05]")
    assert not kept.take("add", ["gpu05"]).failed
    assert cluster.asked == [
        "site.yaml on gpu05",
        "health gpu05",
        "site.yaml base,firewall,storage,scheduler,monitoring on login1,store1,gpu01,gpu02,gpu03,gpu04",
        "wait for slurmd",
    ]
    assert "gpu05" in AppliedHosts.read(kept.into).hosts


def test_the_others_never_hear_of_a_new_node_that_is_sick(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.sick = frozenset({"gpu05"})
    kept = keeping(tmp_path, "gpu[01-05]")
    assert kept.take("add", ["gpu05"]).stopped == "gpu05: gpu lost"
    assert cluster.asked == ["site.yaml on gpu05", "health gpu05"]
    assert "gpu05" not in AppliedHosts.read(kept.into).hosts


@pytest.mark.parametrize(("state", "ends"), [("idle", ["wait for jobs"]), ("down*", [])])
def test_a_replaced_node_takes_no_job_before_its_check(
    cluster: FakeCluster, tmp_path: Path, state: str, ends: list[str]
) -> None:
    cluster.states = cluster.states.replace("gpu02|idle", f"gpu02|{state}")
    assert not keeping(tmp_path).take("replace", ["gpu02"]).failed
    drain = "scontrol update NodeName=gpu02 State=DRAIN Reason='trainworks deploy'"
    down = drain.replace("State=DRAIN", "State=DOWN")
    assert cluster.asked == [
        *([drain, *ends] if ends else [down, drain]),
        "site.yaml on gpu02",
        "health gpu02",
        "site.yaml base,firewall,storage,scheduler,monitoring on login1,store1,gpu01,gpu03,gpu04",
        "wait for slurmd",
        "scontrol update NodeName=gpu02 State=RESUME",
    ]


def test_the_key_of_a_machine_that_is_gone_is_removed_and_no_other(cluster: FakeCluster, tmp_path: Path) -> None:
    kept = keeping(tmp_path)
    lines = [
        f"10.10.1.{number} ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqfRZ1sG9bU0b1yk0yUu6cK0Ypt2k9fPxJmI3xW5c1e"
        for number in (2, 20)
    ]
    (kept.into / "known_hosts").write_text("\n".join(lines) + "\n")
    kept.take("replace", ["gpu02"])
    assert (kept.into / "known_hosts").read_text().splitlines() == [lines[1]]
    assert (
        "StrictHostKeyChecking=accept-new -o UserKnownHostsFile=known_hosts" in (kept.into / "ansible.cfg").read_text()
    )


def test_another_secret_is_drawn_delivered_and_the_old_one_forgotten(cluster: FakeCluster, tmp_path: Path) -> None:
    kept = keeping(tmp_path)
    assert not kept.take("rotate", ["munge"]).failed
    assert cluster.asked == ["rotate.yaml munge on login1,store1,gpu01,gpu02,gpu03,gpu04"]
    key = kept.into / "secrets" / "munge.key"
    assert len(key.read_text()) == 129
    assert key.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in key.parent.iterdir()] == ["munge.key"]


def test_a_secret_that_does_not_work_is_taken_back(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.broken = ["rotate.yaml"]
    kept = keeping(tmp_path)
    assert kept.take("rotate", ["munge"]).stopped == "the new secret did not work; the old secret is back"
    assert len(cluster.asked) == 2
    assert (kept.into / "secrets" / "munge.key").read_text() == "first\n"


def test_a_rotation_that_was_interrupted_goes_on_with_what_it_drew(cluster: FakeCluster, tmp_path: Path) -> None:
    kept = keeping(tmp_path)
    (kept.into / "secrets" / "munge.key").write_text("drawn\n")
    (kept.into / "secrets" / "munge.key.old").write_text("first\n")
    kept.take("rotate", ["munge"])
    assert (kept.into / "secrets" / "munge.key").read_text() == "drawn\n"
    assert not (kept.into / "secrets" / "munge.key.old").exists()


def test_a_secret_is_not_replaced_while_a_host_would_keep_the_old_one(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.unreachable = frozenset({"gpu03"})
    kept = keeping(tmp_path)
    with pytest.raises(UsageError, match="gpu03 does not answer"):
        kept.take("rotate", ["munge"])
    assert (kept.into / "secrets" / "munge.key").read_text() == "first\n"


@pytest.mark.parametrize(
    ("step", "names", "message"),
    [
        ("rotate", ["root"], "no secret `root`"),
        ("rotate", ["database"], "no apply has delivered"),
        ("rotate", ["grafana"], "no secret `grafana`"),
        ("restore", ["state-missing.tar.gz"], "no file `state-missing.tar.gz`"),
        ("rotate", [], "takes one name"),
        ("backup", ["x"], "takes no name"),
        ("restore", ["missing.sql.gz"], "no file `missing.sql.gz`"),
    ],
)
def test_a_step_that_cannot_be_taken_is_refused(
    cluster: FakeCluster, tmp_path: Path, step: str, names: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        keeping(tmp_path).take(step, names)
    assert cluster.asked == []


@pytest.mark.parametrize(
    ("name", "playbook"), [("database-1.sql.gz", "restore.yaml"), ("state-1.tar.gz", "restore-state.yaml")]
)
def test_a_copy_goes_where_its_name_says(cluster: FakeCluster, tmp_path: Path, name: str, playbook: str) -> None:
    kept = keeping(tmp_path)
    assert not kept.take("restore", [f"/var/backups/slurm/{name}"]).failed
    assert cluster.asked == [f"{playbook} on login1,store1,gpu01,gpu02,gpu03,gpu04"]


def test_a_stack_without_a_database_restores_its_state_alone(cluster: FakeCluster, tmp_path: Path) -> None:
    kept = keeping(tmp_path)
    text = kept.path.read_text()
    slurm = yaml.safe_load(text)["slurm"]
    changed = yaml.safe_load(text) | {"slurm": {"release": slurm["release"], "accounting": False}}
    kept.path.write_text(yaml.safe_dump(changed))
    with pytest.raises(UsageError, match="no database to restore into"):
        kept.take("restore", ["/var/backups/slurm/database-1.sql.gz"])
    assert not kept.take("restore", ["/var/backups/slurm/state-1.tar.gz"]).failed


def test_the_password_of_grafana_is_drawn_where_there_is_one(cluster: FakeCluster, tmp_path: Path) -> None:
    kept = keeping(tmp_path)
    kept.path.write_text(kept.path.read_text().replace('hook"}', 'hook", grafana: true}'))
    secret = kept.into / "secrets" / "grafana"
    secret.write_text("first\n")
    assert not kept.take("rotate", ["grafana"]).failed
    assert cluster.asked == ["rotate.yaml grafana on login1,store1,gpu01,gpu02,gpu03,gpu04"]
    assert len(secret.read_text()) == 33
    playbook = yaml.safe_load((kept.into / "rotate.yaml").read_text())
    tagged = [task["name"] for play in playbook for task in play.get("tasks", ()) if "grafana" in task["tags"]]
    assert tagged == ["Deliver it", "Set it for its administrator", "Log in with it"]


def test_copies_come_into_a_folder_that_others_cannot_read(cluster: FakeCluster, tmp_path: Path) -> None:
    kept = keeping(tmp_path)
    kept.take("backup", [])
    assert (kept.into / "backups").stat().st_mode & 0o777 == 0o700
    assert cluster.asked == ["backup.yaml on login1,store1,gpu01,gpu02,gpu03,gpu04"]


def test_an_apply_records_its_hosts_and_the_command_prints_the_run(cluster: FakeCluster, tmp_path: Path) -> None:
    kept = keeping(tmp_path)
    (kept.into / "applied.json").unlink()
    command = ["deploy", "apply", str(kept.path), "--into", str(kept.into)]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert len(json.loads((kept.into / "applied.json").read_text())) == 6
    done = CliRunner().invoke(app, ["deploy", "backup", *command[2:], "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["failed"] is False


@pytest.mark.lane("test-all")
@pytest.mark.skipif(not ANSIBLE.exists(), reason="NOT TESTED: logins of a node that leaves, without Ansible")
def test_a_node_that_leaves_asks_slurm_no_more_who_may_log_in(tmp_path: Path) -> None:
    before = {
        "sshd": "@include common-auth\n@include common-account\n@include common-session\n",
        "session": "session required pam_unix.so\nsession\toptional\tpam_systemd.so \n",
    }
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    folder = Path("src/trainworks/deploy/ansible")
    enters = yaml.safe_load((folder / "roles/access/tasks/main.yaml").read_text())
    leaves = yaml.safe_load((folder / "roles/access/tasks/open.yaml").read_text())
    for play in ("remove.yaml", "site.yaml"):
        assert "tasks_from: open" in (folder / play).read_text()
    edits = ("ansible.builtin.blockinfile", "ansible.builtin.replace", "ansible.builtin.command")

    def run(tasks: list[dict[str, object]]) -> dict[str, str]:
        variables = {"slurm_adopt": True, "paths": {"pam_session": f"{tmp_path}/session"}}
        variables["ansible_python_interpreter"] = sys.executable
        steps = [task for task in tasks if any(edit in task for edit in edits) and "semodule" not in str(task)]
        play = {"hosts": "localhost", "gather_facts": False, "vars": variables, "tasks": steps}
        text = yaml.safe_dump([play]).replace("/etc/pam.d/", f"{tmp_path}/")
        (tmp_path / "logins.yaml").write_text(text)
        command = [ANSIBLE, "-i", "localhost,", "-c", "local", "logins.yaml"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return {name: (tmp_path / name).read_text() for name in before}

    entered = run(enters)
    assert "pam_slurm_adopt" in entered["sshd"] and "# session\toptional\tpam_systemd" in entered["session"]
    assert run(leaves) == before
    (tmp_path / "session").write_text("# session\toptional\tpam_systemd.so\n")
    assert run(leaves)["session"].startswith("# ")  # by another hand
    assert run(leaves)["sshd"] == before["sshd"]


@pytest.mark.lane("test-all")
@pytest.mark.skipif(not ANSIBLE.exists(), reason="NOT TESTED: the state of several controllers, without Ansible")
@pytest.mark.parametrize("stops", [True, False])
def test_no_other_controller_runs_while_the_state_is_replaced(tmp_path: Path, stops: bool) -> None:
    (play,) = yaml.safe_load(Path("src/trainworks/deploy/ansible/restore-state.yaml").read_text())
    (block,) = [task for task in play["tasks"] if "block" in task]
    log = tmp_path / "log"
    for task in (*block["block"], *block["always"]):
        done = task.pop("ansible.builtin.service", {}).get("state", "replaced")
        task.pop("ansible.builtin.command", None)
        fails = "; false" if done == "stopped" and not stops else ""
        task["ansible.builtin.shell"] = {"cmd": f"echo {{{{ inventory_hostname }}}} {done} >> {log}{fails}"}
    # `copy` of a file that is here writes to /var/backups, which a test does not
    play |= {"become": False, "tasks": [block]}
    play["vars"] |= {"dump": "/var/backups/slurm/state-1.tar.gz", "ansible_python_interpreter": sys.executable}
    (tmp_path / "play.yaml").write_text(yaml.safe_dump([play]))
    hosts = {name: {"ansible_connection": "local"} for name in ("ctl1", "ctl2", "ctl3")}
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump({"controller": {"hosts": hosts}}))
    command = [ANSIBLE, "-i", "hosts.yaml", "play.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == stops, done.stdout + done.stderr
    lines = log.read_text().splitlines()
    assert sorted(lines[:2]) == ["ctl2 stopped", "ctl3 stopped"]
    assert lines[2:-2] == ["ctl1 replaced"] * stops
    assert sorted(lines[-2:]) == ["ctl2 started", "ctl3 started"]
