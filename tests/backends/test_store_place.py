"""Where the job store is, and what each dispatcher has for itself."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from trainworks.backends.store_place import (
    dispatcher_address,
    dispatcher_lock,
    dispatcher_log,
    store_url,
)
from trainworks.errors import EnvironmentProblem
from trainworks.host.folders import cache_folder, data_folder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of each test's own, with a path longer than that of a socket may be."""
    folder = tmp_path / ("long" * 30)
    monkeypatch.setenv("TRAINWORKS_DATA", str(folder))
    monkeypatch.delenv("TRAINWORKS_STORE", raising=False)
    return folder


def test_each_store_has_a_lock_and_a_log_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for url in ("", "sqlite:////tmp/other.db", "postgresql+psycopg://host/jobs"):
        monkeypatch.setenv("TRAINWORKS_STORE", url)
        seen |= {dispatcher_lock(), dispatcher_log()}
    assert len(seen) == 6


def test_each_machine_that_shares_a_home_has_a_dispatcher_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    here = dispatcher_lock()
    monkeypatch.setenv("TRAINWORKS_HOST", "elsewhere")
    assert dispatcher_lock() != here


def test_the_default_store_by_its_url_has_the_same_dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    here = dispatcher_lock()
    monkeypatch.setenv("TRAINWORKS_STORE", store_url())
    assert dispatcher_lock() == here


def test_a_relative_file_is_one_of_the_current_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINWORKS_STORE", "sqlite:///jobs.db")
    assert store_url() == f"sqlite:///{tmp_path}/jobs.db"


@pytest.mark.parametrize("url", ["nonsense", "postgresql+psycopg://me:geheim@host/jobs", "sqlite:////abs/jobs.db"])
def test_any_other_url_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("TRAINWORKS_STORE", url)
    assert store_url() == url


def test_a_dispatcher_is_woken_up_in_its_own_folder_however_long_its_path() -> None:
    with dispatcher_address() as address, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        door.bind(address)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as knocking:
            knocking.sendto(b".", address)
        assert door.recv(8) == b"."
    assert (dispatcher_lock().parent / "wake-up").is_socket()
    assert dispatcher_lock().parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("place", [data_folder, cache_folder])
def test_a_user_without_a_home_is_told_what_to_set(place: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "TRAINWORKS_DATA", "TRAINWORKS_CACHE", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 + 5)
    with pytest.raises(EnvironmentProblem, match="cannot find the home folder of uid 2147483653"):
        place()  # type: ignore[operator]
