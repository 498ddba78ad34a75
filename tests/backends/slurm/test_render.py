"""A job spec as a batch script, and what no user can smuggle into it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import spec
from trainworks.backends.slurm.render import mark_of, render, sbatch_option
from trainworks.config.engines import Container, Slurm
from trainworks.errors import UsageError
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.record.run_dir import RunDir

PYTHON = "/opt/trainworks/bin/python"
EVERYTHING = Slurm(
    partition="train",
    account="research",
    qos="high",
    constraint="[rack1|rack2]&nvlink",
    switches="1@60",
    reservation="may",
    options=("--mail-type=END", "--mail-user=ada@example.org", "--gres-flags=enforce-binding"),
)


def script(asked: JobSpec | None = None, options: Slurm | None = None, folder: str = "/shared/runs/demo-1") -> str:
    return render(asked or spec(), options or Slurm(), RunDir(Path(folder)), python=PYTHON)


def test_two_kinds_of_dependency_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="cannot both be set"):
        script(spec(depends_on=("12",)), Slurm(options=("--dependency=afterany:7",)))


def test_an_option_of_the_user_is_there_once_and_is_his() -> None:
    said = script(options=Slurm(options=("--signal=B:USR1@300", "--no-requeue")))
    assert [line for line in said.splitlines() if line.startswith("#SBATCH --signal")] == [
        "#SBATCH --signal=B:USR1@300"
    ]
    assert "--requeue" not in said


@pytest.mark.parametrize(
    ("options", "requested"),
    [
        (("--gres=nvme:1,shard:2",), ["--gres=gpu:8,nvme:1,shard:2"]),
        (("--gres=gpu:a100:4,nvme:1",), ["--gres=gpu:a100:4,nvme:1"]),
        (("--gpus=16", "--gres=nvme:1"), ["--gpus=16", "--gres=nvme:1"]),
    ],
)
def test_other_generic_resources_join_the_accelerators_of_the_job(
    options: tuple[str, ...], requested: list[str]
) -> None:
    said = script(spec(node=NodeResources(accelerators=8)), Slurm(options=options)).splitlines()
    assert [line.removeprefix("#SBATCH ") for line in said if re.search("--(gres|gpus)", line)] == requested


@pytest.mark.parametrize(("grace_s", "signals"), [(1.0, []), (2.0, ["#SBATCH --signal=B:TERM@2"])])
def test_a_job_without_time_for_a_grace_gets_no_signal_before_its_limit(grace_s: float, signals: list[str]) -> None:
    said = script(spec(time_limit_s=120.0, grace_s=grace_s)).splitlines()
    assert [line for line in said if "--signal" in line] == signals


def test_a_gang_of_four_nodes(golden) -> None:
    golden("slurm_gang.sh", script())


def test_everything_that_a_job_spec_can_ask_for(golden) -> None:
    asked = spec(
        min_nodes=3,
        node=NodeResources(cores=15.5, accelerators=8, accelerator="h100", memory_bytes=512 * 10**9),
        time_limit_s=26.5 * 3600,
        priority=20,
        exclude=("node7", "gpu[1-2]"),
        depends_on=("17", "18"),
        hold=True,
    )
    golden("slurm_everything.sh", script(asked, EVERYTHING))


def test_dependencies_are_grouped_by_their_kind() -> None:
    asked = spec(depends_on=("afterany:16", "17", "18", "afterany:19"))
    assert "#SBATCH --dependency=afterany:16:19,afterok:17:18\n" in script(asked)


@pytest.mark.parametrize("image", ["nvcr.io#nvidia/pytorch:26.09-py3", "./torch.sqsh", "/images/torch.sqsh"])
def test_an_image_as_enroot_names_it_stays_as_it_is(image: str) -> None:
    assert f"--container-image={image} " in script(options=Slurm(container=Container(image=image))).replace("'", "")


def test_containers(golden) -> None:
    image, mounts = "docker://nvcr.io/nvidia/pytorch:26.09-py3", ("/data", "/scratch:/tmp/scratch")
    containers = [Container(image=image, runtime=runtime, mounts=mounts) for runtime in ("pyxis", "apptainer")]
    containers.append(Container(options=("--container-name=torch", "--container-writable")))
    both = [script(options=Slurm(container=container)) for container in containers]
    golden("slurm_containers.sh", "\n".join(both))


@pytest.mark.parametrize(
    ("accelerator", "own", "option"),
    [
        (None, (), "--nv"),
        ("h100", (), "--nv"),
        ("mi300x", (), "--rocm"),
        ("MI250X-128GB", (), "--rocm"),
        (None, ("--rocm",), "--rocm"),
        ("mi300x", ("--nv",), "--nv"),
    ],
)
def test_apptainer_gets_the_libraries_of_the_accelerator_of_the_job(
    accelerator: str | None, own: tuple[str, ...], option: str
) -> None:
    asked = spec(node=NodeResources(accelerators=8, accelerator=accelerator))
    said = script(asked, Slurm(container=Container(image="a.sif", runtime="apptainer", options=own)))
    assert re.findall(r"--nv\b|--rocm\b", said) == [option]


HOSTILE = [
    "/runs/with space",
    "/runs/a'; echo foo",
    '/runs/"$(touch x)"',
    "/runs/`id` #SBATCH --uid=0",
    "/runs/100%j",
    "/runs/grün & *",
]


def test_hostile_names_are_only_names(golden) -> None:
    scripts = [script(spec(working_folder=name), folder=f"{name}/demo-1") for name in HOSTILE]
    hostile_option = Slurm(options=('--mail-user="; rm -rf / #\\',))
    golden("slurm_hostile.sh", "\n".join([*scripts, script(options=hostile_option)]))


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\0b", "a\x0bb", "a\x1fb", "a\x7f"])
def test_what_no_line_can_hold_is_refused(bad: str) -> None:
    with pytest.raises(UsageError, match="chdir"):
        script(spec(working_folder=bad))


def test_a_run_directory_with_a_backslash_is_refused() -> None:
    with pytest.raises(UsageError, match="backslash"):
        script(folder="/runs/a\\b")


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("plain", "--x=plain"),
        ("a b", '--x="a b"'),
        ('a"b', '--x="a\\"b"'),
        ("a\\", '--x="a\\\\"'),
        ("a#b", '--x="a#b"'),
        (True, "--x"),
    ],
)
def test_how_sbatch_reads_a_value(value: Any, line: str) -> None:
    assert sbatch_option("x", value) == line


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"priority": 51}, "operators alone raise a priority above 50, not to 51"),
        ({"preemptible": False}, "the QOS or the partition"),
        ({"depends_on": ("demo-1",)}, "`demo-1` is not the number of a Slurm job"),
        ({"time_limit_s": 100, "grace_s": 120}, r"`job.time_limit` \(100 s\) is below 180 s"),
    ],
)
def test_what_slurm_does_for_nobody_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        script(spec(**changes))


@pytest.mark.parametrize("option", ["--array=1-4", "--comment=mine", "--wrap=id", "--output=/dev/null"])
def test_options_that_would_make_a_run_something_else_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match="submits a run as one job"):
        script(options=Slurm(options=(option,)))


def test_runs_of_one_name_in_two_folders_have_two_marks() -> None:
    assert mark_of(RunDir(Path("/a/demo-1"))) != mark_of(RunDir(Path("/b/demo-1")))


@pytest.mark.parametrize(
    ("image", "written"),
    [
        ("pytorch:2.9", "pytorch:2.9"),
        ("nvidia/pytorch", "nvidia/pytorch"),
        ("/images/a.b/c.sqsh", "/images/a.b/c.sqsh"),
    ],
)
def test_images_without_a_registry_stay_as_they_are(image: str, written: str) -> None:
    assert f"--container-image={written} " in script(options=Slurm(container=Container(image=image)))


def test_a_folder_with_a_comma_cannot_be_mounted() -> None:
    with pytest.raises(UsageError, match="cannot be mounted"):
        script(spec(working_folder="/a,b"), Slurm(container=Container(image="a.sif")))


@pytest.mark.parametrize(
    ("kills", "starts", "code"),
    [(0, 1, 7), (1, 2, 7), (3, 4, 7), (9, 5, 137)],
    ids=["none", "once", "before it began, and while it requeued", "always"],
)
def test_a_supervisor_that_is_killed_is_started_again(tmp_path: Path, kills: int, starts: int, code: int) -> None:
    book, python = tmp_path / "book", tmp_path / "python"
    dies = f'[ "$(wc -l < {book})" -le {kills} ] && kill -9 $$'
    python.write_text(f"#!/bin/bash\necho start >> {book}\n{dies}\nexit 7\n", encoding="utf-8")
    python.chmod(0o755)
    said = render(spec(), Slurm(), RunDir(tmp_path / "demo-1"), python=str(python))
    done = subprocess.run(["bash"], input=said, text=True, capture_output=True, check=False)
    assert (done.returncode, book.read_text(encoding="utf-8").count("start")) == (code, starts)
