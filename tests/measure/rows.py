"""Rows of tables that tests change."""

from __future__ import annotations

RUN = {
    "id": "korthikanti-4",
    "source_key": "korthikanti22",
    "model": "GPT3-175B",
    "layers": "96",
    "hidden": "12288",
    "heads": "96",
    "vocab": "51200",
    "seq_len": "2048",
    "global_batch": "64",
    "micro_batch": "1",
    "gpu": "A100-80GB",
    "num_gpus": "64",
    "gpus_per_node": "8",
    "inter_node_net": "8x HDR200 IB per node",
    "dp": "1",
    "tp": "8",
    "pp": "8",
    "interleave": "3",
    "zero_stage": "0",
    "recompute": "selective",
    "precision": "fp16",
    "seqpar": "true",
    "step_time_s_eval": "13.75",
    "usable_for_step_eval": "yes",
}
"""GPT-3 on 64 A100, Korthikanti et al. 2022, table 5."""

COLLECTIVE = {
    "id": "h100-1g",
    "source": "nccl-tests",
    "gpu": "H100-80GB",
    "nodes": "1",
    "gpus": "8",
    "network": "NVLink4/NVSwitch (single node)",
    "collective": "all_reduce",
    "size_bytes": "1073741824",
    "time_us": "4000",
}


def run_row(**changes: str) -> dict[str, str]:
    """A row of a table of runs."""
    return RUN | changes


def collective_row(**changes: str) -> dict[str, str]:
    """A row of a table of collectives."""
    return COLLECTIVE | changes
