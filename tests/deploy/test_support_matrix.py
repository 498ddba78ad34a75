"""`deploy check` agrees with the support matrices that the publishers print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trainworks.api.deploying import check_stack

TABLE = yaml.safe_load(Path(__file__).with_name("support_matrix.yaml").read_text(encoding="utf-8"))
LINES = {
    "os": "os: {}",
    "driver": 'gpu: {{driver: "{}"}}',
    "rocm": 'gpu: {{rocm: "{}"}}',
    "gpu": '  - {{hosts: "gpu[1-4]", address: 10.0.0.11, roles: [compute], {}}}',
    "second_gpu": '  - {{hosts: "more[1-4]", address: 10.0.0.21, roles: [compute], {}}}',
    "slurm": '  release: "{}"',
    "packages": "  packages: {}",
    "pmix": '  pmix: "{}"',
    "pyxis": '  pyxis: "{}"',
    "torch": '    torch: "{}"',
    "cuda": '    cuda: "{}"',
    "torch_rocm": '    rocm: "{}"',
    "image": '    image: "{}"',
    "kernel": '  kernel: "{}"',
    "operator": "  gpu_operator: {}",
}
PARTS = (
    ("os", "name: matrix\nnetwork: 10.0.0.0/24\nadmin_keys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqfRZ1s]"),
    ("driver rocm", ""),
    ("gpu second_gpu", "nodes:\n  - {hosts: head, address: 10.0.0.1, roles: [controller, database]}"),
    ("slurm packages pmix pyxis", "slurm:"),
    ("torch cuda torch_rocm image", "environments:\n  - name: first\n    at: /shared"),
    ("kernel", "fabric:\n  link: infiniband\n  driver: doca-ofed\n  doca: 3.2.1\n  devices: [mlx5_0]"),
    ("operator", "users: [{name: a, uid: 2001, account: a}]\nkubernetes:\n  jobset: v0.10.1\n  kueue: v0.19.2"),
)
"""Keys of a row, and the lines before them."""


def stack_of(row: dict[str, Any]) -> tuple[str, dict[int, str]]:
    """The stack file of a row, and the key that each of its lines has."""
    values = TABLE["base"] | row
    others = (*(("torch", "cuda") if "image" in row else ()), *(("driver", "cuda") if "rocm" in row else ()))
    values = {key: value for key, value in values.items() if key not in others}
    lines: list[str] = []
    places: dict[int, str] = {}
    for keys, head in PARTS:
        wanted = [key for key in keys.split() if key in values]
        lines += head.splitlines() if wanted else []
        for key in wanted:
            value = values[key]
            if key.endswith("gpu"):
                known = "hardware: {{sockets: 2, cores_per_socket: 32, memory: 1 TiB, accelerators: '{}:8'}}"
                value = f"machine: {value}" if value.startswith("DGX") else known.format(value)
            lines.append(LINES[key].format(value))
            places[len(lines)] = key
    return "\n".join(lines) + "\n", places


@pytest.mark.parametrize("row", TABLE["rows"], ids=lambda row: " ".join(f"{k}={v}" for k, v in row.items())[:90])
def test_a_combination_is_judged_as_its_publishers_judge_it(row: dict[str, Any], tmp_path: Path) -> None:
    text, places = stack_of(row)
    file = tmp_path / "stack.yaml"
    file.write_text(text, encoding="utf-8")
    judged: dict[str, set[str]] = {"error": set(), "warning": set(), "note": set(), "unjudged": set()}
    for finding in check_stack(file).findings:
        kind = "unjudged" if finding.rule == "TW751" else finding.severity
        judged[kind].add(places.get(finding.line or 0, f"line {finding.line}"))
    assert row["source"] in TABLE["sources"]
    answers = [set(row.get(key, [])) for key in ("refused", "outdated", "unjudged")]
    assert [judged["error"], judged["warning"], judged["unjudged"]] == answers


def test_the_matrix_has_ninety_combinations_and_more() -> None:
    assert len(TABLE["rows"]) >= 90
