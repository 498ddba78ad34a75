"""Rules and corrections ask for the version that a project pins before they speak or write."""

from __future__ import annotations

from pathlib import Path

import pytest

import trainworks
from trainworks.review.check import check_text
from trainworks.review.registry import RULES
from trainworks.review.versions import Releases, allowed_releases

SCALER = "import torch\ns = torch.cuda.amp.GradScaler()\n"
NEW = 'import torch\ns = torch.amp.GradScaler("cuda")\n'
VARIABLE = "export NCCL_ASYNC_ERROR_HANDLING=1\n"
PIN_2_0_1 = {
    "requirements.txt": "torch==2.0.1\n",
    "constraints.txt": "numpy==1.26\ntorch==2.0.1+cu118  # of the cluster\n",
    "pyproject.toml": '[project]\ndependencies = ["torch>=2.0,<2.1"]\n',
    "Pipfile": '[packages]\ntorch = "==2.0.1"\n',
    "environment.yml": "dependencies:\n- pytorch::pytorch=2.0.1=py3.10_cuda11.8\n",
    "uv.lock": '[[package]]\nname = "torch"\nversion = "2.0.1"\n',
    "Dockerfile": "FROM pytorch/pytorch:2.0.1-cuda11.7-cudnn8-runtime\n",
    "docker/Dockerfile": "FROM ubuntu:22.04\nARG TORCH_VERSION=2.0.1\nRUN pip install torch==${TORCH_VERSION}\n",
    "stack.yaml": 'os: Ubuntu 24.04\nenvironment: {torch: "2.0", cuda: "11.8"}\n',
}


def project(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def found(path: Path, *rules: str) -> list[str]:
    return [finding.rule for finding in trainworks.review(path, select=list(rules)).findings]


@pytest.mark.parametrize("name", PIN_2_0_1)
def test_what_a_pinned_version_cannot_do_is_neither_found_nor_written(tmp_path: Path, name: str) -> None:
    project(tmp_path, **{name: PIN_2_0_1[name], "jobs/train.py": SCALER, "jobs/train.sh": VARIABLE})
    report = trainworks.review(tmp_path / "jobs", fix=True)
    assert (list(report.findings), report.fixed) == ([], 0)
    assert (tmp_path / "jobs" / "train.py").read_text() == SCALER
    assert (tmp_path / "jobs" / "train.sh").read_text() == VARIABLE


@pytest.mark.parametrize("pin", ["torch==2.9.0", "torch>=2.3", "torch~=2.4", "torch>=2.3,!=2.5.0"])
def test_what_every_pinned_version_can_do_is_corrected(tmp_path: Path, pin: str) -> None:
    project(tmp_path, **{"requirements.txt": f"{pin}\n", "train.py": SCALER})
    assert trainworks.review(tmp_path, fix=True).fixed == 1
    assert (tmp_path / "train.py").read_text() == NEW


def test_a_range_that_begins_before_the_new_name_is_found_and_not_corrected(tmp_path: Path) -> None:
    project(tmp_path, **{"requirements.txt": "torch>=2.0\n", "train.py": SCALER})
    report = trainworks.review(tmp_path, fix=True)
    (finding,) = report.findings
    assert finding.message.endswith(
        "(no correction: it needs torch 2.3 or newer, and requirements.txt has `torch>=2.0`)"
    )
    assert (tmp_path / "train.py").read_text() == SCALER


def test_a_lock_file_decides_over_the_range_that_it_was_resolved_from(tmp_path: Path) -> None:
    lock = '[[package]]\nname = "torch"\nversion = "2.9.0"\n'
    project(tmp_path, **{"pyproject.toml": 'dependencies = ["torch>=2.0"]\n', "uv.lock": lock, "train.py": SCALER})
    assert trainworks.review(tmp_path, fix=True).fixed == 1


def test_without_a_pin_the_finding_says_what_the_correction_presumes(tmp_path: Path) -> None:
    (finding,) = trainworks.review(project(tmp_path, **{"train.py": SCALER})).findings
    assert finding.message.endswith("(the correction presumes torch 2.3 or newer)")
    assert finding.edits


def test_a_file_that_installs_its_own_version_is_not_judged_by_its_neighbours(tmp_path: Path) -> None:
    own = "# /// script\n# dependencies = ['torch==2.0.1']\n# ///\n"
    project(tmp_path, **{"requirements.txt": "torch==2.9\n", "train.py": own + SCALER})
    assert found(tmp_path, "TW603") == []


def test_a_pin_in_a_comment_or_of_another_package_is_none(tmp_path: Path) -> None:
    text = "# torch==2.0.1 was too old\ntorchvision==0.15.2\npytorch-cuda=11.8\n"
    assert allowed_releases("torch", "requirements.txt", text, None) == ()


@pytest.mark.parametrize(
    ("files", "rule", "count"),
    [
        ({"stack.yaml": 'slurm: {release: "22.05"}\n', "slurm.conf": "SelectType=select/cons_res\n"}, "TW307", 0),
        (
            {
                "stack.yaml": 'slurm:\n  accounting: true\n\n  release: "22.05"\n',
                "slurm.conf": "SelectType=select/cons_res\n",
            },
            "TW307",
            0,
        ),
        (
            {
                "stack.yaml": 'slurm:\n  accounting: true\nother:\n  release: "22.05"\n',
                "slurm.conf": "SelectType=select/cons_res\n",
            },
            "TW307",
            1,
        ),
        (
            {
                "stack.yaml": 'slurm: {accounting: true, release: "22.05"}\n',
                "slurm.conf": "SelectType=select/cons_res\n",
            },
            "TW307",
            0,
        ),
        ({"stack.yaml": 'slurm: "26.05"\n', "slurm.conf": "SelectType=select/cons_res\n"}, "TW307", 1),
        ({"requirements.txt": "torch==1.9.1\n", "t.sh": "python -m torch.distributed.launch t.py\n"}, "TW103", 0),
        ({"requirements.txt": "nvidia-nccl-cu12==2.4.8\n", "t.sh": "export NCCL_TREE_THRESHOLD=0\n"}, "TW213", 0),
        ({"requirements.txt": "nvidia-nccl-cu12==2.27.3\n", "t.sh": "export NCCL_TREE_THRESHOLD=0\n"}, "TW213", 1),
        ({"requirements.txt": "nvidia-nccl-cu13==2.31\n", "t.sh": "export NCCL_SOCKET_IFNAMES=eth0\n"}, "TW208", 0),
    ],
)
def test_every_rule_about_a_release_asks_for_it(tmp_path: Path, files: dict[str, str], rule: str, count: int) -> None:
    assert len(found(project(tmp_path, **files), rule)) == count


def test_a_wheel_index_is_replaced_by_one_that_has_the_pinned_torch() -> None:
    text = "--index-url https://download.pytorch.org/whl/cu120\ntorch=={}\n"
    edits = [
        check_text(text.format(version), [RULES["TW701"]], name="requirements.txt")[0].edits[0].text
        for version in ("2.0.1", "2.2.1", "2.9.0")
    ]
    assert edits == ["/cu118", "/cu121", "/cu126"]


@pytest.mark.parametrize("pin", ["==2.0.1", ">=2.0", "<2.3", "~=2.2", "^2.1", "~2.3", "2.5.1", ">2.3,<2.9"])
@pytest.mark.parametrize("since", ["1.10", "2.2", "2.3", "2.30"])
def test_what_holds_for_all_allowed_releases_holds_for_some(pin: str, since: str) -> None:
    (allowed,) = allowed_releases("torch", "Pipfile", f'torch = "{pin}"\n', None)
    releases = Releases("torch", since=since)
    assert releases.meets(allowed) or not releases.covers(allowed)


SAMPLED = "from torch.utils.data import DataLoader, DistributedSampler\n{}\n"


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("s = DistributedSampler(d)\nl = DataLoader(d, sampler=s, shuffle=True)", 1),
        ("class A:\n    def f(self):\n        self.s = DistributedSampler(d)\n"
         "        return DataLoader(d, sampler=self.s, shuffle=True)", 1),
        ("s = DistributedSampler(d) if many else None\nl = DataLoader(d, sampler=s, shuffle=True)", 0),
        ("s = None\nif many:\n    s = DistributedSampler(d)\nl = DataLoader(d, sampler=s, shuffle=True)", 0),
        ("def f(s):\n    return DataLoader(d, sampler=s, shuffle=True)", 0),
        ("s = get_sampler(d)\nl = DataLoader(d, sampler=s, shuffle=True)", 0),
        ("s = DistributedSampler(d)\nl = DataLoader(d, sampler=s, shuffle=False)", 0),
    ],
)  # fmt: skip
def test_a_sampler_in_a_variable_excludes_shuffle(code: str, count: int) -> None:
    assert len(check_text(SAMPLED.format(code), [RULES["TW503"]], name="train.py")) == count


def test_a_stream_in_a_variable_is_not_shuffled_by_its_loader() -> None:
    code = (
        "from torch.utils.data import DataLoader, IterableDataset\nclass Stream(IterableDataset):\n    pass\n"
        "data = Stream()\nloader = DataLoader(data, shuffle=True)\n"
    )
    assert [each.rule for each in check_text(code, [RULES["TW506"]], name="train.py")] == ["TW506"]


@pytest.mark.parametrize(
    "text",
    [
        "Quantum-2 at 200 Gb/s: each NDR port is divided between two nodes.\n",
        "A breakout cable makes two ports of one.\nBehind Quantum-2 each has 200 Gb/s.\n",
        "Quantum-2 gives each node 200 Gb/s, as 2x200 of one port.\n",
        "Quantum-2 的每个端口一分二, Quantum-2 到节点 200 Gb/s.\n",
    ],
)
def test_half_of_a_split_port_is_right(text: str) -> None:
    assert check_text(text, [RULES["TW805"]], name="network.md") == []


@pytest.mark.parametrize(
    ("nodes", "limit"),
    [
        ("Each node has one HDR100 on an HDR switch.", "16.1"),
        ("Each node has 2x HDR100.", "32.3"),
        ("The nodes are on HDR100.", "129"),
    ],
)
def test_a_bound_between_nodes_counts_the_adapters_of_the_text(nodes: str, limit: str) -> None:
    table = "AllReduce on A100\n\n| setting | 4 nodes (32x GPU) GB/s |\n|---|---|\n| tuned | 150 |\n"
    (finding,) = check_text(f"{nodes}\n{table}", [RULES["TW803"]], name="results.md")
    assert f"at most {limit} GB/s on 32 GPUs over" in finding.message


def test_the_correction_of_a_figure_names_its_own_accelerator() -> None:
    (finding,) = check_text("The H200 has HBM3e memory with 9.6 TB/s.\n", [RULES["TW810"]], name="a.md")
    assert (finding.fix.endswith("`trainworks catalog show H200`."), finding.source) == (
        True,
        "trainworks catalog show H200",
    )
