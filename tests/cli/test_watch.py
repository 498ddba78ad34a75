"""A stop that is asked for while a run starts is never lost."""

from __future__ import annotations

import io
import os
import signal
import time
from functools import partial

from rich.console import Console

from trainworks.backends.local.attached import stop_supervisor
from trainworks.cli.runs.watch import StopOnInterrupt
from trainworks.host import process
from trainworks.record.runs_folder import create_run_dir
from trainworks.record.status import RunStatus


def test_a_stop_that_comes_before_there_is_a_supervisor_is_kept_for_it(tmp_path):
    run_dir = create_run_dir(tmp_path, "run")
    run_dir.write_status(RunStatus(state="CREATED", updated_at=time.time()))
    stop = partial(stop_supervisor, run_dir)
    with StopOnInterrupt(stop, Console(file=io.StringIO())) as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        interrupts.pass_on()  # nobody is there
        supervisor = process.spawn(["sleep", "600"], log=tmp_path / "log")
        pid, started_at = process.identity(supervisor.pid)
        run_dir.write_status(
            RunStatus(state="STARTING", supervisor_pid=pid, supervisor_started_at=started_at, updated_at=time.time())
        )
        interrupts.pass_on()
    assert supervisor.wait(240) == -signal.SIGTERM
