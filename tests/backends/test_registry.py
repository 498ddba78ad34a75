"""Backends by name: built-in ones, and those that plugins provide through entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from tests.backends.small_backend import SmallBackend
from tests.fakes import resolved_command
from trainworks.backends.registry import backend_class, backend_for, is_copied, plugin_options, shares_files
from trainworks.config.run_file import Cluster, RunFile
from trainworks.errors import UsageError
from trainworks.record.run_dir import RunDir


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Install a distribution with entry points; yields a function that takes their lines."""

    def install(*lines: str) -> None:
        folder = tmp_path / "small-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: small\nVersion: 1\n")
        (folder / "entry_points.txt").write_text("\n".join(["[trainworks.backends]", *lines]))
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    yield install


def cluster(value: Any) -> Cluster:
    return RunFile.model_validate({"name": "a", "run": "true", "cluster": value}).cluster


def test_an_installed_plugin_is_found_by_its_entry_point(plugin: Any) -> None:
    plugin("small = tests.backends.small_backend:SmallBackend")
    assert cluster("small").engine == "small"
    assert backend_class("small") is SmallBackend
    assert isinstance(backend_for(cluster({"engine": "small", "small": {"size": 4}})), SmallBackend)
    assert shares_files("small")


def test_a_copied_run_is_known_by_the_folder_on_its_cluster(tmp_path: Path) -> None:
    copied = {"engine": "slurm", "slurm": {"login": "login1", "folder": "/scratch", "python": "/opt/python"}}
    found = []
    for one in ("local", "slurm", {"engine": "slurm", "slurm": {"login": "login1"}}, copied):
        run_file = RunFile.model_validate({"name": "t", "run": "true", "cluster": one})
        RunDir(tmp_path).write_resolved(resolved_command(run_file=run_file))
        found.append(is_copied(tmp_path))
    assert found == [False, False, False, True] and not is_copied(tmp_path / "gone")


def test_a_published_plugin_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainworks.backends.registry.entry_points", lambda **_: ())
    with pytest.raises(UsageError, match="the `ray` backend is not installed") as refused:
        backend_for(cluster("ray"))
    assert refused.value.hint == "pip install trainworks-ray"
    assert not shares_files("ray")


def test_a_plugin_that_cannot_be_imported_is_one_error(plugin: Any) -> None:
    plugin("broken = no_such_module:Backend")
    with pytest.raises(UsageError, match="cannot load the `broken` backend from `no_such_module:Backend`"):
        backend_for(cluster("broken"))


def test_a_described_cluster_has_no_backend() -> None:
    with pytest.raises(UsageError, match="no backend runs jobs on cluster `64x H100`"):
        backend_for(cluster("64x H100"))


class Options(BaseModel):
    """Options of a plugin."""

    model_config = ConfigDict(extra="forbid")
    address: str
    size: int = 1


@pytest.mark.parametrize(
    ("block", "error", "hint"),
    [
        ({}, "`cluster.ray.address` does not fit: field required", None),
        ({"address": "a", "size": "x"}, "`cluster.ray.size` does not fit: input should be a valid integer", None),
        ({"address": "a", "adress": "b"}, "unknown key `cluster.ray.adress`", "did you mean `address`?"),
    ],
)
def test_a_plugin_validates_its_own_options(block: dict[str, Any], error: str, hint: str | None) -> None:
    with pytest.raises(UsageError, match=error) as refused:
        plugin_options(cluster({"engine": "ray", "ray": block}), Options)
    assert refused.value.hint == hint


def test_valid_options_reach_the_plugin() -> None:
    block = {"engine": "ray", "ray": {"address": "a"}}
    assert plugin_options(cluster(block), Options) == Options(address="a")
