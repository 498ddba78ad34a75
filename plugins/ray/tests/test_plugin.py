"""The plugin in Trainworks: its entry point and the `cluster.ray` block."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from trainworks.config.backend_names import ENTRY_POINTS, PUBLISHED
from trainworks.config.run_file import Cluster
from trainworks.errors import UsageError
from trainworks.jobs.program import Program
from trainworks_ray.backend import RayBackend

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def connected(**options: Any) -> RayBackend:
    return RayBackend.connect(Cluster(engine="ray", plugins={"ray": options}), program=Program(script="true"))


def test_the_entry_point_loads_the_backend() -> None:
    [(name, value)] = PROJECT["entry-points"][ENTRY_POINTS].items()
    assert EntryPoint(name, value, ENTRY_POINTS).load() is RayBackend
    assert (name, PROJECT["name"]) in PUBLISHED.items()


@pytest.mark.parametrize("address", ["http://head:8265", "https://ray.example.org/team-a", "http://[::1]:8265"])
def test_an_address_of_a_dashboard_is_accepted(address: str) -> None:
    assert connected(address=address).name == "ray"


@pytest.mark.parametrize(
    "address",
    ["head:8265", "ray://head:10001", "http://ada:pw@head:8265", "http://head:8265?x=1", "http://a b", "http://"],
)
def test_another_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=r"`cluster\.ray\.address` does not fit"):
        connected(address=address)
