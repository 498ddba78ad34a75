"""What the ranks of a program do together, and values in configurations that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainworks.review.check import check_text
from trainworks.review.registry import RULES

_HEAD = (
    "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
    'dist.init_process_group("nccl")\nmodel = DDP(net)\n'
)
_SAVE = "torch.save(model.state_dict(), 'last.pt')\n"
_LOOP = (
    "for i, batch in enumerate(loader):\n    loss = model(batch) / k\n    loss.backward()\n"
    "    if (i + 1) % k == 0:\n        optimizer.step()\n"
)
_ALERT = "groups:\n- name: gpu\n  rules:\n  - alert: Gpu\n    expr: {}\n"


def lines(rule: str, text: str, name: str) -> list[int]:
    return [found.line for found in check_text(text, [RULES[rule]], name=name)]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (_SAVE, [6]),
        (f"for epoch in range(3):\n    if epoch % 2 == 0:\n        {_SAVE}", [8]),
        (f"def keep():\n    {_SAVE}keep()\n", [7]),
        (f"if dist.get_rank() == 0:\n    {_SAVE}", []),
        (f"def keep():\n    if rank != 0:\n        return\n    {_SAVE}keep()\n", []),
        (f"def keep():\n    {_SAVE}if is_main:\n    keep()\n", []),
        (f"def keep():\n    {_SAVE}", []),
        ("torch.save(model.state_dict(), f'last-{rank}.pt')\n", []),
        ("path = f'shard-{dist.get_rank()}.pt'\ntorch.save(model.state_dict(), path)\n", []),
        (f"from torch.distributed.fsdp import FSDP\n{_SAVE}", []),
    ],
    ids=[
        "module", "every second epoch", "function", "rank 0", "returns early", "guarded call", "unused function",
        "rank in the name", "rank in the variable", "sharded",
    ],
)  # fmt: skip
def test_a_file_that_every_rank_writes_is_found(code: str, found: list[int]) -> None:
    assert lines("TW621", _HEAD + code, "train.py") == found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (_LOOP, [9]),
        (
            _LOOP.replace("loss.backward", "scaler.scale(loss).backward").replace("optimizer.step()", "scaler.step(o)"),
            [9],
        ),
        (_LOOP.replace(" / k", ""), []),
        (_LOOP.replace("optimizer.step()", "log(i)"), []),
        (_LOOP.replace("    loss.backward()", "    with model.no_sync():\n        loss.backward()"), []),
        ("from accelerate import Accelerator\n" + _LOOP, []),
    ],
    ids=["plain", "scaled", "not divided", "logging", "no_sync", "accelerate"],
)
def test_an_exchange_in_every_accumulated_step_is_found(code: str, found: list[int]) -> None:
    assert lines("TW622", _HEAD + code, "train.py") == found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("try:\n    train()\nexcept RuntimeError:\n    dist.init_process_group('nccl')\n", [9]),
        (
            "try:\n    train()\nexcept OSError:\n    dist.destroy_process_group()\n    dist.init_process_group()\n",
            [],
        ),
        ("try:\n    dist.init_process_group()\nexcept RuntimeError:\n    dist.init_process_group('gloo')\n", []),
        ("try:\n    train()\nexcept RuntimeError:\n    raise\n", []),
    ],
    ids=["joined again", "destroyed first", "another backend", "ends"],
)
def test_a_group_that_is_joined_again_is_found(code: str, found: list[int]) -> None:
    assert lines("TW623", _HEAD + code, "train.py") == found


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE < 20", [5]),
        ("avg by (node) (DCGM_FI_PROF_SM_ACTIVE) > 1", [5]),
        ('avg_over_time(DCGM_FI_DEV_GPU_UTIL{job="a"}[5m]) > 120', [5]),
        ("DCGM_FI_PROF_SM_ACTIVE < 1", []),
        ("DCGM_FI_DEV_GPU_UTIL < 10", []),
        ("DCGM_FI_PROF_SM_ACTIVE * 100 > 80", []),
        ("sum(DCGM_FI_DEV_GPU_UTIL) > 400", []),
        ("DCGM_FI_DEV_GPU_TEMP > 90", []),
    ],
)
def test_a_threshold_outside_the_range_of_its_metric_is_found(expression: str, found: list[int]) -> None:
    assert lines("TW725", _ALERT.format(expression), "alerts.yml") == found


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("torchrun --node-rank=$SLURM_NODE_RANK t.py", [2]),
        ("echo ${SLURM_LOCAL_RANK}", [2]),
        ("torchrun --node-rank=$SLURM_NODEID t.py", []),
        ("echo ${SLURM_LOCAL_RANK:-0}", []),
        ("SLURM_NODE_RANK=$SLURM_NODEID; torchrun --node-rank=$SLURM_NODE_RANK t.py", []),
        ("# $SLURM_NODE_RANK", []),
    ],
)
def test_a_variable_that_slurm_does_not_set_is_found(command: str, found: list[int]) -> None:
    assert lines("TW121", f"#!/bin/bash\n{command}\n", "train.sh") == found


@pytest.mark.parametrize(
    ("partition", "found"),
    [("Nodes=n[1-9]", [2]), ("Nodes=n[1-4]", []), ("Nodes=ALL", []), ("Nodes=n1,x2", [2])],
)
def test_a_partition_has_nodes_that_are_defined(partition: str, found: list[int]) -> None:
    assert lines("TW313", f"NodeName=n[1-8] CPUs=4\nPartitionName=p {partition}\n", "slurm.conf") == found


@pytest.mark.parametrize("other", ["NodeSet=a Nodes=n[1-9]", "include nodes.conf", "MaxNodeCount=100"])
def test_nodes_that_other_lines_may_define_are_left_alone(other: str) -> None:
    text = f"{other}\nNodeName=n[1-8] CPUs=4\nPartitionName=p Nodes=n[1-9]\n"
    assert lines("TW313", text, "slurm.conf") == []


@pytest.mark.parametrize(("gres", "found"), [("Name=gpu File=/dev/nvidia0\n", 1), ("Name=license\n", 0)])
def test_devices_are_constrained_where_the_cluster_has_gpus(tmp_path: Path, gres: str, found: int) -> None:
    (tmp_path / "gres.conf").write_text(gres)
    text = "ConstrainCores=yes\n"
    assert len(check_text(text, [RULES["TW312"]], name="cgroup.conf", folder=tmp_path)) == found
    assert check_text(text + "ConstrainDevices=yes\n", [RULES["TW312"]], name="cgroup.conf", folder=tmp_path) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("export NCCL_ALGO=Ring\n", [1]),
        ("export NCCL_ALGO=Ring  # or Tree\n", []),
        ("export NCCL_ALGO=Ring\nexport CUBLAS_WORKSPACE_CONFIG=:4096:8\n", []),
    ],
)
def test_a_ring_that_is_forced_for_speed_is_found(text: str, found: list[int]) -> None:
    assert lines("TW224", text, "train.sh") == found


def test_python_programs_of_a_text_are_read_on_their_lines() -> None:
    program = f"```python\n{_HEAD}{_SAVE}```\n"
    assert lines("TW621", f"# Guide\n\n{program}", "guide.md") == [9]
    assert lines("TW621", program.replace("```python", "```text"), "guide.md") == []
