"""The fabric of a stack: hosts, switches, NCCL and UCX have the same numbers, and real programs accept the files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from ipaddress import IPv4Interface
from pathlib import Path

import pytest
import yaml

from trainworks.api.deploying import check_stack, render_stack
from trainworks.config.stack import load_stack
from trainworks.deploy.delivered import DeliveredFile, delivered_files
from trainworks.deploy.fabric.switches import switches
from trainworks.deploy.project import open_sm_files
from trainworks.deploy.verification import facts_of, probe
from trainworks.errors import RunFileError

ANSIBLE = Path(sys.executable).with_name("ansible-playbook")
EXAMPLE = Path("examples/cluster/stack-roce.yaml")
ROLE = "roles/fabric/files"
ROCE = EXAMPLE.read_text().partition("fabric:\n")[2].partition("\nslurm:")[0]
INFINIBAND = """  link: infiniband
  devices: [mlx5_0, mlx5_1]
  subnet_managers: [login1, store1]
  mpi: {openmpi: "4.1", cuda: false}
"""


def rendered(tmp_path: Path, *changes: tuple[str, str]) -> Mapping[str, str]:
    """The project of the example with other texts."""
    text = EXAMPLE.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    (tmp_path / "stack.yaml").write_text(text)
    return render_stack(tmp_path / "stack.yaml")


@pytest.fixture(scope="module")
def roce(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    return rendered(tmp_path_factory.mktemp("roce"))


ONE_RAIL = (
    ("gpu[01-16]", "gpu[001-200]"),
    ("[mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7]", "[mlx5_0]"),
    ("[rail0, rail1, rail2, rail3, rail4, rail5, rail6, rail7]", "[rail0]"),
)
"""A cluster whose adapters are too many for one switch."""


@pytest.fixture(scope="module")
def cumulus(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    return rendered(tmp_path_factory.mktemp("cumulus"), *ONE_RAIL)


@pytest.fixture(scope="module")
def eos(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    return rendered(tmp_path_factory.mktemp("eos"), *ONE_RAIL, ("switches: cumulus", "switches: eos"))


@pytest.fixture(scope="module")
def infiniband(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    return rendered(tmp_path_factory.mktemp("infiniband"), (ROCE, INFINIBAND), ('pmix: "5.0"', 'pmix: "4.2"'))


def shortened(text: str) -> str:
    """A text without most of the lines that repeat for each port."""
    seen: Counter[str] = Counter()
    lines = []
    for line in text.splitlines():
        kind = re.sub(r"(?:swp|Ethernet|gpu|mlx5_|spine|port )[\d/s]+|\d+\.\d+\.\d+\.\d+", "*", line)
        seen[kind] += 1
        if seen[kind] < 3 or (kind in ("!", "") and lines[-1] != kind):
            lines.append(line if len(line) < 160 else f"{line[:150]} ...")
    return "\n".join(lines) + "\n"


def test_each_line_that_is_not_obvious_has_its_reason(roce, cumulus, eos, infiniband, golden) -> None:
    own = ("nccl.conf", "roce-host.sh", "roce-check.sh", "ucx.conf")
    files = [(name, roce[f"{ROLE}/nodes_gpu/{name}"]) for name in own]
    files += [("gpu16/50-rail7.network", roce[f"{ROLE}/gpu16/50-rail7.network"])]
    files += [(name, shortened(cumulus[f"switches/{name}"])) for name in ("leaf2.nvue.sh", "spine1.nvue.sh")]
    files += [("leaf2.eos", shortened(eos["switches/leaf2.eos"]))]
    names = ("nodes_gpu/nccl.conf", "login1/opensm.conf", "login1/partitions.conf", "openmpi-mca-params.conf")
    files += [(f"infiniband: {name}", infiniband[f"{ROLE}/{name}"]) for name in (*names, "nodes_gpu/mpi-check.sh")]
    golden("deploy_fabric.txt", "\n".join(f"# --- {name}\n{text}" for name, text in files))


def test_hosts_switches_nccl_and_ucx_agree(roce, eos) -> None:
    host, nccl = roce[f"{ROLE}/nodes_gpu/roce-host.sh"], roce[f"{ROLE}/nodes_gpu/nccl.conf"]
    code_point, priority = re.search(r"dscp-prio (\d+):(\d+)", host).groups()
    assert f"{priority}:on" in host
    assert f"NCCL_IB_TC={int(code_point) << 2 | 2}\n" in nccl
    assert f"UCX_IB_TRAFFIC_CLASS={int(code_point) << 2 | 2}\n" in roce[f"{ROLE}/nodes_gpu/ucx.conf"]
    leaf = eos["switches/leaf1.eos"]
    assert f"qos map dscp {code_point} to traffic-class {priority}\n" in leaf
    assert f"priority-flow-control priority {priority} no-drop\n" in leaf


def test_each_rail_and_its_leaf_have_the_two_addresses_of_one_network(roce) -> None:
    networks = [text for name, text in roce.items() if name.endswith(".network")]
    hosts = [IPv4Interface(re.search("Address=(.+)", text)[1]) for text in networks]
    leaves = "".join(text for name, text in roce.items() if name.startswith("switches/"))
    ends = [IPv4Interface(each) for each in re.findall(r"ip address (\S+/31)", leaves)]
    assert len(hosts) == len(set(hosts)) == 16 * 8
    assert {each.network for each in hosts} == {each.network for each in ends}
    assert not {each.ip for each in hosts} & {each.ip for each in ends}


def test_containers_of_each_runtime_see_the_settings_of_their_host(infiniband, tmp_path: Path) -> None:
    """Enroot by a table of mounts, Apptainer by a line of its configuration, which `verify` looks for."""
    fields = {"/etc/nccl.conf": ("/etc/nccl.conf", "none", "x-create=file,bind,ro,nosuid,nodev,noexec,private")}
    image = 'environments: [{name: torch, image: "nvidia/pytorch:26.09-py3", cuda: "13.0", at: /shared}]'
    files = rendered(tmp_path, ('pmix: "5.0"', 'pyxis: "26.05"'), ("scratch:", f"{image}\n\nscratch:"))
    table = files[f"{ROLE}/nodes_gpu/30-nccl.fstab"]
    lines = [line.split() for line in table.splitlines() if not line.startswith("#")]
    assert {source: tuple(rest) for source, *rest in lines} == fields
    runtimes = [yaml.safe_load(each["group_vars/nodes_gpu.yaml"])["fabric_runtimes"] for each in (files, infiniband)]
    assert runtimes == [["enroot", "apptainer"], []]
    assert not any(name.endswith(".fstab") for name in infiniband)
    stack, _ = load_stack(tmp_path / "stack.yaml")
    delivered = delivered_files(stack, files, {})
    assert delivered["gpu01"]["/etc/enroot/mounts.d/30-nccl.fstab"] == DeliveredFile(
        "/etc/enroot/mounts.d/30-nccl.fstab", table
    )
    assert not any("enroot" in path for path in delivered["login1"])
    asked = probe(stack, [DeliveredFile("/etc/nccl.conf", "")])
    (tmp_path / "apptainer.conf").write_text(
        "#bind path = /opt\nbind path = /etc/localtime,/etc/hosts\nbind path = /etc/nccl.conf\n"
    )
    line = next(line for line in asked.splitlines() if line.startswith("say bind"))
    line = line.replace("/etc/apptainer/", f"{tmp_path}/")
    answer = subprocess.run(
        ["bash", "-c", f"{asked.splitlines()[0]}\n{line}"], capture_output=True, text=True, check=True
    ).stdout
    assert facts_of(answer)["bind"][""].split() == ["/etc/localtime", "/etc/hosts", "/etc/nccl.conf"]


@pytest.mark.lane("test-all")
@pytest.mark.skipif(not ANSIBLE.exists(), reason="NOT TESTED: configuration of Apptainer, without Ansible")
def test_ansible_adds_one_line_to_the_configuration_of_apptainer_and_none_the_second_time(
    infiniband, tmp_path: Path
) -> None:
    conf = "# of the package\nbind path = /etc/localtime\nbind path = /etc/hosts\n# bind path = /opt\nmount tmp = yes\n"
    tasks = infiniband["roles/fabric/tasks/containers.yaml"].replace("/etc/", f"{tmp_path}/")
    (tmp_path / "apptainer").mkdir()
    (tmp_path / "apptainer/apptainer.conf").write_text(conf)
    (tmp_path / "30-nccl.fstab").write_text("# of Enroot\n")
    variables = {
        "fabric_runtimes": ["enroot", "apptainer"],
        "nccl_settings": "/etc/nccl.conf",
        "node_group": str(tmp_path),
        "ansible_python_interpreter": sys.executable,
        "own_files": [],
    }
    play = {"hosts": "localhost", "gather_facts": False, "vars": variables, "tasks": 2 * yaml.safe_load(tasks)}
    (tmp_path / "play.yaml").write_text(yaml.safe_dump([play]))
    environment = os.environ | {"ANSIBLE_HOME": str(tmp_path), "ANSIBLE_NOCOLOR": "1"}
    command = [ANSIBLE, "--inventory", "localhost,", "--connection", "local", "play.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "ok=6    changed=3 " in done.stdout, done.stdout + done.stderr
    added = conf.replace("/etc/hosts\n", "/etc/hosts\nbind path = /etc/nccl.conf\n")
    assert (tmp_path / "apptainer/apptainer.conf").read_text() == added
    assert (tmp_path / "enroot/mounts.d/30-nccl.fstab").read_text() == "# of Enroot\n"


def test_both_ends_of_each_link_are_neighbours_and_leaves_have_systems_of_their_own(eos) -> None:
    texts = {name.removeprefix("switches/").removesuffix(".eos"): text for name, text in eos.items() if ".eos" in name}
    systems = {name: re.search(r"router bgp (\d+)", text)[1] for name, text in texts.items()}
    wanted = {
        name: Counter(systems[peer] for peer in re.findall(r"description (\w+) port", text))
        for name, text in texts.items()
    }
    found = {name: Counter(re.findall(r"remote-as (\d+)", text)) for name, text in texts.items()}
    assert found == wanted
    leaves = [system for name, system in systems.items() if name.startswith("leaf")]
    assert len(set(leaves)) == len(leaves) > 2
    assert {system for name, system in systems.items() if name.startswith("spine")} == {"4200000000"}


@pytest.mark.skipif(shutil.which("opensm") is None, reason="needs opensm")
def test_opensm_reads_each_line(tmp_path: Path) -> None:
    written = {}
    for place in (0, 1):
        for name, text in open_sm_files(place).items():
            (tmp_path / name).write_text(text)
        command = ["opensm", "-F", tmp_path / "opensm.conf", "--create-config", tmp_path / "written"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "Unrecognized" not in done.stdout + done.stderr
        written[place] = (tmp_path / "written").read_text()
        wanted = [line for line in (tmp_path / "opensm.conf").read_text().splitlines() if not line.startswith("#")]
        assert [line for line in wanted if f"\n{line}\n" not in written[place]] == []
    assert "\nsm_priority 14\n" in written[0] and "\nsm_priority 13\n" in written[1]


@pytest.mark.skipif(shutil.which("ucx_info") is None, reason="needs ucx_info of ucx-utils")
def test_ucx_knows_each_setting(roce) -> None:
    known = subprocess.run(["ucx_info", "-c", "-a", "-f"], capture_output=True, text=True, check=True).stdout
    names = re.findall(r"^(UCX_\w+)=", roce[f"{ROLE}/nodes_gpu/ucx.conf"], re.MULTILINE)
    assert names and [name for name in names if name not in known] == []


@pytest.mark.skipif(shutil.which("ompi_info") is None, reason="needs ompi_info of openmpi-bin")
def test_open_mpi_takes_its_settings_and_the_check_names_what_is_missing(infiniband, tmp_path: Path) -> None:
    (tmp_path / "mca.conf").write_text(infiniband[f"{ROLE}/openmpi-mca-params.conf"])
    command = ["ompi_info", "--all", "--parsable"]
    environment = os.environ | {"OMPI_MCA_mca_base_param_files": str(tmp_path / "mca.conf")}
    known = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    for name, value in (("pml", "ucx"), ("osc", "ucx"), ("btl", "^openib")):
        assert f"mca:{name}:base:param:{name}:value:{value}\n" in known
    check = subprocess.run(
        ["bash", "-c", infiniband[f"{ROLE}/nodes_gpu/mpi-check.sh"]], capture_output=True, text=True, check=False
    )
    assert check.returncode == 1
    assert "UCX does not see mlx5_0\n" in check.stdout


def test_the_driver_of_the_adapters_has_the_release_of_the_stack(roce, infiniband) -> None:
    packages = [yaml.safe_load(files["group_vars/all.yaml"])["fabric_packages"] for files in (roce, infiniband)]
    assert packages[0] == ["doca-ofed=3.2*"]
    assert "rdma-core" in packages[1]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_service(roce, tmp_path: Path) -> None:
    unit = tmp_path / "roce-host.service"
    unit.write_text(roce[f"{ROLE}/roce-host.service"].replace("/usr/local/sbin/roce-host.sh", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_host_that_disagrees_is_named(roce, tmp_path: Path) -> None:
    for number in range(8):
        port = tmp_path / f"class/infiniband/mlx5_{number}/ports/1"
        for name, text in {
            "gid_attrs/types/3": "RoCE v2\n",
            "gids/3": "0000:0000:0000:0000:0000:ffff:ac14:0001\n",
        }.items():
            (port / name).parent.mkdir(parents=True, exist_ok=True)
            (port / name).write_text(text)
        (tmp_path / f"class/net/rail{number}").mkdir(parents=True)
        (tmp_path / f"class/net/rail{number}/mtu").write_text("9000\n")
    (tmp_path / "dcb").write_text('#!/bin/sh\n[ "$1" = pfc ] && echo "2:off 3:on" || echo "dscp-prio AF31:3"\n')
    (tmp_path / "dcb").chmod(0o755)

    def check() -> tuple[int, str]:
        environment = {"SYS": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin"}
        script = roce[f"{ROLE}/nodes_gpu/roce-check.sh"]
        done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert check() == (0, "")
    (tmp_path / "class/infiniband/mlx5_2/ports/1/gid_attrs/types/3").write_text("IB/RoCE v1\n")
    (tmp_path / "class/net/rail5/mtu").write_text("1500\n")
    assert check() == (1, "mlx5_2: GID 3 is not RoCE v2\nrail5: MTU is not 9000\n")


@pytest.mark.parametrize("count", [16, 40, 100])
def test_topology_and_switches_of_one_render_have_the_same_leaves(tmp_path: Path, count: int) -> None:
    second = """
  - hosts: big[1-8]
    address: 10.20.9.1
    roles: [compute]
    hardware: {sockets: 2, cores_per_socket: 64, threads_per_core: 2, memory: 3900 GiB, accelerators: "b200:8"}

gpu:"""
    files = rendered(
        tmp_path, ("gpu[01-16]", f"gpu[001-{count}]"), ("\n\ngpu:", second), ("172.20.0.0/22", "172.20.0.0/19")
    )
    topology = files["roles/scheduler/files/topology.conf"]
    by_topology = {frozenset(nodes.split(",")) for nodes in re.findall(r"SwitchName=leaf\d+ Nodes=(\S+)", topology)}
    stack, _ = load_stack(tmp_path / "stack.yaml")
    by_switches = {frozenset(rail.host for _, rail in switch.rails) for switch in switches(stack)} - {frozenset()}
    assert by_topology == by_switches
    assert len(frozenset.union(*by_topology)) == count + 8


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ("172.20.0.0/22", "172.20.0.0/25", "fabric.network", "256 addresses are needed"),
        ("172.20.0.0/22", "172.20.0.0/24", "fabric.network", "no addresses left for 2 switches"),
        ("gpu[01-16]", "gpu[0001-2000]", "fabric.network", "32000 addresses are needed"),
        ('  doca: "3.2"\n', "", "fabric", "`doca` is the release"),
        ("  speed: 400\n", "", "fabric", "RoCE needs `network`, `speed`"),
        ("link: roce", "link: infiniband", "fabric", "are for `link: roce`"),
        ("  asn: 4200000000", "  subnet_managers: [login1]", "fabric", "Ethernet has no subnet manager"),
        (ROCE, INFINIBAND.replace("store1", "store9"), "", "no host `store9`"),
    ],
    ids=["hosts", "switches", "many", "doca", "speed", "link", "manager", "no host"],
)
def test_a_problem_of_the_fabric_has_its_place(tmp_path: Path, old: str, new: str, place: str, message: str) -> None:
    with pytest.raises(RunFileError) as raised:
        rendered(tmp_path, (old, new))
    found = [(each.place or "", each.message) for each in raised.value.problems]
    assert any(message in text and where.endswith(place) for where, text in found), raised.value.render()


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ('kernel: "6.8"', 'kernel: "6.14"', "TW741"),
        ('release: "26.05"\n  pmix: "5.0"', 'release: "21.08"\n  pmix: "5.0"', "TW742"),
        ('pmix: "5.0"', 'pyxis: "25.11"', "TW743"),
    ],
)
def test_drivers_and_plugins_that_do_not_fit_are_refused(tmp_path: Path, old: str, new: str, rule: str) -> None:
    text = EXAMPLE.read_text()
    assert old in text
    (tmp_path / "stack.yaml").write_text(text.replace(old, new))
    assert [each.rule for each in check_stack(tmp_path / "stack.yaml").findings if each.severity == "error"] == [rule]
