"""A precision is trained where the hardware has it, and refused with the reason elsewhere."""

from __future__ import annotations

import pytest

from trainworks.errors import MissingExtraError, UsageError
from trainworks.plan.run.trainable import check_precision, default_precision
from trainworks.record.environment import AcceleratorFacts, HostFacts
from trainworks.report.local_plan import emulation_note


def host(*capabilities: tuple[int, int] | None, torchao: bool = True, formats: tuple[str, ...] = ()) -> HostFacts:
    """A machine with such accelerators."""
    accelerators = tuple(
        AcceleratorFacts(index=index, name=f"gpu-{index}", memory_bytes=1, compute_capability=capability)
        for index, capability in enumerate(capabilities)
    )
    return HostFacts(
        hostname="h",
        operating_system="o",
        processor="p",
        processor_formats=formats,  # type: ignore[arg-type]
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


@pytest.mark.parametrize(
    ("device", "formats", "chosen"),
    [("cpu", (), "fp32"), ("cpu", ("fp16",), "fp32"), ("cpu", ("bf16",), "bf16"), ("cuda", (), "bf16")],
)
def test_bf16_is_chosen_where_it_is_not_emulated(device: str, formats: tuple[str, ...], chosen: str) -> None:
    machine = host(formats=formats)
    assert default_precision(machine, device) == chosen
    assert emulation_note(default_precision(machine, device), machine, device) is None


def test_an_emulated_precision_is_said_to_be_slow() -> None:
    assert "only emulates fp16" in (emulation_note("fp16", host(formats=("bf16",)), "cpu") or "")
    assert emulation_note("fp16", host(formats=("bf16", "fp16")), "cpu") is None
    assert emulation_note("fp32", host(), "cpu") is None
