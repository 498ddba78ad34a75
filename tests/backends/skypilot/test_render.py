"""Managed jobs of SkyPilot as they are written, and what bash makes of them."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import spec
from tests.jobs.formats.jobs import HOSTILE, run
from tests.lanes import examples
from trainworks.backends.skypilot.backend import job_name
from trainworks.config.engines import SkyPilot
from trainworks.errors import UsageError
from trainworks.jobs.formats.skypilot import render_managed_job
from trainworks.jobs.job_spec import NodeResources
from trainworks.jobs.program import Program
from trainworks.record.run_dir import RunDir

EVERYTHING = SkyPilot(
    infra=("aws/us-east-1", "gcp/us-central1", "k8s/my-context"),
    ordered=True,
    use_spot=True,
    recovery="failover",
    max_hourly_cost=40.5,
    image="docker:nvcr.io/nvidia/pytorch:26.09-py3",
    disk_size=512,
    file_mounts={"/data": "s3://my-bucket/data"},
)
PROGRAM = Program(
    script='python train.py --name "$RUN_NAME"',
    setup="pip install -r requirements.txt",
    envs={"WANDB_MODE": "offline", "HF_TOKEN": None},
    processes_per_node=8,
    working_folder="~/code",
)
VALIDATES = """
import sys, yaml
from sky.utils import schemas, common_utils
for text in sys.stdin.read().split("\\0"):
    common_utils.validate_schema(yaml.safe_load(text), schemas.get_task_schema(), "task: ")
"""


def everything(**changes: Any) -> str:
    node = NodeResources(cores=96, accelerators=8, accelerator="H100", memory_bytes=512 * 10**9)
    asked = spec(node=node, priority=80, max_restarts=3, **changes)
    return render_managed_job(asked, PROGRAM, EVERYTHING, "demo-1-0123456789ab")


def plain(**options: Any) -> dict[str, Any]:
    """The task of a plain job."""
    runs = Program(script="true", starts="per_node")
    return yaml.safe_load(render_managed_job(spec(), runs, SkyPilot(**options), "demo"))


def test_a_managed_job_with_everything(golden) -> None:
    golden("skypilot_everything.yaml", everything())


def test_a_plain_job_says_little() -> None:
    assert plain() == {
        "name": "demo",
        "num_nodes": 4,
        "resources": {"accelerators": "h100:8", "job_recovery": {"strategy": "EAGER_NEXT_REGION"}},
        "run": "true",
    }


def test_of_several_places_the_cheapest_is_taken_and_one_is_no_choice() -> None:
    assert plain(infra=["aws", "gcp"])["resources"]["any_of"] == [{"infra": "aws"}, {"infra": "gcp"}]
    assert plain(infra=["aws/us-east-1"], ordered=True)["resources"]["infra"] == "aws/us-east-1"


@pytest.mark.parametrize(("ours", "theirs"), [(0, -1000), (50, None), (51, 20), (100, 1000)])
def test_priorities_span_skypilot_s(ours: int, theirs: int | None) -> None:
    asked = spec(priority=ours)
    task = yaml.safe_load(render_managed_job(asked, Program(script="true"), SkyPilot(), "demo"))
    assert task["resources"].get("priority") == theirs


def test_a_job_that_must_not_be_preempted_takes_no_spot_nodes() -> None:
    with pytest.raises(UsageError, match="rents preemptible nodes"):
        everything(preemptible=False)


@pytest.mark.parametrize("framework", ["mpi", "slurm"])
def test_a_launcher_that_the_nodes_do_not_have_is_refused(framework: Any) -> None:
    with pytest.raises(UsageError, match=f"cannot write `framework: {framework}`"):
        render_managed_job(spec(), Program(script="true", framework=framework), SkyPilot(), "demo")


def test_an_accelerator_of_any_kind_cannot_be_rented() -> None:
    with pytest.raises(UsageError, match="needs the accelerator type"):
        render_managed_job(spec(node=NodeResources(accelerators=8)), Program(script="true"), SkyPilot(), "demo")


@pytest.mark.parametrize("name", ["demo-1", "1.2_x-1", "A" * 63 + "-1", "...-1", "é-1"])
def test_the_name_of_a_run_becomes_one_that_skypilot_allows(name: str, tmp_path: Path) -> None:
    mark = job_name(RunDir(tmp_path / name))
    assert len(mark) <= 53
    subprocess.run(["grep", "-xE", "[a-zA-Z]([-_.a-zA-Z0-9]*[a-zA-Z0-9])?"], input=mark, text=True, check=True)


def test_runs_of_one_id_in_two_folders_have_two_names(tmp_path: Path) -> None:
    one, other = (job_name(RunDir(tmp_path / folder / "demo-1")) for folder in "ab")
    assert one != other


@given(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
@settings(max_examples=examples(20))
def test_every_text_comes_through_as_it_is(value: str, folder: str, mount: str, setup: str) -> None:
    program = Program(script="true", setup=setup, envs={"A": value}, working_folder=folder, starts="per_node")
    task = yaml.safe_load(render_managed_job(spec(), program, SkyPilot(file_mounts={"/data": mount}), "demo"))
    assert (task["envs"], task["workdir"]) == ({"A": value}, folder)
    assert (task["file_mounts"], task["setup"]) == ({"/data": mount}, setup)


@given(HOSTILE, HOSTILE)
@settings(max_examples=examples(15))
def test_bash_runs_every_rank_with_every_text(text: str, value: str) -> None:
    script = f"""printf '%s/%s/%s/%s\\n' "$RANK" "$MASTER_ADDR" {shlex.quote(text)} "$HOSTILE" """
    program = Program(script=script, envs={"HOSTILE": value, "TOKEN": None}, processes_per_node=2)
    task = yaml.safe_load(render_managed_job(spec(node=NodeResources()), program, EVERYTHING, "demo"))
    env = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "4", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    with TemporaryDirectory() as folder:
        done = run(["/bin/bash", "-c", task["run"]], Path(folder), **env, **task["envs"])
    lines = [f"{rank}/10.0.0.1/{text}/{value}\n" for rank in (2, 3)]
    assert sorted(done.stdout) == sorted("".join(lines)) and done.returncode == 0


@pytest.mark.parametrize("place", ["aws", "GCP/us-central1", "aws/*/us-east-1a", "*/us-east-1", "k8s/arn:aws:eks:x"])
def test_a_place_is_written_as_skypilot_writes_it(place: str) -> None:
    assert SkyPilot(infra=(place,)).infra == (place,)


@pytest.mark.parametrize("place", ["", "a b", "aws/$(id)", "/aws", "-aws", "aws//x", "aws/'", "aws\n"])
def test_what_names_no_place_is_refused(place: str) -> None:
    with pytest.raises(ValueError, match="infra"):
        SkyPilot(infra=(place,))


@pytest.mark.sky
@given(st.tuples(HOSTILE, HOSTILE, HOSTILE))
@settings(max_examples=1)
def test_skypilot_itself_takes_the_task(texts: tuple[str, str, str]) -> None:
    """`TRAINWORKS_TEST_SKY` names a Python that has SkyPilot; its schema is the judge."""
    python = os.environ.get("TRAINWORKS_TEST_SKY")
    if python is None:
        pytest.skip("NOT TESTED: SkyPilot's own schema; set TRAINWORKS_TEST_SKY to a Python that has skypilot")
    value, folder, setup = texts
    program = Program(script="true", setup=setup, envs={"A": value, "B": None}, working_folder=folder)
    hostile = render_managed_job(spec(), program, SkyPilot(file_mounts={"/data": value}), "demo")
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    words = "\0".join([everything(), hostile])
    done = subprocess.run([python, "-c", VALIDATES], input=words, text=True, env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
