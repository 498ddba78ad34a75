"""Verdicts on what the nodes of a cluster say about themselves."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from trainworks.api import deploying
from trainworks.api.deploying import render_stack
from trainworks.cli.app import app
from trainworks.config.stack import load_stack
from trainworks.config.stack_parts.scheduler import SlurmPower
from trainworks.config.stack_parts.storage import SharedMount
from trainworks.deploy.delivered import DeliveredFile, delivered_files
from trainworks.deploy.file_systems import is_mounted_as, mount_units, mounted_as
from trainworks.deploy.layers import operating_system
from trainworks.deploy.playbook import Answer
from trainworks.deploy.verification import ClusterVerification, facts_of, probe, services_of, verify

EXAMPLE = "examples/cluster-demo/stack.yaml"
STACK, _ = load_stack(Path(EXAMPLE))
SECRETS = {"munge.key": b"drawn\n", "slurm_database": b"password\n", "exporter_token": b"token\n"}
FILES = delivered_files(STACK, render_stack(EXAMPLE), SECRETS)
HOSTS = [name for group in STACK.nodes for name in group.names]


def on_disk(file: DeliveredFile) -> str:
    """What a host prints of a file that is as it was delivered."""
    assert file.text is not None
    text = file.text if isinstance(file.text, bytes) else file.text.encode()
    return f"{hashlib.sha256(text).hexdigest()} {file.mode or '644'} {file.owner or 'root:root'}"


def said(host: str) -> str:
    """What a host prints that is as the stack says."""
    lines = [
        "os\t\tdebian 12",
        "clock\t\t0.000003,Normal",
        *(f"service\t{name}\tactive" for name in services_of(STACK, host)),
        "slurm\t\tslurm-wlm 22.05.8",
        "munge\t\tSuccess",
        "kernel\t\t6.1.0-28-amd64",
        *(f"file\t{each.name}\t{on_disk(each)}" for each in FILES[host].values()),
        "mount\t/shared\tstore1:/export/shared nfs4",
        "user\talice\t2001",
        "health\t\tpasses",
    ]
    if host == "login1":
        lines += [f"node\tgpu{number}\tidle|gpu:h100:2" for number in range(1, 5)]
        lines += [f"target\tnode {name}:9100\tup" for name in HOSTS]
        lines += [f"target\ttrainworks {name}:9855\tup" for name in HOSTS if name != "store1"]
    return "\n".join(lines) + "\n"


def verified(host: str = "", old: str = "", new: str = "") -> ClusterVerification:
    """Verdicts where one host says something else."""
    answers = {name: Answer(0, said(name)) for name in HOSTS}
    if host:
        assert old in answers[host].output
        answers[host] = Answer(0, answers[host].output.replace(old, new))
    return verify(STACK, FILES, answers)


def test_a_cluster_that_is_as_its_stack_says_passes() -> None:
    found = verified()
    assert not found.failed
    assert {verdict.outcome for verdict in found.verdicts} == {"pass"}
    assert {verdict.host for verdict in found.verdicts} == set(HOSTS)


@pytest.mark.parametrize(
    ("host", "old", "new", "check"),
    [
        ("gpu2", "debian 12", "debian 11", "operating system"),
        ("gpu2", "0.000003,Normal", "0.0,Not synchronised", "clock"),
        ("gpu2", "0.000003,Normal", "-2.5,Normal", "clock"),
        ("gpu2", "0.000003,Normal", "", "clock"),
        ("gpu2", "service\tslurmd\tactive", "service\tslurmd\tfailed", "service slurmd"),
        ("login1", "service\tmariadb\tactive", "service\tmariadb\tinactive", "service mariadb"),
        ("gpu2", "22.05.8", "23.11.4", "Slurm"),
        ("gpu2", "Success", "", "munge"),
        ("gpu2", "/etc/munge/munge.key\t", "/etc/munge/munge.key\t0", "/etc/munge/munge.key"),
        ("gpu2", "400 munge:munge", "777 munge:munge", "/etc/munge/munge.key"),
        ("login1", "600 slurm:slurm", "604 slurm:slurm", "/etc/slurm/slurmdbd.conf"),
        ("login1", "600 slurm:slurm", "600 root:root", "/etc/slurm/slurmdbd.conf"),
        ("gpu2", "/etc/slurm/slurm.conf\t", "/etc/slurm/slurm.conf\t0", "/etc/slurm/slurm.conf"),
        ("gpu2", "/etc/slurm/gres.conf\t", "/etc/slurm/gres.old\t", "/etc/slurm/gres.conf"),
        ("store1", "demo.exports\t", "demo.exports\tf", "/etc/exports.d/demo.exports"),
        ("gpu2", "system/shared.mount\t", "system/shared.mount\tf", "/etc/systemd/system/shared.mount"),
        ("gpu2", "all hosts in /etc/hosts\t", "all hosts in /etc/hosts\tf", "/etc/hosts: Name all hosts in /etc/hosts"),
        ("gpu2", "one clock\t", "one clock\t0", "/etc/chrony/conf.d/cluster.conf: Follow one clock"),
        ("gpu2", "store1:/export/shared nfs4", "", "mount /shared"),
        ("gpu2", "2001", "2002", "user alice"),
        ("gpu2", "health\t\tpasses", "health\t\tnot 2 accelerators", "health"),
        ("login1", "gpu3\tidle", "gpu3\tdrained", "Slurm's node gpu3"),
        ("login1", "gpu3\tidle|gpu:h100:2", "gpu3\tidle|gpu:h100:1", "Slurm's node gpu3"),
        ("login1", "store1:9100\tup", "store1:9100\tdown", "target node of store1"),
        ("login1", "node store1:9100", "node store2:9100", "target node of store1"),
        ("login1", "gpu2:9855\tup", "gpu2:9855\tdown", "target trainworks of gpu2"),
        ("gpu2", "trainworks-exporter\tactive", "trainworks-exporter\tfailed", "service trainworks-exporter"),
    ],
)
def test_a_difference_is_named(host: str, old: str, new: str, check: str) -> None:
    wrong = [verdict for verdict in verified(host, old, new).verdicts if verdict.outcome == "fail"]
    assert [(verdict.host, verdict.check) for verdict in wrong] == [(host, check)]


@pytest.mark.parametrize(("power", "failed"), [(None, True), (SlurmPower(start="true", stop="true"), False)])
def test_a_node_that_slurm_has_stopped_takes_jobs_where_it_may_stop_nodes(
    power: SlurmPower | None, failed: bool
) -> None:
    stack = STACK.model_copy(update={"slurm": STACK.scheduler.model_copy(update={"power": power})})
    answers = {name: Answer(0, said(name).replace("gpu3\tidle|", "gpu3\tidle~|")) for name in HOSTS}
    assert verify(stack, FILES, answers).failed == failed
    answers["login1"] = Answer(0, answers["login1"].output.replace("gpu3:9100\tup", "gpu3:9100\tdown"))
    found = verify(stack, FILES, answers | {"gpu3": Answer(None, "No route to host")})
    assert found.failed == failed
    assert [each.outcome for each in found.verdicts if each.host == "gpu3"] == ["warn"]


@pytest.mark.parametrize(
    ("binds", "failed"),
    [("/etc/hosts /etc/nccl.conf ", []), ("/etc/hosts", [("gpu1", "bind path of Apptainer")])],
)
def test_a_node_whose_containers_do_not_see_its_rails_is_named(binds: str, failed: list[tuple[str, str]]) -> None:
    containers = Path("examples/cluster-demo/shapes/containers.yaml")
    stack = load_stack(containers)[0]
    with_rails = STACK.model_copy(update={"fabric": stack.fabric, "environments": stack.environments})
    text = render_stack(containers)["roles/fabric/files/nodes_gpu/nccl.conf"]
    rails = DeliveredFile("/etc/nccl.conf", text)
    answer = Answer(0, f"{said('gpu1')}file\t/etc/nccl.conf\t{on_disk(rails)}\nbind\t\t{binds}\n")
    found = verify(with_rails, {"gpu1": FILES["gpu1"] | {rails.path: rails}}, {"gpu1": answer})
    assert [(each.host, each.check) for each in found.verdicts if each.outcome == "fail"] == failed


def test_a_role_starts_each_service_that_is_looked_at() -> None:
    """One that only its package starts stays stopped, whatever an apply does."""
    roles = "\n".join(path.read_text() for path in Path("src/trainworks/deploy/ansible/roles").glob("*/tasks/*.yaml"))
    started = set(re.findall(r'name: "?([^"\n]+)"?\n +state: started', roles))
    started |= {
        word
        for names in re.findall(r"state: started\n.*\n +loop: \[(.+)\]", roles)
        for word in re.findall(r'"(.+?)"', names)
    }
    named = operating_system(STACK).services.model_dump()
    templates = {named[key]: f"{{{{ services.{key} }}}}" for key in named}
    units = {unit.name: "{{ item.unit }}" for unit in mount_units(STACK)}
    looked_at = {name for host in HOSTS for name in services_of(STACK, host)}
    assert len(looked_at) > 12
    assert {name for name in looked_at if {name, templates.get(name), units.get(name)}.isdisjoint(started)} == set()


def test_a_difference_of_a_file_says_what_differs_and_no_secret() -> None:
    (wrong,) = [
        each for each in verified("gpu2", "400 munge:munge", "777 root:root").verdicts if each.outcome == "fail"
    ]
    assert (wrong.found, wrong.expected) == ("mode 777, owner root:root", "mode 400, owner munge:munge")
    (missing,) = [each for each in verified("gpu2", "/etc/slurm/gres.conf", "x").verdicts if each.outcome == "fail"]
    assert missing.found == "missing"
    assert "drawn" not in str(verified("gpu2", "/etc/munge/munge.key\t", "/etc/munge/munge.key\tf"))


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("", "", {}),
        ("127.0.0.1 localhost", "127.0.0.1 localhost box", {}),
        ("gpu2\n", "gpu2 node2\n", {"Name all hosts in /etc/hosts": "sha256"}),
        ("# BEGIN", "#", {"Name all hosts in /etc/hosts": "missing"}),
        ("localhost\n", "localhost\n127.0.1.1 gpu2\n", {"Remove the name of the host from loopback": "lines that"}),
    ],
)
def test_lines_of_a_file_are_compared_and_those_beside_them_are_not(
    tmp_path: Path, old: str, new: str, found: dict[str, str]
) -> None:
    hosts = tmp_path / "hosts"
    files = [replace(each, path=str(hosts)) for each in FILES["gpu2"].values() if each.path == "/etc/hosts"]
    (block,) = [each for each in files if each.text]
    hosts.write_text(f"127.0.0.1 localhost\n{block.text}10.0.0.9 printer\n".replace(old, new, 1))
    done = subprocess.run(["bash", "-c", probe(STACK, files)], capture_output=True, text=True, check=False)
    said_of = facts_of(done.stdout)["file"]
    differs = {each.part: each.difference(said_of[each.name])[0] for each in files}
    assert {part: differs[part].startswith(start) for part, start in found.items()} == dict.fromkeys(found, True)
    assert {part for part, difference in differs.items() if difference} == {*found}


def test_another_file_system_at_the_folder_is_a_warning() -> None:
    found = verified("gpu2", "store1:/export/shared nfs4", "tmpfs tmpfs")
    assert not found.failed
    assert [verdict.found for verdict in found.verdicts if verdict.outcome == "warn"] == ["tmpfs tmpfs"]


KINDS = {
    "nfs": ("{kind: nfs, at: /x, server: a, export: /e}", "a:/e nfs4"),
    "lustre": ("{kind: lustre, at: /x, device: '10.0.0.5@o2ib:/fast'}", "10.0.0.5@o2ib:/fast lustre"),
    "cephfs": ("{kind: cephfs, at: /x, monitors: [m1, m2], file_system: f, client: c}", "m1:3300,m2:3300:/ ceph"),
    "new cephfs": (
        "{kind: cephfs, at: /x, monitors: [m1], file_system: f, client: c, export: /e}",
        "c@0f5a9a52-7c1d-11f0-8de9-0242ac120002.f=/e ceph",
    ),
    "beegfs": ("{kind: beegfs, at: /x, server: a}", "beegfs_nodev beegfs"),
    "scale": ("{kind: scale, at: /x, device: fs1}", "fs1 gpfs"),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_mount_of_each_kind_is_known_by_what_findmnt_prints(name: str) -> None:
    text, printed = KINDS[name]
    mount = SharedMount.model_validate(yaml.safe_load(text))
    assert is_mounted_as(mount, printed)
    assert not any(is_mounted_as(mount, other) for other in ("tmpfs tmpfs", "None lustre", ""))
    if mount.kind != "scale":
        (unit,) = mount_units(STACK.model_copy(update={"mounts": (mount,), "scratch": None, "metadata": None}))
        assert all(f"={part}\n" in unit.text for part in mounted_as(mount))


def test_a_host_that_does_not_answer_fails() -> None:
    answers = {name: Answer(0, said(name)) for name in HOSTS} | {"gpu4": Answer(None, "Connection refused")}
    wrong = [verdict for verdict in verify(STACK, FILES, answers).verdicts if verdict.outcome == "fail"]
    assert [(verdict.host, verdict.check, verdict.found) for verdict in wrong] == [
        ("gpu4", "reached", "Connection refused")
    ]


def test_bash_accepts_the_probe() -> None:
    for file in (EXAMPLE, "examples/cluster/stack.yaml"):
        script = probe(load_stack(Path(file))[0], FILES["login1"].values())
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("new", "code"), [("", 1), ("tmpfs tmpfs", 0)])
def test_the_command_prints_differences_first(
    golden, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, new: str, code: int
) -> None:
    found = verified("gpu2", "store1:/export/shared nfs4", new)
    monkeypatch.setattr(deploying, "run_command", lambda into, hosts, command: {})
    monkeypatch.setattr(deploying, "verify", lambda stack, conf, answers: found)
    command = ["deploy", "verify", EXAMPLE, "--into", str(tmp_path / "project")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == code, done.output
    if code:
        golden("deploy_verify.txt", done.stdout)
    as_json = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(as_json.stdout)["failed"] is bool(code)


def test_a_host_says_its_packages_and_files(tmp_path: Path) -> None:
    file = tmp_path / "a\\x2db.mount"
    file.write_text("text\n")
    file.chmod(0o604)
    program = tmp_path / "dpkg-query"
    program.write_text("#!/bin/sh\nprintf 'ii  slurmd 22.05-1\\nhi  nvidia-a 1\\nrc  nvidia-b 2\\nun  slurm \\n'\n")
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    script = probe(STACK, [DeliveredFile(str(each), None) for each in (file, tmp_path / "missing")])
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    facts = facts_of(done.stdout)
    assert facts["package"] == {"slurmd": "22.05-1", "nvidia-a": "1"}
    (found,) = facts["file"].values()
    assert found.startswith(hashlib.sha256(b"text\n").hexdigest() + " 604 ")
