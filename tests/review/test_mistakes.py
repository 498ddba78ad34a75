"""Mistakes of public files, and what resembles them and is right: what each rule finds beside its own example."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainworks.review.check import check_text
from trainworks.review.registry import RULES

_BATCH = "#!/bin/bash\n#SBATCH --nodes=2 --gres=gpu:8\n"
_RUN = "torchrun --nnodes=2 --nproc-per-node=8 --rdzv-endpoint=$MASTER_ADDR:29500 t.py\n"
_DDP = (
    "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
    "model = DDP(net)\n"
)
_FSDP = (
    "import torch\nimport torch.distributed as dist\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(net)\n"
)
_CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
_STEP = "import torch\nmodel = torch.nn.Dropout(0.1)\n"
_SHARD = (
    "import torch\nfrom torch.utils.data import DataLoader, DistributedSampler\n"
    "loader = DataLoader(data, sampler=DistributedSampler(data))\n\n\n"
    "def test(batches):\n    size = len(batches.dataset)\n    print(correct() / size)\n\n\n"
)
_SHARED = "    if dist.get_rank() == 0 and done:\n        break\n"
_TASKS = "srun torchrun --nnodes=2 --nproc-per-node=$SLURM_NTASKS_PER_NODE --rdzv-endpoint=a:1 a.py\n"
_JOB = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: train}\nspec:\n"
_POD = "  template:\n    spec:\n      restartPolicy: Never\n      containers:\n      - name: t\n        image: t\n"


def lines(rule: str, text: str, name: str, folder: Path | None = None) -> list[int]:
    return [found.line for found in check_text(text, [RULES[rule]], name=name, folder=folder)]


@pytest.mark.parametrize(
    ("rule", "code", "found"),
    [
        ("TW122", _BATCH + f"source env/bin/activate\nsrun {_RUN}", [4]),
        ("TW122", _BATCH + f"export MASTER_ADDR=$(hostname)\nsrun {_RUN}", []),
        ("TW122", _BATCH + f"source cluster.sh\nsrun {_RUN}", []),
        ("TW122", f"#!/bin/bash\n{_RUN}", []),
        ("TW123", _BATCH + "python train.py\npython test.py\n", [3]),
        ("TW123", _BATCH + "mpirun -np 16 python train.py\n", []),
        ("TW123", _BATCH + "python launch.py --hosts $SLURM_JOB_NODELIST\n", []),
        ("TW123", _BATCH.replace("nodes=2", "nodes=1") + "python train.py\n", []),
        ("TW124", "#!/bin/bash\n#SBATCH --output=./logs/a.out\nmkdir -p logs/\n", [2]),
        ("TW124", "#!/bin/bash\n#SBATCH --output=logs/a.out\nmkdir -p results\n", []),
        ("TW126", 'a=1\necho "$a_b $a_"\n', [2]),
        ("TW126", 'a=1\na_=2\necho "$a_"\n', []),
        ("TW126", "a=1\necho '$a_'\n", []),
        ("TW126", 'echo "$a_"\n', []),
        ("TW127", "rm -rf $1/\n", [1]),
        ("TW127", "set -eu\nrm -rf $1/\n", []),
        ("TW127", "folder=runs\nrm -rf $folder/\n", []),
        ("TW127", 'rm -rf "$1/cache"\n', []),
        ("TW128", "head=a\nssh b 'head=c; run $head'\n", []),
        ("TW128", "ssh b 'echo $HOME'\n", []),
        ("TW129", _BATCH + "trap stop USR1\nsrun ./step\n", [3]),
        ("TW129", _BATCH + "trap stop USR1\nsrun ./step &\nkill -USR1 $$\n", []),
        ("TW129", _BATCH + "trap stop TERM\nsrun ./step\n", []),
        ("TW130", _BATCH.replace("2 ", "1 ") + "torchrun --standalone --nproc-per-node=4 a.py &\n", []),
        ("TW131", "sed 's/[a-Z]//'\n", [1]),
        ("TW131", "echo '[a-Z]'\n", []),
        ("TW132", "\n# health check\n#!/bin/sh\nnvidia-smi\n", [3]),
        ("TW132", "#!/bin/sh\n# later: #!/bin/bash\n", []),
        ("TW132", "echo a\n#!/bin/bash\n", []),
        ("TW133", "OMP_NUM_THREADS=1\ndeepspeed main.py\n", [1]),
        ("TW133", "OMP_NUM_THREADS=1 deepspeed main.py\n", []),
        ("TW133", "OMP_NUM_THREADS=1\nexport OMP_NUM_THREADS\ndeepspeed main.py\n", []),
        ("TW133", "NCCL_DEBUG=INFO\nmpirun -x NCCL_DEBUG=$NCCL_DEBUG ./a\n", []),
        ("TW133", "NCCL_DEBUG=INFO\necho done\n", []),
        ("TW107", _BATCH.replace("nodes=2", "ntasks-per-node=8") + _TASKS, [3]),
        ("TW317", "#!/bin/bash\n#SBATCH --mem=8G\n#SBATCH --mem=8G\n", []),
        ("TW318", _BATCH + "run $SLURM_GPUS_PER_NODE\n", [3]),
        ("TW318", _BATCH + "run ${SLURM_GPUS:-8} ${SLURM_CPUS_PER_TASK:-1}\n", []),
        ("TW318", "#!/bin/bash\n#SBATCH --gpus=8\nrun $SLURM_GPUS\n", []),
        ("TW225", "# no /dev/shm here\nexport NCCL_SHM_DISABLE=1\nsrun ./step\n", []),
        ("TW606", _BATCH + "# the job hangs without it\nexport CUDA_LAUNCH_BLOCKING=1\nsrun ./step\n", []),
        ("TW606", "export CUDA_LAUNCH_BLOCKING=1\npython find_fault.py\n", []),
        ("TW208", "export NCCL_SOCKET_TIMEOUT=600000\n", [1]),
        ("TW221", "all_reduce_perf -b 8 -e 8G \\\n  | head -5\n", [1]),
        ("TW221", "all_reduce_perf -b 8 -e 8G | tail -3\n", []),
        ("TW222", "export NCCL_ALGO=Tree\nmpirun -np 8 --bind-to none ./a\n", []),
        ("TW222", _BATCH + "export NCCL_ALGO=Tree\nmpirun -H a,b --bind-to none ./a\n", []),
        ("TW710", "export HF_TOKEN=hf_" + 34 * "x" + "\n", []),
        ("TW712", "pip install 'torch>=2' numpy\\>1\n", []),
        ("TW712", "pip install -r list.txt > install.log\n", []),
    ],
)
def test_mistakes_of_shell_code(rule: str, code: str, found: list[int]) -> None:
    assert lines(rule, code, "train.sh") == found


@pytest.mark.parametrize(
    ("rule", "code", "found"),
    [
        ("TW624", _DDP + "for x in data:\n    if torch.isnan(loss):\n        break\n    loss.backward()\n", []),
        ("TW624", "import torch\nfor x in data:\n    if torch.isnan(x):\n        continue\n    x.backward()\n", []),
        ("TW625", _FSDP + "def save(self):\n    if rank != 0:\n        return\n    return model.state_dict()\n", [8]),
        ("TW625", _FSDP + "if rank == 0:\n    optimizer.state_dict()\n", []),
        (
            "TW625",
            _FSDP + "if rank == 0:\n    with FSDP.state_dict_type(model, FULL):\n        model.state_dict()\n",
            [7],
        ),
        ("TW627", _SHARD + "test(loader)\n", [8]),
        ("TW627", _SHARD + "test(loader)\ntest(all_of_them)\n", []),
        ("TW642", _STEP + "for x in data:\n    l = model(x)\n    l.backward()\n    total += l.cpu()\n", [6]),
        (
            "TW642",
            _STEP + "for x in data:\n    l = model(x)\n    scaler.scale(l).backward()\n    total += l\n",
            [6],
        ),
        (
            "TW507",
            _DDP + "from torchvision.datasets import MNIST\nif rank == 0:\n    MNIST('a', download=True)\n",
            [],
        ),
        ("TW644", _FSDP + "p = MixedPrecision(param_dtype=torch.float16)\nscaler = ShardedGradScaler()\n", []),
        ("TW625", _DDP + "if rank == 0:\n    model.state_dict()\n", []),
        ("TW626", _DDP + f"for epoch in range(3):\n    train()\n{_SHARED}", []),
        ("TW626", _DDP + "for epoch in range(3):\n    if rank == 0:\n        for x in data:\n            break\n", []),
        ("TW627", _DDP + "print(correct / len(loader.dataset))\n", []),
        ("TW629", _FSDP + _CLIP, [5]),
        ("TW629", _FSDP + "model = torch.nn.parallel.DistributedDataParallel(net)\n" + _CLIP, []),
        ("TW630", "import torch\nif rank == 0:\n    net.load_state_dict(state)\n" + _DDP, []),
        ("TW631", _STEP + "loss.backward()\nwith torch.no_grad():\n    for x in train_loader:\n        ema(x)\n", []),
        ("TW631", _STEP + "with torch.no_grad():\n    for x in test_loader:\n        model(x)\n", []),
        (
            "TW632",
            _STEP + "for i, x in enumerate(data):\n    a.zero_grad()\n    d(x).backward()\n    b.step()\n"
            "    if i % k == 0:\n        g(x).backward()\n        a.step()\n",
            [],
        ),
        (
            "TW633",
            _STEP + "for i in range(accum_steps):\n    model(x).backward()\noptimizer.step()\n",
            [4],
        ),
        ("TW633", _STEP + "for i in range(accum_steps):\n    (model(x) / accum_steps).backward()\n", []),
        (
            "TW634",
            "import torch\ns = torch.optim.lr_scheduler.ReduceLROnPlateau(o)\n"
            "s = torch.optim.lr_scheduler.StepLR(o, 1)\ns.step()\n",
            [],
        ),
        (
            "TW635",
            "import torch\ns = torch.optim.lr_scheduler.StepLR(a, 1)\nfor x in data:\n    s.step()\n    b.step()\n",
            [],
        ),
        ("TW636", _DDP + "rank = dist.get_rank() % torch.cuda.device_count()\ntorch.cuda.set_device(rank)\n", []),
        ("TW636", _DDP + "def main(rank):\n    torch.cuda.set_device(rank)\n", []),
        ("TW637", _DDP + "torch.save(a, p)\nif dist.get_rank() == 0:\n    torch.load(p)\n", []),
        ("TW638", "import torch\nwith torch.cuda.device(1):\n    pass\n", []),
        (
            "TW640",
            _STEP + "o = torch.optim.SGD(p, 1)\nfor x in data:\n    x.backward()\n    o.step()\n    p.grad = None\n",
            [],
        ),
        ("TW641", 'import torch\nscaler = torch.amp.GradScaler("cuda")\nscaler.step(o)\nscaler.update()\n', []),
        ("TW642", _STEP + "for x in data:\n    l = model(x)\n    total += l\ntotal.backward()\n", []),
        ("TW642", _STEP + "for x in data:\n    l = model(x)\n    l.backward()\n    total += l.item()\n", []),
        ("TW643", "import torch\ntorch.save(model.state_dict(), p)\ntorch.load(p)\n", []),
        (
            "TW501",
            "import torch\nfrom torch.utils.data import DistributedSampler\ns = DistributedSampler(d, shuffle=True)\n"
            "for i in range(num_epochs):\n    run()\n",
            [3],
        ),
        (
            "TW622",
            _DDP + "class T:\n    def step(self, i):\n        (self.loss() / self.k).backward()\n"
            "        if (i + 1) % self.k == 0:\n            self.optimizer.step()\n",
            [8],
        ),
    ],
)
def test_mistakes_of_training_programs(rule: str, code: str, found: list[int]) -> None:
    assert lines(rule, code, "train.py") == found


@pytest.mark.parametrize(
    ("rule", "name", "text", "found"),
    [
        ("TW134", "accelerate.yaml", "distributed_type: MULTI_GPU\nnum_machines: 4\nnum_processes: 6\n", [3]),
        ("TW134", "accelerate.yaml", "distributed_type: MULTI_GPU\nnum_machines: 4\nnum_processes: 8\n", []),
        ("TW321", "slurm.conf", "PartitionName=a \\\n  MaxTime=1:00 State=UP\nMaxNodeCount=9\n", []),
        ("TW322", "slurm.conf", "SchedulerParameters=a=1\nSchedulerParameters+=b=2\n", [2]),
        ("TW322", "slurm.conf", "SlurmctldHost=a\nSlurmctldHost=b\nProlog=/a\nProlog=/b\n", []),
        ("TW323", "slurm.conf", "ClusterName=a\nTaskPlugin=task/affinity\nNodeName=b Gres=gpu:4\n", [2]),
        ("TW323", "slurm.conf", "NodeName=b Gres=gpu:4\n", []),
        ("TW323", "slurm.conf", "ClusterName=a\nNodeName=b CPUs=4\n", []),
        ("TW314", "slurm.conf", "TaskPlugin=task/cgroup,task/afinity\n", [1]),
        ("TW314", "slurm.conf", "TaskPlugin=task/cgroup,task/ours\n", []),
        ("TW315", "slurm.conf", "SelectTypeParameters=CR_Core\n", []),
        ("TW315", "slurm-gpu.conf", "SelectTypeParameters=CR_CPU_Memory\n", [1]),
        ("TW315", "slurm.conf", "SelectTypeParameters=CR_CPU_Memory\nPartitionName=a DefMemPerCPU=1\n", []),
        ("TW319", "slurm.conf", "ProctrackType=proctrack/linuxproc\nNodeName=a CPUs=4\n", []),
        ("TW320", "slurm.conf", "SlurmctldHost=a\nStateSaveLocation=/var/spool/slurm\n", []),
        ("TW307", "slurm.conf", "SelectType=select/cons_res\nSlurmdLogFile=/var/log/slurm-llnl/slurmd.log\n", []),
        ("TW407", "job.yaml", _JOB + _POD, []),
        ("TW408", "job.yaml", _JOB + _POD + "        env: [{name: MASTER_ADDR, value: head-0.train}]\n", []),
        ("TW409", "job.yaml", _JOB + _POD + "        command: [a, $(JOB_COMPLETION_INDEX)]\n", [11]),
        (
            "TW409",
            "job.yaml",
            _JOB + "  completionMode: Indexed\n" + _POD + "        command: [JOB_COMPLETION_INDEX]\n",
            [],
        ),
        ("TW411", "job.yaml", _JOB + _POD + "        env: [{name: A, value: true}]\n", [11]),
        ("TW411", "values.yaml", "env: [{name: A, value: 1}]\n", []),
        ("TW613", "ds.json", '{"zero_optimization": {"stage": 2, "offload_param": {"device": "none"}}}', []),
        (
            "TW708",
            "Dockerfile",
            'FROM ubuntu:24.04\nRUN apt install python3 python-is-python3\nCMD ["python"]\n',
            [],
        ),
        ("TW708", "Dockerfile", 'FROM python:3.12\nCMD ["python", "a.py"]\n', []),
        ("TW713", "Dockerfile", "FROM python:3.12\nRUN cd /app && make\n", []),
        ("TW713", "Dockerfile", "FROM python:3.12\nRUN conda activate train\n", [2]),
        (
            "TW726",
            "a.yml",
            "groups:\n- name: a\n  rules:\n  - alert: A\n    expr: rate(node_cpu_seconds_total[5m]) > 1\n",
            [],
        ),
        (
            "TW727",
            "a.yml",
            "groups:\n- name: a\n  rules:\n  - alert: A\n    expr: time() - max(node_boot_time_seconds{}) < 9\n",
            [],
        ),
        ("TW715", "Dockerfile-gpu", "FROM nvidia/cuda:12.8.1-base-ubuntu24.04\n# FROM nvidia/pytorch:1\n", []),
        (
            "TW725",
            "a.yml",
            "groups:\n- name: a\n  rules:\n  - alert: A\n    expr: (time() - timestamp(up{job='a'}) < 300)\n",
            [],
        ),
    ],
)
def test_mistakes_of_configurations(rule: str, name: str, text: str, found: list[int]) -> None:
    assert lines(rule, text, name) == found


def test_a_configuration_of_stage_3_beside_the_program_is_read(tmp_path: Path) -> None:
    program = "import torch, deepspeed\nsettings = 'zero.json'\ntorch.save(model.state_dict(), 'a.pt')\n"
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 2}}')
    assert lines("TW628", program, "train.py", tmp_path) == []
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 3}}')
    assert lines("TW628", program, "train.py", tmp_path) == [3]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("FROM ubuntu:20.04\nRUN apt install -y slurmctld\n", []),
        ("FROM ubuntu:24.04\nRUN apt install -y slurmctld\n", [1]),
        ("FROM ubuntu:20.04\nRUN apt install -y munge\n", [1]),
    ],
    ids=["Slurm 19.05", "Slurm 23.11", "no Slurm"],
)
def test_the_slurm_of_an_image_decides(tmp_path: Path, text: str, found: list[int]) -> None:
    (tmp_path / "Dockerfile").write_text(text)
    assert lines("TW307", "SelectType=select/cons_res\n", "slurm.conf", tmp_path) == found


@pytest.mark.parametrize(("module", "found"), [("slurm/20.11.8", []), ("slurm/24.05.1", [3])])
def test_a_loaded_module_decides(module: str, found: list[int]) -> None:
    script = f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --export-file=env.txt\nmodule load gcc {module}\nsrun ./a\n"
    assert lines("TW309", script, "train.sbatch") == found


def test_a_cgroup_conf_beside_slurm_conf_is_read(tmp_path: Path) -> None:
    conf = "ClusterName=a\nProctrackType=proctrack/cgroup\nNodeName=b CPUs=8\n"
    assert lines("TW323", conf, "slurm.conf", tmp_path) == []
    (tmp_path / "cgroup.conf").write_text("ConstrainCores=yes\n")
    assert lines("TW323", conf, "slurm.conf", tmp_path) == [1]


def test_the_rules_beside_a_configuration_of_prometheus_are_read(tmp_path: Path) -> None:
    config = "rule_files: [/etc/prometheus/gpu.yml]\nscrape_configs:\n- job_name: gpu\n"
    (tmp_path / "gpu.yml").write_text("groups:\n- name: a\n  rules:\n  - record: a\n    expr: b\n")
    assert lines("TW728", config, "prometheus.yml", tmp_path) == []
    (tmp_path / "gpu.yml").write_text("groups:\n- name: a\n  rules:\n  - alert: A\n    expr: b\n")
    assert lines("TW728", config, "prometheus.yml", tmp_path) == [1]
