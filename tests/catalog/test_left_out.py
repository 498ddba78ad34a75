"""What Trainworks leaves out is explained wherever its name is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import trainworks
from trainworks.api.deploying import check_stack
from trainworks.catalog.left_out import left_out, term_of_package
from trainworks.cli.app import app
from trainworks.errors import RunFileError, UsageError
from trainworks.review.check import check_text
from trainworks.review.registry import selected_rules

MXNET = "was retired by the Apache Software Foundation in 2023"


def found_by_review(text: str, name: str) -> list[str]:
    """Messages of TW706 about a file."""
    return [finding.message for finding in check_text(text, selected_rules(("TW706",), ()), name=name)]


@pytest.mark.parametrize("key", ["framework", "software"])
def test_a_run_file_that_names_it_gets_the_reason(tmp_path: Path, key: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"run: 'true'\n{key}: MXNet\n")
    with pytest.raises(RunFileError) as caught:
        trainworks.run(path)
    assert MXNET in caught.value.render() and f"run.yaml:2  {key}" in caught.value.render()


def test_a_stack_file_that_names_it_gets_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "stack.yaml"
    text = Path("examples/cluster/stack.yaml").read_text()
    path.write_text(text.replace('slurm:\n  release: "26.05"', 'slurm:\n  release: "BLCR"'))
    with pytest.raises(RunFileError, match=r"`BLCR` was removed from Slurm with 20\.02"):
        check_stack(path)


@pytest.mark.parametrize("on", ["4 nodes of 8x H100 over Fibre Channel", "8x Photonic", "8x CXL"])
def test_a_cluster_that_names_it_is_refused_with_the_reason(on: str) -> None:
    with pytest.raises(UsageError, match=r"storage network|no photonic part|link to memory behind the processor"):
        trainworks.network(on=on)


@pytest.mark.parametrize("name", [term.name for term in left_out()])
def test_the_catalogue_shows_every_one(name: str) -> None:
    shown = CliRunner().invoke(app, ["catalog", "show", name])
    term = next(term for term in left_out() if term.name == name)
    assert " ".join(term.meaning.split()[:4]) in " ".join(shown.stdout.split())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import mxnet as mx\n", "train.py"),
        ("from mxnet import gluon\n", "train.py"),
        ("mxnet-cu112==1.9.1\n", "requirements.txt"),
        ("pip install mxnet==1.9.1 numpy\n", "install.sh"),
        ("FROM ubuntu:24.04\nRUN pip install mxnet\n", "Dockerfile"),
    ],
)
def test_a_review_finds_it_in_code(text: str, name: str) -> None:
    assert [MXNET in message for message in found_by_review(text, name)] == [True]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import torch\nmxnet = None\n", "train.py"),
        ("# mxnet\nnumpy==2.3.1\n", "requirements.txt"),
        ("echo mxnet\n", "x.sh"),
    ],
)
def test_a_review_is_silent_where_the_word_is_not_a_package(text: str, name: str) -> None:
    assert found_by_review(text, name) == []


def test_the_launcher_of_horovod_is_found() -> None:
    assert "PyTorch brings the same all-reduce" in found_by_review("horovodrun -np 4 python train.py\n", "run.sh")[0]
    assert term_of_package("numpy") is None


def test_a_fat_tree_is_a_topology() -> None:
    assert trainworks.network(on="64 nodes of DGX H100", topology="fat-tree").design.topology == "spine-leaf"
