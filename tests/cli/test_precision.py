"""A precision is trained where the hardware has it, and refused with the reason elsewhere."""

from __future__ import annotations

import pytest

from trainworks.cli.precision import check_precision
from trainworks.errors import MissingExtraError, UsageError
from trainworks.record.environment import AcceleratorFacts, HostFacts


def host(*capabilities: tuple[int, int] | None, torchao: bool = True) -> HostFacts:
    """A machine with such accelerators."""
    accelerators = tuple(
        AcceleratorFacts(index=index, name=f"gpu-{index}", memory_bytes=1, compute_capability=capability)
        for index, capability in enumerate(capabilities)
    )
    return HostFacts(
        hostname="h",
        operating_system="o",
        processor="p",
        num_cores=1,
        memory_bytes=1,
        disk_free_bytes=1,
        accelerators=accelerators,
        python="3",
        packages={"torchao": "0.18.0"} if torchao else {},
    )


@pytest.mark.parametrize(
    ("precision", "machine"),
    [
        ("fp32", host()),
        ("bf16", host((7, 0))),
        ("fp16", host()),
        ("tf32", host((8, 0), (9, 0))),
        ("fp8", host((8, 9))),
        ("fp8", host((10, 0))),
    ],
)
def test_what_the_hardware_has_is_trained(precision: str, machine: HostFacts) -> None:
    check_precision(precision, machine, None)


@pytest.mark.parametrize(
    ("precision", "machine", "message"),
    [
        ("tf32", host(), r"from compute capability 8\.0 \(Ampere\), and this machine has no accelerator"),
        ("tf32", host((7, 5)), r"accelerator 0 \(gpu-0\) has 7\.5"),
        ("fp8", host((9, 0), (8, 0)), r"8\.9 \(Ada or Hopper\); accelerator 1 \(gpu-1\) has 8\.0"),
        ("fp8", host(None), "has an unknown one"),
        ("fp4", host((10, 0)), "can be planned, not trained"),
    ],
)
def test_what_it_has_not_is_refused(precision: str, machine: HostFacts, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_precision(precision, machine, None)


def test_fp8_without_torchao_names_the_extra() -> None:
    with pytest.raises(MissingExtraError) as refused:
        check_precision("fp8", host((9, 0), torchao=False), None)
    assert refused.value.hint == "pip install 'trainworks[fp8]'"
