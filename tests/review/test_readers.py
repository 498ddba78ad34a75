"""The readers: shell code with its places, and files that must stay silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainworks.review.check import check_text
from trainworks.review.readers.launch import launches
from trainworks.review.readers.shell import Script
from trainworks.review.registry import RULES


def words(text: str) -> list[list[str]]:
    return [command.texts for command in Script(text).commands]


def found(text: str, name: str, folder: Path | None = None) -> list[str]:
    return [finding.rule for finding in check_text(text, tuple(RULES.values()), name=name, folder=folder)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b\nc", [["a", "b"], ["c"]]),
        ("a \\\n  b", [["a", "b"]]),
        ("a && b | c; d &", [["a"], ["b"], ["c"], ["d"]]),
        ("a 'b c' \"d $e\"", [["a", "b c", "d $e"]]),
        ("a b#c # comment", [["a", "b#c"]]),
        ("a $(b c) `d e`", [["a", "$(b c)", "`d e`"]]),
        ("a 2>&1", [["a", "2>&1"]]),
        ("cat <<EOF > f\ntorchrun x\nEOF\na", [["cat", "<<EOF", ">", "f"], ["a"]]),
        ("if a; then\n  b\nfi", [["a"], ["b"], ["fi"]]),
        ("A=1 b", [["b"]]),
        ("x=(--a b\n --c)\nd", [["d"]]),
    ],
)
def test_shell_code_is_split_into_commands(text: str, expected: list[list[str]]) -> None:
    assert words(text) == expected


def test_words_know_their_places() -> None:
    (command,) = Script("torchrun \\\n  --nnodes=2 train.py", line=10, indent=4).commands
    assert [(word.line, word.column) for word in command.words] == [(10, 5), (11, 7), (11, 18)]


def test_a_variable_that_is_set_once_is_resolved() -> None:
    script = Script("NODES=4\nGPUS=8\nGPUS=4\ntorchrun --nnodes=$NODES --nproc-per-node ${GPUS} train.py --x 1")
    (launch,) = launches(script)
    assert script.number(launch.values["nnodes"]) == 4
    assert script.number(launch.values["nproc_per_node"]) is None
    assert [word.text for word in launch.arguments] == ["--x", "1"]


SANE = {
    "arguments of torchrun in an array": "ARGS=(\n  --nnodes 4\n  --rdzv_endpoint $H:1\n)\n"
    "torchrun ${ARGS[@]} train.py\n",
    "variables of torchrun": "export PET_NODE_RANK=1 PET_MASTER_ADDR=a\n"
    "torchrun --nnodes=2 --nproc-per-node=8 train.py\n",
    "an elastic launch": "torchrun --nnodes=1:4 --nproc-per-node=8 --rdzv-endpoint=$H:1 train.py\n",
    "a loop over nodes": "#!/bin/bash\n#SBATCH --nodes=2\nfor n in $NODES; do\n  ssh $n torchrun --nnodes=2 "
    "--nproc-per-node=8 --rdzv-endpoint=$H:1 train.py &\ndone\n",
    "tasks without torchrun": "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\nsrun python train.py\n",
    "a rank in single quotes": "#!/bin/bash\n#SBATCH --nodes=2\nsrun bash -c 'torchrun --nnodes=2 "
    "--node_rank=$SLURM_NODEID --master_addr=$A --nproc_per_node=8 train.py'\n",
    "an escaped rank": '#!/bin/bash\n#SBATCH --nodes=2\nsrun bash -c "torchrun --nnodes=2 '
    '--node_rank=\\$SLURM_NODEID --master_addr=$A --nproc_per_node=8 train.py"\n',
    "a batch script in a here-document": "#!/bin/bash\nmodule load a\ncat > job.sbatch <<EOF\n#!/bin/bash\n"
    "#SBATCH --nodes=$N\nEOF\nsbatch job.sbatch\n",
    "a batch script in quotes": "#!/bin/bash\nmodule load a\necho '\n#SBATCH --nodes=2\n' | sbatch\n",
    "options of a plugin": "#!/bin/bash\n#SBATCH --container-image=a.sqsh --no-container-x\nsrun python a.py\n",
    "an address that depends": "#!/bin/bash\n#SBATCH --nodes=2\nMASTER_ADDR=localhost\n"
    "if true; then MASTER_ADDR=$HEAD; fi\nsrun python train.py\n",
    "a rank in single quotes, and a pipe": "#!/bin/bash\n#SBATCH --nodes=2\n"
    "srun bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD' 2>&1 | tee log\n",
    "a backslash and a blank in quotes": 'CMD="a \\ \n  --b"\n',
    "the launch of the first node": "torchrun --nnodes=2 --node_rank=0 --master_addr=localhost a.py\n",
    "one adapter of one GPU": "export NCCL_IB_HCA=mlx5_0\npython train.py\n",
    "a plugin's variable": "export NCCL_NET_PLUGIN=aws-ofi NCCL_FASTRAK_NUM_FLOWS=2\n",
}


@pytest.mark.parametrize("name", SANE)
def test_a_sane_script_raises_nothing(name: str) -> None:
    assert found(SANE[name], "job.sbatch" if SANE[name].startswith("#!") else "job.sh") == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.py", "def broken(:\n  torch"),
        ("pod.yaml", "{{ template }}: [\n nvidia.com/gpu"),
        ("ds.json", '{"zero_optimization": '),
        ("job.sh", "echo 'an open quote\ntorchrun ("),
        ("slurm.conf", "NodeName=\n=\n\\"),
        ("Dockerfile", "RUN \\"),
        ("empty.md", ""),
    ],
)
def test_a_broken_file_raises_nothing(name: str, text: str) -> None:
    assert found(text, name) == []


def test_examples_in_a_text_are_of_several_jobs() -> None:
    text = (
        "```sh\nNCCL_SOCKET_IFNAME=lo torchrun --nnodes 1 a.py\n```\n```sh\nsrun torchrun --nnodes=2 $ARGS a.py\n```\n"
    )
    assert found(text, "guide.md") == []


def test_a_text_may_leave_lines_out() -> None:
    assert found("```sh\ntorchrun $ARGS a.py \\\n  ...\n  --lr 1\n```\n", "guide.md") == []


def test_an_image_may_have_blanks_behind_a_backslash() -> None:
    assert found("RUN mkdir a \\ \n  && torchrun a.py\n", "Dockerfile") == []


def test_settings_are_read_wherever_they_stand() -> None:
    bad = "NCCL_SOCKET_IFNAME=^lo,^docker0"
    manifest = f"env:\n- name: NCCL_SOCKET_IFNAME\n  value: '{bad.partition('=')[2]}'\n"
    assert found(f"ENV {bad}\n", "Dockerfile") == ["TW207"]
    assert found(f"RUN {bad} \\\n  python a.py\n", "Dockerfile") == ["TW207"]
    assert found(f"{bad}\n", "cluster.env") == ["TW207"]
    assert found(manifest, "pod.yaml") == ["TW207"]
    assert found(f"Text.\n```sh\nexport {bad}\n```\n", "guide.md") == ["TW207"]


def test_shell_code_in_a_manifest_has_the_lines_of_the_file() -> None:
    text = "args:\n- |\n  echo\n  ib_send_bw mlx5_0\n"
    (finding,) = check_text(text, tuple(RULES.values()), name="pod.yaml")
    assert (finding.line, finding.column) == (4, 14)


def test_gradients_of_another_branch_are_not_scaled() -> None:
    code = (
        "import torch\nscaler = torch.amp.GradScaler('cuda')\nif amp:\n    scaler.scale(loss).backward()\n"
        "    if clip:\n        torch.nn.utils.clip_grad_norm_(p, 1)\nelse:\n    loss.backward()\n"
        "    torch.nn.utils.clip_grad_norm_(p, 1)\n"
    )
    assert [f.line for f in check_text(code, tuple(RULES.values()), name="a.py")] == [6]


def test_the_script_beside_the_job_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nos.environ['LOCAL_RANK']\n")
    assert found("srun -n8 python train.py\n", "job.sh", tmp_path) == ["TW113"]
    assert found("srun -n8 python other.py\n", "job.sh", tmp_path) == []


def test_json_with_tabs_is_read() -> None:
    text = '{\n\t"fp16": {"enabled": true},\n\t"bf16": {"enabled": true},\n\t"zero_optimization": {}\n}\n'
    assert found(text, "ds_config.json") == ["TW611"]
