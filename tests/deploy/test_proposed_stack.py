"""From a sizing or a network to a stack file that `deploy` takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import trainworks
from trainworks.api.deploying.proposal import stack_yaml
from trainworks.api.deploying.stack import check_stack, render_stack
from trainworks.catalog.cluster import parse_cluster
from trainworks.deploy.proposed_stack import FILL_IN, proposed_stack
from trainworks.errors import RunFileError, UsageError

RUN = "examples/plan-llama-2-7b.yaml"


def written(folder: Path, text: str) -> Path:
    """A stack file with this text."""
    path = folder / "stack.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def filled_in(text: str) -> str:
    """The file after a person has looked at every marked line."""
    return re.sub(rf"\s*{FILL_IN}.*", "", text)


def test_a_proposal_becomes_a_stack_that_is_checked_filled_in_and_rendered(tmp_path: Path) -> None:
    proposal = trainworks.size(RUN, deadline="3d", only=["H100-SXM-80GB"], contract=["on-demand"])
    stack = written(tmp_path, stack_yaml(proposal))
    assert [one.message for one in check_stack(stack).findings if one.severity == "error"] == []
    with pytest.raises(RunFileError, match="needs your own value: your public key"):
        render_stack(stack)
    files = render_stack(written(tmp_path, filled_in(stack.read_text())))
    nodes = re.findall(r"NodeName=(gpu\S+)", files["roles/scheduler/files/slurm.conf"])
    assert nodes and f"{proposal.chosen.num_nodes}" in nodes[0]


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ("4 nodes of DGX H100", 'gpu: {driver: "620"}'),
        ("4 nodes of DGX A100", 'gpu: {driver: "620"}'),
        ("2x p3.16xlarge", 'gpu: {driver: "580"}'),
        ("8 nodes of DGX B200", 'gpu: {driver: "620"}'),
        ("32x H100", "fill in: your machine"),
    ],
)
def test_releases_fit_the_gpus_and_are_supported(tmp_path: Path, cluster: str, expected: str) -> None:
    text = proposed_stack(parse_cluster(cluster))
    assert expected in text
    findings = check_stack(written(tmp_path, text)).findings
    assert [one.message for one in findings if one.severity != "note"] == []


def test_every_placeholder_is_named_with_its_line(tmp_path: Path) -> None:
    text = stack_yaml(trainworks.network(on="16 nodes of DGX A100"))
    with pytest.raises(RunFileError) as caught:
        render_stack(written(tmp_path, text))
    marked = [number for number, line in enumerate(text.splitlines(), 1) if FILL_IN in line]
    assert [int(str(one.place).rpartition(":")[2]) for one in caught.value.problems] == marked


def test_a_machine_that_is_assumed_is_marked(tmp_path: Path) -> None:
    text = proposed_stack(parse_cluster("4 nodes of 8x A100-SXM-80GB over 8x HDR"))
    line = next(line for line in text.splitlines() if "roles: [compute]" in line)
    assert line.endswith("machine: DGX A100 80GB}  # fill in: your machine; this one of the catalogue is assumed")
    assert [one for one in check_stack(written(tmp_path, text)).findings if one.severity == "error"] == []


def test_accelerators_of_another_vendor_are_refused() -> None:
    with pytest.raises(UsageError, match="a stack file is for nodes with GPUs of NVIDIA"):
        proposed_stack(parse_cluster("4 nodes of 8x MI300X over 8x NDR"))


def test_a_cluster_beyond_the_network_of_the_file_is_refused() -> None:
    with pytest.raises(UsageError, match="do not fit the network"):
        proposed_stack(parse_cluster("1x DGX H100").model_copy(update={"num_nodes": 70_000}))
