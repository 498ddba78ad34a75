"""Ranks of a command in containers of this machine, and what is refused before they start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import trainworks
from trainworks.agent.environments.containers import ContainerRuntime
from trainworks.config.engines import LocalContainer
from trainworks.errors import UsageError

FAKE = """#!/bin/sh
# Stands for podman: it knows one image, and runs a container as a process of this machine.
echo "$@" >> {log}
case "$1 $2" in
  "image inspect") [ "$4" = known:1 ] && echo abc && exit 0; exit 1;;
  "pull "*) echo "no such image: $2" >&2; exit 125;;
  "container inspect") exit 1;;
  "run "*) while [ "$1" != known:1 ]; do shift; done; shift; exec "$@";;
esac
"""


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of a program that stands for podman."""
    program, log = tmp_path / "bin" / "podman", tmp_path / "podman.log"
    program.parent.mkdir()
    program.write_text(FAKE.format(log=log))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return log


def request(image: str = "known:1", **changes: Any) -> dict[str, Any]:
    """A run of a command with an image."""
    text = 'echo "rank $RANK"'
    cluster = {"processes_per_node": 2, "local": {"container": {"options": ["--ulimit=memlock=-1"]}}}
    return {"name": "demo", "run": text, "environment": {"image": image}, "cluster": cluster} | changes


def test_every_rank_runs_in_a_container_of_the_image(runtime: Path, tmp_path: Path) -> None:
    run = trainworks.run(request(), folder=tmp_path / "runs", review=False)
    assert [run.run_dir.rank_log(rank).read_text() for rank in range(2)] == ["rank 0\n", "rank 1\n"]
    started = [line for line in runtime.read_text().splitlines() if line.startswith("run ")]
    assert len(started) == 2
    assert all("--ulimit=memlock=-1 known:1 /bin/bash -euo pipefail -c" in line for line in started)


def test_the_record_has_the_digest_of_the_image(runtime: Path, tmp_path: Path) -> None:
    packages = trainworks.env(trainworks.run(request(), folder=tmp_path / "runs", review=False))
    assert (packages.first.kind, packages.first.image_digest) == ("image", "sha256:abc")
    assert "known:1" in packages.lock and "digest sha256:abc" in packages.lock


def test_an_image_that_cannot_be_pulled_fails_the_run(runtime: Path, tmp_path: Path) -> None:
    run = trainworks.run(request("other:1"), folder=tmp_path / "runs", review=False, wait=False)
    run.wait()
    assert run.status.cause == "environment"
    assert run.status.message == "cannot pull image `other:1`: no such image: other:1"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"setup": "true"}, "`setup` would run in a container that ends before `run`"),
        ({"environment": None}, "the container has no image"),
    ],
)
def test_what_cannot_run_in_a_container_is_refused(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=reason):
        trainworks.run(request(**changes), folder=tmp_path, review=False)


@pytest.mark.parametrize(("program", "devices"), [("podman", "--device=nvidia.com/gpu=all"), ("docker", "--gpus=all")])
def test_a_container_gets_folders_devices_and_names_of_variables_but_no_value(program: Any, devices: str) -> None:
    options = LocalContainer(image="i", runtime=program, mounts=("/data", "/a:/b"), runtime_options=("--debug",))
    container = ContainerRuntime(options, (Path("/runs/x"), Path("/work")), on_accelerators=True)
    env = {"TOKEN": "secret", "PATH": "/bin", "RANK": "0", "CUDA_VISIBLE_DEVICES": "3"}
    command = container.command(["train"], "c", env, Path("/work"))
    assert command[:3] == [program, "--debug", "run"]
    assert {devices, "--volume=/data:/data", "--volume=/a:/b", "--volume=/runs/x:/runs/x"} <= set(command)
    assert [word for word in command if word.startswith("--env=")] == [
        "--env=CUDA_VISIBLE_DEVICES",
        "--env=RANK",
        "--env=TOKEN",
    ]
    assert not any("secret" in word for word in command)
