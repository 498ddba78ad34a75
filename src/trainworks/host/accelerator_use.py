"""Utilisation of the visible accelerators, by NVIDIA's management library."""

from __future__ import annotations

from typing import Any

import pynvml

from trainworks.host.probe import probe_accelerators


class AcceleratorUse:
    """Utilisation of the accelerators in `CUDA_VISIBLE_DEVICES`, by this job or any other process.

    Args:
        nvml: the library, or a fake.
    """

    def __init__(self, nvml: Any = pynvml) -> None:
        self._nvml = nvml
        self._handles: list[Any] = []
        self._last_us: dict[int, int] = {}
        visible = probe_accelerators()
        try:
            nvml.nvmlInit()
            self._handles = [nvml.nvmlDeviceGetHandleByIndex(facts.index) for facts in visible]
        except nvml.NVMLError:
            pass

    def look(self) -> float | None:
        """Busy share of the busiest accelerator since the last call; None if one of them does not report it."""
        try:
            shares = [self._share(number, handle) for number, handle in enumerate(self._handles)]
        except self._nvml.NVMLError:  # a part of an accelerator (MIG) has no such figure
            return None
        return max(shares, default=None)

    def _share(self, number: int, handle: Any) -> float:
        """Mean of the driver's samples since the last call, at least the current value."""
        nvml, last_us = self._nvml, self._last_us.get(number, 0)
        now = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        try:
            _, samples = nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, last_us)
        except nvml.NVMLError:
            return float(now)
        new = [sample for sample in samples if sample.timeStamp > last_us]
        if not new:
            return float(now)
        self._last_us[number] = max(sample.timeStamp for sample in new)
        mean = sum(sample.sampleValue.uiVal for sample in new) / len(new) / 100
        return max(float(now), float(mean))
