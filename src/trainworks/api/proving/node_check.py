"""Check a node for its job: `python -m trainworks.api.proving.node_check RUN_DIR NODE [SINCE]`.

The resolved run names this module, and the supervisor of the job runs it on every node. The result is an event of the
run; exit code 1 means that the job must not start here. With SINCE, in seconds since the epoch, only accelerators are
looked at, for errors in the kernel's log since then and for their present state; a node where none is at fault alone
passes, and leaves no event.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

from trainworks.api.proving.health import expectation_of_run
from trainworks.host import process
from trainworks.host.probe import probe_accelerators
from trainworks.measure.health.node import NodeView
from trainworks.measure.health.node_health import GPU_CHECKS, check_node
from trainworks.record.events.job import BrokenAccelerator, NodeCheckEvent
from trainworks.record.run_dir import RunDir


def main(run_folder: str, node: str, since: str | None = None) -> int:
    """Record whether this node may run the job; returns the exit code."""
    run_dir = RunDir(Path(run_folder))
    run_file = run_dir.read_resolved().run_file
    asked, broken = run_file.job.health, dict[int, str]()
    if since is None and isinstance(asked, str):
        problem, hint = _own_check(asked), "repair the node, or correct `job.health`"
    else:
        if since is None:
            result = check_node(NodeView(expected=expectation_of_run(run_file)))
        else:
            result = check_node(NodeView(xids_within_s=time.time() - float(since)), GPU_CHECKS)
        broken = result.broken_gpus
        if since is not None and not broken:
            return 0
        problem = "; ".join(failed.complaint for failed in result.failed)
        hint = result.failed[0].action if problem else ""
    names = (os.environ.get(name) for name in ("SLURMD_NODENAME", "NODE_NAME"))  # of Slurm, and of a pod's node
    host = next(filter(None, names), socket.gethostname())
    event = NodeCheckEvent(kind="node_check", node=int(node), host=host, message=problem, hint=hint)
    if broken:
        parts = probe_accelerators()  # of a GPU in MIG mode all are at fault
        event["accelerators"] = [
            BrokenAccelerator(index=device, message=text)
            for index, text in broken.items()
            for device in [one.index for one in parts if one.gpu == index] or [index]
        ]
    run_dir.note(event)
    return 1 if problem else 0


def _own_check(command: str) -> str:
    """Why the command of the run file refuses this node; empty if it does not."""
    output = process.run(["/bin/bash", "-c", command])
    sys.stdout.write(output.stdout + output.stderr)
    lines = (output.stdout + output.stderr).strip().splitlines()
    return "" if output.exit_code == 0 else " ".join([*lines[-1:], f"(exit code {output.exit_code})"])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
