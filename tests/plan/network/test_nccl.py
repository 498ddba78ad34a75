"""What NCCL is told."""

from __future__ import annotations

import pytest

from tests.fakes import processes
from trainworks.catalog.cluster import parse_cluster
from trainworks.plan.network.nccl import nccl_environment, nccl_settings

CLUSTERS = {
    "DGX H100": {},
    "16 nodes of DGX H100": {},
    "16 nodes of DGX H100 with SHARP": {"NCCL_COLLNET_ENABLE": "1"},
    "1 nodes of DGX H100 with SHARP": {},
    "4x p4d.24xlarge": {"FI_PROVIDER": "efa"},
    "4 nodes of 8x A100-SXM-80GB over 1x TCP 100": {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"},
    "4 nodes of 8x A100-SXM-80GB over 1x TCP 25": {},
    "4 nodes of 8x A100-SXM-80GB over 8x RoCE 200": {},
}


@pytest.mark.parametrize("text", CLUSTERS)
def test_a_cluster_is_told_what_nccl_cannot_find_out(text: str) -> None:
    settings = nccl_settings(parse_cluster(text))
    assert {each.name: each.value for each in settings} == CLUSTERS[text]
    assert all(each.why for each in settings)


@pytest.mark.parametrize("text", CLUSTERS)
def test_no_adapter_is_ever_pinned(text: str) -> None:
    assert not {"NCCL_IB_HCA", "NCCL_TOPO_FILE"} & {each.name for each in nccl_settings(parse_cluster(text))}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, {"FI_PROVIDER": "efa"}), ({"device": "cpu"}, {}), ({"nodes": 1}, {})],
    ids=["nccl", "gloo", "one node"],
)
def test_ranks_are_told_where_nccl_leaves_the_node(changes: dict[str, object], expected: dict[str, str]) -> None:
    ranks = processes(4, 8).model_copy(update={"device": "cuda"} | changes)
    assert nccl_environment(parse_cluster("4x p4d.24xlarge"), ranks) == expected
