"""The ledger of this machine: what processes hold is seen by all, and gone with the last of them."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from tests.fakes import FakeClock
from trainworks.errors import EnvironmentProblem
from trainworks.host import forking, process
from trainworks.host.ledger import Claim, MachineLedger, Share, claim_key, ledger_in

SHARE = Share(run="lm-1", key=claim_key("/runs/lm-1"), cores=2.0, devices=(0, 3))


@pytest.fixture
def ledger(tmp_path: Path, clock: FakeClock) -> MachineLedger:
    """An empty ledger."""
    return MachineLedger(tmp_path, clock)


def files(folder: Path) -> list[Path]:
    """The claims, held or not."""
    return sorted(folder.glob("trainworks-*"))


def held(ledger: MachineLedger, share: Share = SHARE) -> int:
    """Take a share."""
    handle = ledger.claim(lambda claims: share)
    assert handle is not None
    return handle


def test_a_claim_is_seen_until_it_is_closed(ledger: MachineLedger) -> None:
    handle = held(ledger)
    assert ledger.claims() == [Claim(os.getuid(), SHARE)]
    os.close(handle)
    assert ledger.claims() == []


def test_a_claim_stays_while_a_process_that_inherits_it_lives(ledger: MachineLedger, tmp_path: Path) -> None:
    handle = held(ledger)
    child = process.spawn(["sleep", "600"], log=tmp_path / "log", pass_fds=[handle])
    os.close(handle)
    assert len(ledger.claims()) == 1
    process.kill(child.pid)
    child.wait()
    assert ledger.claims() == []


def test_nothing_is_taken_where_the_choice_is_against_it(ledger: MachineLedger, tmp_path: Path) -> None:
    first = held(ledger)
    seen: list[Claim] = []
    assert ledger.claim(seen.extend) is None
    assert (seen, len(files(tmp_path))) == ([Claim(os.getuid(), SHARE)], 1)
    os.close(first)


def test_of_many_processes_that_want_one_device_one_gets_it(tmp_path: Path) -> None:
    def take() -> int:
        handle = MachineLedger(tmp_path).claim(lambda claims: None if claims else SHARE)
        if handle is not None:
            os.write(1, b"won\n")
            os.read(there, 1)  # hold it until all have tried
        return 0

    there, here = os.pipe()
    children = [forking.fork(take, log=tmp_path / "log", close_fds=[here]) for _ in range(8)]
    while len(tries := [child for child in children if child.exit_code() is None]) > 1:
        process.wait_any(tries, None)
    os.close(here)
    assert [child.wait() for child in children] == [0] * 8
    os.close(there)
    assert (tmp_path / "log").read_text() == "won\n"


def test_what_is_left_of_a_job_that_ended_is_removed_by_its_user(ledger: MachineLedger, tmp_path: Path) -> None:
    os.close(held(ledger))
    assert len(files(tmp_path)) == 1
    os.close(held(ledger))
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize(
    "content",
    [
        "",
        "no JSON",
        '{"run": "x"}',
        SHARE.model_dump_json().replace("lm-1", "\\u001b[31mlm"),
        SHARE.model_dump_json().replace("2.0", "-1"),
        SHARE.model_dump_json().replace("2.0", "NaN"),
        SHARE.model_dump_json().replace("[0,3]", str(list(range(2000)))),
        SHARE.model_dump_json() + " " * 20_000,
    ],
)
def test_a_claim_that_is_not_valid_counts_for_nothing(ledger: MachineLedger, tmp_path: Path, content: str) -> None:
    handle = held(ledger)
    (file,) = files(tmp_path)
    file.write_text(content)
    assert ledger.claims() == []
    os.close(handle)


def test_a_file_that_others_can_write_counts_for_nothing(ledger: MachineLedger, tmp_path: Path) -> None:
    handle = held(ledger)
    files(tmp_path)[0].chmod(0o666)
    assert ledger.claims() == []
    os.close(handle)


def test_links_pipes_and_folders_are_neither_followed_nor_waited_for(ledger: MachineLedger, tmp_path: Path) -> None:
    names = [tmp_path / f"trainworks-{number:032x}.claim" for number in range(4)]
    (tmp_path / "elsewhere").write_text(SHARE.model_dump_json())
    names[0].symlink_to(tmp_path / "elsewhere")
    os.mkfifo(names[1])
    names[2].mkdir()
    names[3].write_text(SHARE.model_dump_json())
    assert ledger.claims() == []


def test_a_lock_of_a_reader_makes_no_claim(ledger: MachineLedger, tmp_path: Path) -> None:
    os.close(held(ledger))
    with files(tmp_path)[0].open() as reader:
        fcntl.flock(reader, fcntl.LOCK_EX)
        fcntl.lockf(reader, fcntl.LOCK_SH)
        assert ledger.claims() == []


def test_a_process_that_is_stopped_while_it_claims_delays_the_others(
    ledger: MachineLedger, tmp_path: Path, clock: FakeClock
) -> None:
    holder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    clock.after(20.0, lambda: os.close(holder))
    os.close(held(ledger))


def test_a_ledger_that_stays_locked_is_an_error(ledger: MachineLedger, tmp_path: Path) -> None:
    holder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(EnvironmentProblem, match="another process keeps the ledger"):
        held(ledger)
    os.close(holder)


def test_a_machine_without_a_place_for_a_ledger_runs_jobs_all_the_same() -> None:
    ledger = MachineLedger(None)
    os.close(held(ledger))
    assert ledger.claims() == []


def test_a_ledger_that_is_made_is_open_to_all_users(tmp_path: Path) -> None:
    os.close(held(ledger_in(tmp_path / "made" / "here")))
    assert (tmp_path / "made" / "here").stat().st_mode & 0o7777 == 0o1777
    assert len(files(tmp_path / "made" / "here")) == 1
