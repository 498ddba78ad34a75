"""Accelerators in the words of Kubernetes."""

from __future__ import annotations

import pytest

from trainworks.errors import UsageError
from trainworks.jobs.formats.manifest import Device, device_of


@pytest.mark.parametrize(
    ("name", "resource"),
    [
        (None, "nvidia.com/gpu"),
        ("A100", "nvidia.com/gpu"),
        ("h100", "nvidia.com/gpu"),
        ("A100-80GB", "nvidia.com/gpu"),
        ("L40S", "nvidia.com/gpu"),
        ("GB200", "nvidia.com/gpu"),
        ("RTX3090", "nvidia.com/gpu"),
        ("MI300X", "amd.com/gpu"),
        ("Gaudi2", "habana.ai/gaudi"),
        ("Trainium2", "aws.amazon.com/neuron"),
        ("1g.10gb", "nvidia.com/mig-1g.10gb"),
        ("A100-1g.5gb+me", "nvidia.com/mig-1g.5gb.me"),
        ("nvidia_h100_80gb_hbm3_3g_40gb", "nvidia.com/mig-3g.40gb"),
    ],
)
def test_an_accelerator_is_the_resource_of_its_vendor_s_plugin(name: str | None, resource: str) -> None:
    assert device_of(name, 8, 2) == Device(resource)


@pytest.mark.parametrize(
    ("name", "chips", "nodes", "accelerator", "topology"),
    [
        ("tpu-v5e", 8, 1, "tpu-v5-lite-podslice", "2x4"),
        ("tpu-v5e", 1, 1, "tpu-v5-lite-podslice", "1x1"),
        ("TPU-v5litepod", 4, 4, "tpu-v5-lite-podslice", "4x4"),
        ("tpu-v4", 4, 2, "tpu-v4-podslice", "2x2x2"),
        ("tpu-v5p", 4, 16, "tpu-v5p-slice", "4x4x4"),
        ("Trillium", 4, 64, "tpu-v6e-slice", "16x16"),
        ("tpu7x", 4, 1, "tpu7x", "2x2x1"),
    ],
)
def test_a_slice_of_tpus_is_one_topology_over_all_nodes(
    name: str, chips: int, nodes: int, accelerator: str, topology: str
) -> None:
    labels = {"cloud.google.com/gke-tpu-accelerator": accelerator, "cloud.google.com/gke-tpu-topology": topology}
    assert device_of(name, chips, nodes) == Device("google.com/tpu", labels)


@pytest.mark.parametrize(
    ("name", "chips", "nodes", "error"),
    [
        ("Ascend-910B", 8, 1, "unknown accelerator `Ascend-910B`"),
        ("tpu-v9", 4, 1, "unknown TPU `tpu-v9`"),
        ("tpu-v5e", 3, 1, "no node with 3 chips of `tpu-v5e`"),
        ("tpu-v5e", 8, 2, "no slice of `tpu-v5e` over 2 nodes with 8 chips each"),
        ("tpu-v5p", 4, 3, "no slice of `tpu-v5p` with 12 chips: 3 nodes of 4"),
    ],
)
def test_what_no_node_has_is_refused(name: str, chips: int, nodes: int, error: str) -> None:
    with pytest.raises(UsageError, match=error) as refused:
        device_of(name, chips, nodes)
    assert refused.value.hint is not None
