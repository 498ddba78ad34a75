"""What NVIDIA's library says of GPUs that a file of JSON describes: the stand-in of tests whose processes have GPUs.

TRAINWORKS_TEST_GPUS is a folder with `gpus.json`, or a file with the name of each host that stands for another machine.
It is a list with an object for each GPU: `lost`, `uncorrected` errors of memory and `slices`, UUIDs of its MIG
instances. A program of the test may write it while it runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


def answers(pynvml: ModuleType) -> dict[str, Callable[..., Any]]:
    """The functions of pynvml by name; those of a device that no GPU here has an answer for are not supported."""

    def gpus() -> list[dict[str, Any]]:
        names = map(os.environ.get, ("TRAINWORKS_SSH_HOST", "TRAINWORKS_TEST_HOST", "SLURMD_NODENAME"))
        file = Path(os.environ["TRAINWORKS_TEST_GPUS"]) / f"{next(filter(None, names), 'gpus')}.json"
        found: list[dict[str, Any]] = json.loads(file.read_text())
        return found

    def refuse(*arguments: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def opened(index: int) -> int:
        if gpus()[index].get("lost"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def slice_of(handle: int, number: int) -> str:
        slices = gpus()[handle].get("slices", [])
        return slices[number] if number < len(slices) else refuse()  # type: ignore[no-any-return, func-returns-value]

    def uuid(handle: int | str) -> str:
        return handle if isinstance(handle, str) else f"GPU-{handle}0000000-test"

    found: dict[str, Callable[..., Any]] = {name: refuse for name in vars(pynvml) if name.startswith("nvmlDevice")}
    return found | {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "575.57.08",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 12090,
        "nvmlDeviceGetCount": lambda: len(gpus()),
        "nvmlDeviceGetHandleByIndex": opened,
        "nvmlDeviceGetName": lambda handle: "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetUUID": uuid,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=85_520_809_984, used=0, free=85_520_809_984),
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=f"00000000:{handle + 1:02X}:00.0"),
        "nvmlDeviceGetTotalEccErrors": lambda handle, *kind: gpus()[handle].get("uncorrected", 0),
        "nvmlDeviceGetMigMode": lambda handle: [int("slices" in gpus()[handle])] * 2,
        "nvmlDeviceGetMigDeviceHandleByIndex": slice_of,
    }
