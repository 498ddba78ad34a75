"""Which srun is ended because its slurmstepd is gone."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from trainworks.backends.slurm.allocation import (
    GRACE_S,
    LONGEST_PROLOG_S,
    PATIENCE_S,
    StepWatch,
    connected,
    first_connection_s,
)

CONNECT = (
    "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); input(); s.close(); input()"
)


@pytest.mark.parametrize(
    ("looks", "ended"),
    [
        ([(0, True), (GRACE_S, False), (3 * GRACE_S, False)], True),
        ([(0, True), (5, False), (GRACE_S, False)], False),  # it may still wait for an epilog
        ([(0, True), (5, False), (10, True), (5 + GRACE_S, False), (10 + GRACE_S, False)], False),
        ([(0, False), (2 * GRACE_S, False)], False),  # its step may not have started yet
        ([(0, False), (GRACE_S, False), (PATIENCE_S, False)], True),
        (
            [(0, True), (5, False), (10, None), (15, False), (3 * GRACE_S, False)],
            False,
        ),  # another one, of the same number
        ([(0, True), (9 * GRACE_S, True)], False),
    ],
    ids=["lost", "just lost", "came back", "none yet", "none for long", "ended meanwhile", "has one"],
)
def test_an_srun_is_ended_once_it_has_lost_its_connection_for_good(
    looks: list[tuple[float, bool | None]], ended: bool
) -> None:
    watch = StepWatch(PATIENCE_S)
    found = [watch.take({} if seen is None else {7: seen, 8: True}, now) for now, seen in looks]
    assert found[-1] == ([7] if ended else []) and not any(found[:-1])


@pytest.mark.parametrize(
    ("lines", "longest_s"),
    [
        (["Prolog                  = (null)", "PrologEpilogTimeout     = 65534"], PATIENCE_S),
        (["PrologEpilogTimeout     = 600"], PATIENCE_S),
        (["Prolog                  = /etc/prolog.sh", "PrologEpilogTimeout     = 600"], PATIENCE_S + 600),
        (["Prolog[0]               = /etc/a.sh", "PrologEpilogTimeout     = 600"], PATIENCE_S + 600),
        (
            ["Prolog                  = /etc/prolog.sh", "PrologEpilogTimeout     = 65534"],
            PATIENCE_S + LONGEST_PROLOG_S,
        ),
        (["PrologSlurmctld         = /etc/ctld.sh", "PrologFlags             = Alloc"], PATIENCE_S),
        ([], PATIENCE_S),
    ],
    ids=["no prolog", "only a limit", "with a limit", "numbered", "without a limit", "of slurmctld", "nothing"],
)
def test_an_srun_may_wait_for_the_prolog_as_long_as_slurm_lets_that_run(lines: list[str], longest_s: float) -> None:
    config = "\n".join(["Configuration data as of 2026-11-26", *lines, "PropagatePrioProcess    = 0"])
    assert first_connection_s(config) == longest_s


def test_a_process_is_connected_until_its_connection_closes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        command = [sys.executable, "-S", "-c", CONNECT, port]
        with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as program:
            assert program.stdin is not None
            peer, _ = server.accept()
            assert connected([program.pid]) == {program.pid: True}
            program.stdin.write("\n")
            program.stdin.flush()
            assert peer.recv(1) == b""
            peer.close()
            assert connected([program.pid]) == {program.pid: False}
            program.stdin.write("\n")
