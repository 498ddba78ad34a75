"""A batch script of Slurm as a run file: what its options become, and what is refused with its line."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.backends.slurm.render import render
from trainworks.config.engines import Container
from trainworks.config.run_file import RunFile
from trainworks.config.slurm.sbatch import BatchSource, is_batch_script, load_batch_script, parse_batch_script
from trainworks.config.slurm.sbatch_amounts import AMOUNTS
from trainworks.config.slurm.sbatch_options import read_options
from trainworks.errors import RunFileError, UsageError
from trainworks.jobs.job_spec import NodeResources
from trainworks.jobs.spec_of_run import spec_of
from trainworks.record.run_dir import RunDir

SCRIPT = """\
#!/bin/bash -l
#SBATCH --job-name=llama-8b
#SBATCH -N 2-4 --ntasks-per-node=8 --gpus-per-node=h100:8   # comment --nodes=9
#SBATCH -c 12 --mem=900G -t 1-12 -p train -A ml -q high -C "rack1|rack2"
#SBATCH --exclude=node[1-3,7] --signal=B:USR1@300 --output=logs/%x-%j.out
#SBATCH --export=ALL,SEED=1,TOKEN --comment='two words' --mail-type=END -H
##SBATCH --nodes=9

module load cuda
srun python train.py
#SBATCH --nodes=9
"""
MISTAKES = [
    # lines
    "--nodes=2 extra",
    "nodes=2",
    "-job-name=x",
    "-J=x",
    "--comment='open",
    ": --nodes=2",
    "--comment= '' --nodes=2",
    # options
    "--gpus-per-nod=8 --gpu-per-node=8",
    "--nod=2",
    "--nodes",
    "--hold=3",
    "--array=1..10",
    "--array=0-9%",
    "--clusters=other",
    "--test-only",
    # values
    "--nodes=0",
    "--nodes=4-2",
    "--nodes=1,3",
    "--time=3h",
    "--mem=1.5G",
    "--exclude=node[1",
    "--exclude=/etc/nodes",
    "--signal=@60",
    "--dependency=afterany:tokenize-3",
    "--dependency=afterok:12:tokenize-3",
    "--dependency=afterok:$JOB",
    "--export=ALL,1A=2",
    "--gpus-per-node=h100:8,a100:1",
    "--partition='big one'",
    "--constraint='rack1 or rack2'",
    # what does not go together
    "--mem=1G --mem-per-cpu=2G",
    "--cpus-per-task=2 --cpus-per-gpu=2 --gpus-per-node=1",
    "--gpus-per-node=8 --gres=gpu:4",
    "--gpus-per-node=h100:8 --gres=gpu:a100:8",
    "--ntasks=0",
    "--gpus=8 --cpus-per-task=none",
    "--mem-per-gpu=80G",
    "--nodes=1\n#SBATCH hetjob\n#SBATCH --nodes=2",
]


MIG = "nvidia_h100_80gb_hbm3_3g.40gb"


def script(options: str) -> str:
    """A batch script with these options."""
    return f"#!/bin/bash\n#SBATCH {options}\nsrun hostname\n"


def read(options: str) -> RunFile:
    """The run file of a script with these options."""
    return parse_batch_script(script(options), name="train.sbatch")[0]


def refusal(text: str) -> RunFileError:
    """The error of a bad script."""
    with pytest.raises(RunFileError) as refused:
        parse_batch_script(text, name="train.sbatch")
    return refused.value


def node(options: str) -> tuple[int, int, NodeResources]:
    """Nodes, tasks of each, and what each has."""
    run_file = read(options)
    spec = spec_of(run_file, run_id="r", working_folder="/")
    assert isinstance(run_file.cluster.processes_per_node, int)
    return spec.max_nodes, run_file.cluster.processes_per_node, spec.node


def test_every_mistake_has_its_error(golden) -> None:
    blocks = [f"#SBATCH {mistake}\n\n{refusal(script(mistake)).render()}\n" for mistake in MISTAKES]
    golden("sbatch_errors.txt", "\n\n".join(blocks))


def test_a_script_asks_for_what_its_options_say(golden) -> None:
    run_file, _ = parse_batch_script(SCRIPT, name="train.sbatch")
    golden("sbatch_run_file.json", run_file.model_dump_json(indent=2, exclude_unset=True, exclude={"run"}) + "\n")


def test_the_script_itself_is_what_runs_and_it_runs_once() -> None:
    run_file, _ = parse_batch_script(SCRIPT, name="train.sbatch")
    assert (run_file.run, run_file.starts) == (SCRIPT, "once")


def test_what_has_no_effect_is_said() -> None:
    _, source = parse_batch_script(SCRIPT, name="train.sbatch")
    assert source.notes == [
        "train.sbatch:5  --output has no effect: `trainworks logs` shows the output of the job",
        "train.sbatch:6  --comment has no effect: Trainworks uses the comment to identify the job",
        "train.sbatch:11: `#SBATCH` after the first command has no effect",
    ]


def test_a_script_without_a_name_is_called_like_its_file() -> None:
    assert parse_batch_script("#!/bin/sh\n", name="runs/my train.sbatch")[0].name == "my-train"


@pytest.mark.parametrize(("written", "name"), [("a.b_c-1", "a.b_c-1"), ("'a b/c'", "a-b-c"), ("%x", "x")])
def test_a_name_becomes_one_that_a_run_may_have(written: str, name: str) -> None:
    assert read(f"-J {written}").name == name


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--nodes=1", (1, 1, NodeResources(cores=1))),
        ("-N2 -n16 -c4", (2, 8, NodeResources(cores=32))),
        ("-n16 --ntasks-per-node=8", (2, 8, NodeResources(cores=8))),
        ("-n1 -c4", (1, 1, NodeResources(cores=4))),
        ("--gres=gpu:8", (1, 1, NodeResources(accelerators=8))),
        ("--gres=gpu", (1, 1, NodeResources(accelerators=1))),
        ("--gres=gpu:0", (1, 1, NodeResources(cores=1))),
        ("--nodes=2 --tasks-per-node=8 -c2", (2, 8, NodeResources(cores=16))),
        ("--gres=gpu:h100:4 --gpus-per-node=4", (1, 1, NodeResources(accelerators=4, accelerator="h100"))),
        ("--gres=gpu:1g.10gb:2", (1, 1, NodeResources(accelerators=2, accelerator="1g.10gb"))),
        ("-G 1g.10gb+me", (1, 1, NodeResources(accelerators=1, accelerator="1g.10gb+me"))),
        (f"--gres=gpu:{MIG}:1", (1, 1, NodeResources(accelerators=1, accelerator=MIG))),
        ("--gpus-per-node=h100", (1, 1, NodeResources(accelerators=1, accelerator="h100"))),
        ("--gpus-per-task=a100:2 --ntasks-per-node=4", (1, 4, NodeResources(accelerators=8, accelerator="a100"))),
        ("--gpus=16 --nodes=2", (2, 1, NodeResources(accelerators=8))),
        ("--gpus-per-node=8 --ntasks-per-gpu=1 -N2", (2, 8, NodeResources(accelerators=8))),
        ("--gpus-per-node=8 --cpus-per-gpu=12", (1, 1, NodeResources(cores=96, accelerators=8))),
        ("--mem=64G", (1, 1, NodeResources(cores=1, memory_bytes=2**36))),
        ("--mem-per-cpu=4G -c8 --ntasks-per-node=2", (1, 2, NodeResources(cores=16, memory_bytes=2**36))),
        ("--mem-per-gpu=8G --gpus-per-node=8", (1, 1, NodeResources(accelerators=8, memory_bytes=2**36))),
    ],
)
def test_amounts_are_counted_per_node(options: str, expected: tuple[int, int, NodeResources]) -> None:
    assert node(options) == expected


@given(st.integers(1, 64), st.integers(1, 64))
def test_a_total_is_shared_among_the_nodes(nodes: int, each: int) -> None:
    assert node(f"--nodes={nodes} --ntasks={nodes * each}")[:2] == (nodes, each)


@pytest.mark.parametrize(
    ("option", "passed_on"),
    [
        ("--mail-type=END", "--mail-type=END"),
        ("-L matlab:2", "--licenses=matlab:2"),
        ("--exclusive", "--exclusive"),
        ("--nice", "--nice"),
        ("--gres=gpu:8,nvme:1", "--gres=nvme:1"),
        ("--gres=shard:4", "--gres=shard:4"),
        ("--gres=shard:l40s:12", "--gres=shard:l40s:12"),
        ("--gres=mps:50,gpu:0", "--gres=mps:50"),
        ("--mem=0", "--mem=0"),
        ("--time=UNLIMITED", "--time=UNLIMITED"),
        ("--signal=USR1", "--signal=USR1"),
        ("-d afterok:12:13", "--dependency=afterok:12:13"),
        ("-d afterok:12:13,afterany:4", "--dependency=afterok:12:13,afterany:4"),
        ("-d afterok:12?afterok:13", "--dependency=afterok:12?afterok:13"),
        ("--export=NONE", "--export=NONE"),
        ("--export=PATH", "--export=PATH"),
        ("--depend=singleton", "--dependency=singleton"),
        ("--share", "--oversubscribe"),
        ("--environment reasoning", "--environment=reasoning"),
        ("--lustre-stats -N1", "--lustre-stats"),
        ("--container-writable", "--container-writable"),
    ],
)
def test_what_only_slurm_knows_is_passed_on(option: str, passed_on: str) -> None:
    assert read(option).cluster.slurm.options == (passed_on,)


@pytest.mark.parametrize(
    "options",
    [
        "--ntasks=8",
        "--ntasks=7 --nodes=2",
        "--ntasks=8 --nodes=2-4",
        "--ntasks=8 --nodes=2-4 --ntasks-per-node=4",
        "--ntasks=8 --nodes=2 --ntasks-per-node=8",
        "--ntasks=9 --ntasks-per-node=4",
        "--gpus=16",
        "--gpus=9 --nodes=2",
        "--gpus=8 --nodes=2-4",
        "--gpus=h100:16 --cpus-per-gpu=8 --mem-per-gpu=80G",
        "--ntasks=8 --cpus-per-task=4 --mem-per-cpu=2G --gres=gpu:2,nvme:1",
    ],
)
def test_where_slurm_chooses_the_numbers_the_amounts_are_passed_on(options: str, tmp_path: Path) -> None:
    run_file = read(options)
    assert run_file.cluster.slurm.options == tuple(options.split())
    rendered = render(
        spec_of(run_file, run_id="r", working_folder="/"), run_file.cluster.slurm, RunDir(tmp_path), python="python3"
    )
    lines = [line.removeprefix("#SBATCH ") for line in rendered.splitlines() if line.startswith("#SBATCH ")]
    ours = [line for line in lines if line.partition("=")[0][2:] in AMOUNTS]
    assert sorted(ours) == sorted(options.split())


def test_an_option_of_a_plugin_is_said() -> None:
    _, source = parse_batch_script(script("--environment=reasoning"), name="train.sbatch")
    said = "train.sbatch:2  --environment is left to a plugin of Slurm, because sbatch itself lacks it"
    assert source.notes == [said]


@pytest.mark.parametrize(
    ("options", "container"),
    [
        (
            "--container-image nvcr.io\\#nvidia/pytorch --container-mounts=/data:/d:ro,/etc --container-writable",
            Container(
                image="nvcr.io#nvidia/pytorch", mounts=("/data:/d:ro", "/etc"), options=("--container-writable",)
            ),
        ),
        ("--container-name np-23.05", Container(options=("--container-name=np-23.05",))),
    ],
)
def test_the_script_runs_in_the_container_that_it_names(options: str, container: Container) -> None:
    slurm = read(options).cluster.slurm
    assert (slurm.container, slurm.options) == (container, ())


@pytest.mark.parametrize(
    ("written", "indexes"), [("0-9", "0-9"), ("7", "7-7"), ("1,3,5-7", "1,3,5-7"), ("0-20:4%2", "0-20:4%2")]
)
def test_an_array_keeps_its_indexes(written: str, indexes: str) -> None:
    assert parse_batch_script(script(f"--array={written}"), name="x.sbatch")[1].array == indexes


@pytest.mark.parametrize(
    ("option", "job"),
    [
        ("-t 90", {"time_limit": 5400.0}),
        ("--signal=USR1@30", {"grace": 30.0}),
        ("--hold", {"hold": True}),
        ("-t 0:10", {"time_limit": 10.0, "grace": 1.0}),
        ("-t 2", {"time_limit": 120.0, "grace": 60.0}),
        ("-t 3", {"time_limit": 180.0}),
        ("-t 2 --signal=USR1@30", {"time_limit": 120.0, "grace": 30.0}),
        ("-x 'n[1-2]'", {"exclude": ["n1", "n2"]}),
        ("-N2-4", {"min_nodes": 2}),
    ],
)
def test_wishes_are_those_of_a_run_file(option: str, job: dict[str, Any]) -> None:
    assert read(option).job.model_dump(mode="json", exclude_unset=True) == job


@pytest.mark.parametrize(
    ("option", "envs"),
    [
        ("--export=ALL,A=1,B", {"A": "1", "B": None}),
        ("--export=\"ALL,A='x,y'\"", {"A": "x,y"}),
        ("--export=ALL", {}),
        ("--export=A=1", {"A": "1"}),
    ],
)
def test_exported_variables_are_those_of_the_run(option: str, envs: dict[str, str | None]) -> None:
    assert read(option).envs == envs


def test_the_last_of_two_equal_options_counts() -> None:
    assert read("-p first\n#SBATCH -p second").cluster.slurm.partition == "second"


def test_all_problems_come_at_once_in_the_order_of_the_file() -> None:
    text = "#!/bin/bash\n#SBATCH --time=soon\n#SBATCH --gpu=1 x\n#SBATCH --nodes=0\n#SBATCH --test-only\n"
    places = [problem.place for problem in refusal(text).problems]
    assert places == [
        "train.sbatch:2  --time",
        "train.sbatch:3",
        "train.sbatch:4  --nodes",
        "train.sbatch:5  --test-only",
    ]


def test_an_error_that_is_found_later_still_points_at_the_option() -> None:
    _, source = parse_batch_script(SCRIPT, name="train.sbatch")
    assert source.place(("resources", "accelerators")) == "train.sbatch:3  --gpus-per-node"
    assert source.place(("workdir",)) == "train.sbatch:1  workdir"


@pytest.mark.parametrize(
    "text",
    ["", "srun hostname\n", "#!\n", "#!python3\n", "#!/bin/bash\r\n#SBATCH -N2\r\n"],
)
def test_what_sbatch_or_the_kernel_would_not_start_is_refused(text: str) -> None:
    assert refusal(text).place == "train.sbatch:1"


@pytest.mark.parametrize(
    "first",
    [
        "#!/bin/bash",
        "#!/usr/bin/env bash",
        "#! /bin/zsh -l",
        "#!/bin/bash -le",
        "#!/bin/tcsh -f",
        "#!/usr/bin/python3",
        "#!/usr/bin/env -S python3 -u",
    ],
)
def test_any_interpreter_will_do(first: str) -> None:
    assert parse_batch_script(f"{first}\n", name="x.sbatch")[0].run == f"{first}\n"


@pytest.mark.parametrize(
    ("name", "text", "is_one"),
    [
        ("a.sbatch", "#!/bin/bash\n", True),
        ("a.slurm", "#!/bin/bash\n", True),
        ("a.sh", "#!/bin/bash\n#SBATCH -N2\n", True),
        ("a.sh", "#!/bin/bash\necho '#SBATCH'\n", False),
        ("a.py", "#!/usr/bin/env python3\n#SBATCH -N2\n", True),
        ("a.py", "#SBATCH -N2\n", False),
        ("a.py", '#!/usr/bin/env python3\n"""Submit it with:\n#SBATCH -N2\n"""\n', False),
        ("a", "#!/bin/tcsh\n#SBATCH -N2\n", True),
    ],
)
def test_a_batch_script_is_known_by_its_ending_or_its_options(
    tmp_path: Path, name: str, text: str, is_one: bool
) -> None:
    (tmp_path / name).write_text(text)
    assert is_batch_script(tmp_path / name) is is_one


def test_a_script_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"run file `.*train\.sbatch`"):
        load_batch_script(tmp_path / "train.sbatch")


WORDS = st.text(st.sampled_from(list("ab1 \t#\"'\\:,=-[]é")), max_size=12)


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="sbatch is not installed")
@given(WORDS)
def test_a_line_means_what_it_means_to_sbatch(text: str) -> None:
    line = f"--comment={text}"
    theirs = asked_sbatch(line)
    found = read_options(f"#!/bin/bash\n#SBATCH {line}\n", name="x")
    ours = {option.name: option.value for option in found.options}
    if found.problems:
        said = found.problems[0].message
        took_the_next_line = said.endswith("has no value") and theirs is not None and "--gres=gpu" in theirs.values()
        assert theirs is None or "empty word" in said or took_the_next_line
    else:
        assert theirs == ours, line


def asked_sbatch(line: str) -> dict[str, str | None] | None:
    """What sbatch itself reads; it says so before it finds out that no node has a GPU."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        conf, batch = Path(folder) / "slurm.conf", Path(folder) / "x.sh"
        conf.write_text(
            "ClusterName=x\nSlurmctldHost=localhost\nAuthType=auth/none\nCredType=cred/none\nSlurmctldPort=1\n"
        )
        batch.write_text(f"#!/bin/bash\n#SBATCH {line}\n#SBATCH --gres=gpu\n")
        done = subprocess.run(
            ["sbatch", "-v", batch],
            check=False,
            env={"SLURM_CONF": str(conf), "PATH": "/usr/bin:/bin"},
            capture_output=True,
        )
    said = done.stderr.decode(errors="replace")  # it names the first byte of an option of two
    if "defined options" not in said:
        return None
    found = re.findall(r"^sbatch: ([a-z-]+) +: (.*)$", said, re.MULTILINE)
    return {name: value for name, value in found if name not in ("verbose", "gres")}


def test_the_source_is_one_of_a_batch_script() -> None:
    assert isinstance(parse_batch_script(SCRIPT, name="x.sbatch")[1], BatchSource)
