"""Questions to NVML whose answer a GPU or driver may not have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pynvml


def ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """The answer of NVML; None if this GPU or driver has none."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def field_values(nvml: Any, handle: Any, wanted: Sequence[int]) -> dict[int, int]:
    """Values by field (`NVML_FI_...`), without the fields that the GPU does not have; `nvml` is pynvml or its like."""
    values = ask(nvml.nvmlDeviceGetFieldValues, handle, list(wanted)) or ()
    is_wide = {pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG}
    return {
        each.fieldId: int(each.value.ullVal if each.valueType in is_wide else each.value.uiVal)
        for each in values
        if each.nvmlReturn == pynvml.NVML_SUCCESS
    }
