"""Files that articles show with mistakes: the corrected ones in examples/cluster, and what `review --fix` corrects."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import trainworks
from trainworks.config.slurm.sbatch import load_batch_script
from trainworks.review.check import check_text, fixed_text
from trainworks.review.registry import RULES
from trainworks.review.rule import ReviewRule

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"
EVERY = tuple(RULES.values())

MISTAKEN = {
    "launch.sh": (
        "python -m torch.distributed.launch --use_env\n  --nproc_per_node=8\n  --nnodes=1 finetune.py\n",
        "torchrun \\\n  --nproc_per_node=8 \\\n  --nnodes=1 finetune.py\n",
    ),
    "slurm.conf": (
        "SelectType=select/cons_res\nNodeName=n[1-4] CPUs=128 Gres=gpu:a100:8\n",
        "GresTypes=gpu\nSelectType=select/cons_tres\nNodeName=n[1-4] CPUs=128 Gres=gpu:a100:8\n",
    ),
    "cgroup.conf": ("CgroupAutomount=yes\nConstrainDevices=yes\n", "\nConstrainDevices=yes\n"),
    "step.sbatch": (
        "#!/bin/bash\n#SBATCH --nodes=4\nsrun --mpi=pmix_v3 -n32 ./solver\n",
        "#!/bin/bash\n#SBATCH --nodes=4\nsrun --mpi=pmix -n32 ./solver\n",
    ),
    "nccl.sh": (
        "export NCCL_SOCKET_IFNAME=^lo,^docker0\nexport NCCL_IB_HCA=mlx5_0,mlx5_1\n"
        "export NCCL_ASYNC_ERROR_HANDLING=1\n",
        "export NCCL_SOCKET_IFNAME=^lo,docker0\nexport NCCL_IB_HCA==mlx5_0,mlx5_1\n"
        "export TORCH_NCCL_ASYNC_ERROR_HANDLING=1\n",
    ),
    "install.sh": (
        "git clone https://github.com/openucx/ucx.git && cd ucx\n./contrib/configure-release --with-cuda=/opt/cuda\n"
        "pip install torch --extra-index-url https://download.pytorch.org/whl/cu120\n",
        "git clone https://github.com/openucx/ucx.git && cd ucx\n"
        "./autogen.sh && ./contrib/configure-release --with-cuda=/opt/cuda\n"
        "pip install torch --index-url https://download.pytorch.org/whl/cu121\n",
    ),
    "amp.py": (
        "import torch\nfrom torch.cuda.amp import GradScaler, autocast\nscaler = GradScaler()\n"
        "with autocast(enabled=True):\n    loss = model(batch)\n",
        'import torch\nfrom torch.amp import GradScaler, autocast\nscaler = GradScaler("cuda")\n'
        'with autocast("cuda", enabled=True):\n    loss = model(batch)\n',
    ),
    "links.sh": (
        "ib_send_bw mlx5_0 server\nib_send_lat mlx5_0 server\n",
        "ib_send_bw -d mlx5_0 server\nib_send_lat -d mlx5_0 server\n",
    ),
}
"""Name of a file, its mistakes in a form of our own, and what `--fix` makes of it."""


def fixed(name: str, text: str) -> str:
    """Corrected until nothing more can be: corrections in one place wait for each other."""
    count = 1
    while count:
        text, count = fixed_text(text, check_text(text, EVERY, name=name))
    return text


@pytest.mark.parametrize("name", MISTAKEN)
def test_fix_corrects_the_mistakes_of_articles(name: str) -> None:
    before, after = MISTAKEN[name]
    assert check_text(before, EVERY, name=name) != []
    assert fixed(name, before) == after
    assert check_text(after, EVERY, name=name) == []


@pytest.mark.parametrize(
    "code",
    [
        "from torch.cuda.amp import autocast, custom_fwd\nwith autocast():\n    pass\n",
        "from torch.cuda.amp import autocast\ncast = autocast\nwith autocast():\n    pass\n",
        "import torch\nwith torch.cuda.amp.autocast(True):\n    pass\n",
    ],
)
def test_a_name_that_is_used_in_another_way_stays(code: str) -> None:
    assert fixed("train.py", f"import torch\n{code}") == f"import torch\n{code}"


@pytest.mark.parametrize("rule", EVERY, ids=RULES)
def test_a_correction_leaves_nothing_for_its_rule(rule: ReviewRule) -> None:
    text, count = fixed_text(rule.bad, check_text(rule.bad, [rule], name=rule.file))
    assert count == 0 or check_text(text, [rule], name=rule.file) == []


def test_nothing_is_found_in_the_corrected_files() -> None:
    assert trainworks.review(CLUSTER).findings == []


@pytest.mark.parametrize("name", ["acceptance.sh", "install.sh", "train.sbatch"])
def test_the_shell_reads_the_scripts(name: str) -> None:
    subprocess.run(["bash", "-n", CLUSTER / name], check=True)


def test_the_batch_script_is_a_job_of_four_nodes() -> None:
    run_file, source = load_batch_script(CLUSTER / "train.sbatch")
    assert (run_file.nodes, run_file.framework, source.notes) == (4, "slurm", [])


@pytest.mark.skipif(shutil.which("slurmd") is None, reason="needs Slurm's slurmd")
def test_slurm_reads_its_configuration(tmp_path: Path) -> None:
    def said(folder: Path) -> str:
        command = ["slurmd", "-G", "-N", "gpu1", "-f", folder / "slurm.conf"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        return done.stdout + done.stderr

    shutil.copytree(CLUSTER, tmp_path / "other")
    conf = tmp_path / "other" / "slurm.conf"
    conf.write_text(conf.read_text().replace("SelectType=", "SelectTyp="))
    assert "unrecognized key: SelectTyp" in said(conf.parent)
    assert not re.search("unrecognized|[Pp]arsing|invalid", said(CLUSTER))


@pytest.mark.slow
def test_the_training_script_continues_from_its_checkpoint(tmp_path: Path) -> None:
    def train(epochs: int) -> str:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        script = [CLUSTER / "train.py", f"--epochs={epochs}", f"--to={tmp_path / 'digits.pt'}"]
        env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        return subprocess.run([*launch, *script], env=env, capture_output=True, text=True, check=True).stdout

    first, second = train(1), train(3)
    assert re.match(r"epoch 0: loss [12]\.\d+\n$", first)
    assert re.match(r"epoch 1: loss 1\.\d+\nepoch 2: loss 0\.\d+\n$", second)
    assert not list(tmp_path.glob("*.unfinished"))
