"""An accelerator has many names."""

from __future__ import annotations

import pytest

from trainworks.jobs.accelerator_names import matching_names


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("A100", "a100"),
        ("a100", "nvidia_a100_80gb_pcie"),
        ("A100", "NVIDIA-A100-SXM4-80GB"),
        ("A100-80GB", "a100"),
        ("A100-80GB", "nvidia_a100-sxm4-80gb"),
        ("A100-SXM-80GB", "a100_80g"),
        ("H100", "nvidia_h100_80gb_hbm3"),
        ("RTX3090", "geforce_rtx_3090"),
        ("V100", "tesla-v100"),
        ("MI300X", "amd_instinct_mi300x"),
        ("RTX-6000-Ada", "nvidia_rtx_6000_ada_generation"),
        ("1g.10gb", "nvidia_h100_80gb_hbm3_1g.10gb"),
        ("1g_10gb", "h100_1g.10gb"),
        ("H100-1g.10gb", "nvidia_h100_80gb_hbm3_1g.10gb"),
        ("1g.5gb+me", "NVIDIA A100-SXM4-40GB MIG 1g.5gb+me"),
    ],
)
def test_the_same_model_is_the_same_accelerator(wanted: str, name: str) -> None:
    assert matching_names(wanted, ["t4", name, "k80"]) == [name]


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("A10", "a100"),
        ("A10", "a10g"),
        ("L40", "l40s"),
        ("A100-80GB", "nvidia_a100_40gb"),
        ("A100-SXM", "nvidia_a100_80gb_pcie"),
        ("H100", "h200"),
        ("A100", "a100_1g.5gb"),
        ("1g.5gb", "a100_2g.10gb"),
        ("1g.5gb", "a100_1g.5gb+me"),
        ("A100-1g.5gb", "h100_1g.5gb"),
        ("GPU", "gpu"),
        ("RTX6000", "rtx_6000_ada"),
    ],
)
def test_another_model_memory_or_form_is_another_accelerator(wanted: str, name: str) -> None:
    assert matching_names(wanted, [name]) == ([name] if wanted.lower() == name else [])


def test_the_same_name_comes_before_all_that_would_do() -> None:
    assert matching_names("A100", ["a100_40gb", "A100", "a100_80gb"]) == ["A100"]


def test_all_that_would_do_are_named_in_their_order() -> None:
    assert matching_names("A100", ["a100_40gb", "t4", "a100_80gb", "a100_40gb"]) == ["a100_40gb", "a100_80gb"]
