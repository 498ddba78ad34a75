"""The stack file: problems have places and hints, and releases that do not fit together are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from trainworks.api.deploying import check_stack, render_stack
from trainworks.catalog import software
from trainworks.cli.app import app
from trainworks.config.stack import load_stack
from trainworks.errors import RunFileError

EXAMPLE = Path("examples/cluster/stack.yaml")
ARTICLES = """name: article
os: CentOS 8
network: 10.0.0.0/24
admin_keys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqfRZ1s]
nodes:
  - {hosts: head, address: 10.0.0.1, roles: [controller, database]}
  - {hosts: "node[1-4]", address: 10.0.0.11, roles: [compute], machine: DGX H100}
gpu: {driver: "525"}
slurm: {release: "22.05"}
environments:
  - {name: image, image: "nvidia/cuda:11.6.0-cudnn8-runtime-ubuntu20.04", at: /shared}
  - {name: wheels, torch: "2.0", cuda: "12.0", at: /shared}
"""
OPERATOR = "kubernetes: {{gpu_operator: {}, jobset: v0.10.1, kueue: v0.19.2}}\nusers:"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "stack.yaml"


def test_the_stack_that_articles_name_is_refused_piece_by_piece(file: Path) -> None:
    file.write_text(ARTICLES)
    found = [(finding.line, finding.rule, finding.severity) for finding in check_stack(file).findings]
    assert found == [
        (2, "TW731", "error"),
        (8, "TW732", "error"),
        (9, "TW737", "warning"),
        (11, "TW731", "error"),
        (11, "TW735", "error"),
        (12, "TW746", "error"),
        (12, "TW736", "error"),
    ]


def test_a_refused_stack_exits_with_1_and_a_good_one_with_0(file: Path) -> None:
    file.write_text(ARTICLES)
    refused = CliRunner().invoke(app, ["deploy", "check", str(file)])
    assert refused.exit_code == 1
    assert "Install a long-term branch: R580" in refused.output
    assert CliRunner().invoke(app, ["deploy", "check", str(EXAMPLE)]).exit_code == 0


@pytest.mark.parametrize(
    ("wrong", "right", "rules"),
    [
        ('driver: "580"', 'driver: "595"', ["TW738"]),
        ("Ubuntu 24.04", "Ubuntu 22.04", ["TW738"]),
        ("machine: DGX H100", "machine: DGX B200", []),
        ('cuda: "13.0"', 'cuda: "12.6"', []),
        ('cuda: "13.0"', 'cuda: "12.8"', ["TW736"]),
    ],
)
def test_one_change_of_a_good_stack(file: Path, wrong: str, right: str, rules: list[str]) -> None:
    file.write_text(EXAMPLE.read_text().replace(wrong, right))
    assert [finding.rule for finding in check_stack(file).findings] == rules


@pytest.mark.parametrize(
    ("wrong", "right", "place", "message"),
    [
        ("release:", "relase:", "15  slurm.relase", "unknown key `relase`"),
        ("roles: [storage]", "roles: [stroage]", "10  nodes.1.roles.0", "must be one of"),
        ("10.10.1.1", "10.11.1.1", "1", "outside of 10.10.0.0/16"),
        ("10.10.0.20", "10.10.1.3", "1", "belongs to two hosts"),
        ("gpu[01-04]", "gpu[04-01]", "11  nodes.2.hosts", "not a list of nodes"),
        (", machine: DGX H100", "", "1", "need `machine` or `hardware`"),
        ("database, ", "", "1", "no node has the role `database`"),
        ("Ubuntu 24.04", "Ubuntu 99.04", "4  os", "no release `Ubuntu 99.04`"),
        ("Ubuntu 24.04", "R580", "4  os", "`R580` is a driver, and not an operating system"),
        ("machine: DGX H100", "machine: DGX H101", "11  nodes.2.machine", "no node or instance `DGX H101`"),
        ("machine: DGX H100", "machine: MI300X node", "11  nodes.2.machine", "does not know the processors"),
        (
            "machine: DGX H100",
            "hardware: {sockets: 2, cores_per_socket: 64, memory: 1 TiB, accelerators: 'MI300X:8'}",
            "11  nodes.2.hardware.accelerators",
            "is made by AMD, and `gpu` is a driver for `nvidia`",
        ),
        (
            "machine: DGX H100",
            "hardware: {sockets: 2, cores_per_socket: 64, memory: 1 TiB, accelerators: 'h1000:8'}",
            "11  nodes.2.hardware.accelerators",
            "no accelerator `h1000`",
        ),
        ("uid: 2002", "uid: 2001", "1", "uid `2001` is there twice"),
        ("at: /datasets", "at: /shared", "1", "mount `/shared` is there twice"),
        ("10.10.1.1", "255.255.255.254", "1", "outside of"),
        (", export: /export/shared", "", "21  mounts.0", "`server` and `export`"),
        ("alice,", '"$(id)",', "30  users.0.name", "text that matches"),
    ],
)
def test_a_problem_has_its_place(file: Path, wrong: str, right: str, place: str, message: str) -> None:
    text = EXAMPLE.read_text()
    assert wrong in text
    file.write_text(text.replace(wrong, right, 1))
    with pytest.raises(RunFileError) as raised:
        check_stack(file)
    assert any(
        message in each.message and (each.place or "").endswith(f"stack.yaml:{place}") for each in raised.value.problems
    ), raised.value.render()


P100 = "hardware: {sockets: 2, cores_per_socket: 8, memory: 1 TiB, accelerators: 'P100:8'}"
NGC = '{name: ngc, image: "nvcr.io/nvidia/pytorch:24.01-py3", at: /shared/images}'


@pytest.mark.parametrize(
    ("changes", "rules"),
    [
        ({"machine: DGX H100": P100, '"2.14", cuda: "13.0"': '"2.9", cuda: "12.8"'}, ["TW745"]),
        ({"machine: DGX H100": P100, '"2.14", cuda: "13.0"': '"2.9", cuda: "12.6"'}, []),
        ({"machine: DGX H100": P100.replace("P100", "V100"), '"2.14", cuda: "13.0"': '"2.10", cuda: "12.8"'}, []),
        ({"Ubuntu 24.04": "Rocky 9", '"2.14", cuda: "13.0"': '"2.9", cuda: "13.0"'}, ["TW746"]),
        ({"Ubuntu 24.04": "Rocky 9", '"2.14", cuda: "13.0"': '"2.8", cuda: "12.8"'}, []),
        ({'"2.14", cuda: "13.0"': '"2.1", cuda: "12.1"'}, ["TW746"]),
        ({"machine: DGX H100": "machine: DGX B200", "users:": f"  - {NGC}\nusers:"}, ["TW735"]),
        ({"machine: DGX H100": "machine: DGX B200", "users:": f"  - {NGC.replace('24.01', '25.06')}\nusers:"}, []),
        ({"users:": f"  - {NGC}\nusers:"}, []),
        ({"machine: DGX H100": "machine: DGX B200", "users:": OPERATOR.format("v23.9.0")}, ["TW747", "TW748"]),
        ({"machine: DGX H100": "machine: DGX B200", "users:": OPERATOR.format("v26.7.0")}, []),
    ],
    ids=lambda value: str(value)[:60],
)
def test_software_that_does_not_know_the_gpus_or_the_python_is_refused(
    file: Path, changes: dict[str, str], rules: list[str]
) -> None:
    text = EXAMPLE.read_text().replace('monitoring: {page: "https://pager.example/hook"}\n', "")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    assert [each.rule for each in check_stack(file).findings] == rules


def test_groups_whose_gpus_need_different_kernel_modules_get_each_its_own(file: Path) -> None:
    old = f"  - {{hosts: old1, address: 10.10.9.1, roles: [compute], {P100}}}\n"
    text = EXAMPLE.read_text().replace("DGX H100}\n", "DGX B200}\n" + old)
    environment = text.partition("environments:\n")[2].partition("\n\n")[0]
    file.write_text(text.replace(f"environments:\n{environment}", ""))
    files = render_stack(file)
    packages = {
        name: yaml.safe_load(files[f"group_vars/nodes_{name}.yaml"])["gpu_driver_packages"] for name in ("gpu", "old1")
    }
    assert "nvidia-driver-580-server-open" in packages["gpu"]
    assert packages["old1"] == ["nvidia-driver-580-server", "nvidia-utils-580-server"]


@pytest.mark.parametrize(
    ("system", "gpus", "package"),
    [
        ("Debian 12", "machine: DGX B200", "nvidia-open-580"),
        ("Debian 12", P100, "cuda-drivers-580"),
        ("Ubuntu 24.04", "machine: DGX H100", "nvidia-driver-580-server-open"),
        ("Ubuntu 24.04", P100, "nvidia-driver-580-server"),
        ("Rocky 9", "machine: DGX B200", "kmod-nvidia-open-dkms-580.*"),
        ("Rocky 9", P100, "kmod-nvidia-latest-dkms-580.*"),
    ],
)
def test_the_driver_has_the_kernel_module_that_knows_the_gpus(file: Path, system: str, gpus: str, package: str) -> None:
    text = EXAMPLE.read_text().replace("Ubuntu 24.04", system).replace("machine: DGX H100", gpus)
    text = text.replace(", monitoring]", "]").replace('monitoring: {page: "https://pager.example/hook"}\n', "")
    environment = text.partition("environments:\n")[2].partition("\n\n")[0]
    file.write_text(text.replace(f"environments:\n{environment}", ""))
    variables = yaml.safe_load(render_stack(file)["group_vars/nodes_gpu.yaml"])
    assert package in variables["gpu_driver_packages"]


def test_addresses_follow_the_first_of_their_group() -> None:
    stack, _ = load_stack(EXAMPLE)
    assert list(stack.hosts("compute").items())[-1] == ("gpu04", "10.10.1.4")


def test_support_of_a_branch_without_a_row_is_judged_by_its_age() -> None:
    assert [software.support_end("driver", branch) for branch in ("460", "580", "999")] == ["", None, None]
