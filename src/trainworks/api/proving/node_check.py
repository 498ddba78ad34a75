"""Check a node for its job: `python -m trainworks.api.proving.node_check RUN_DIR NODE`.

The resolved run names this module, and the supervisor of the job runs it on every node. The result is an event of the
run; exit code 1 means that the job must not start here.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from trainworks.api.proving.health import expectation_of_run
from trainworks.host import process
from trainworks.measure.health.node import NodeView
from trainworks.measure.health.node_health import check_node
from trainworks.record.events.job import NodeCheckEvent
from trainworks.record.run_dir import RunDir


def main(run_folder: str, node: str) -> int:
    """Record whether this node may run the job; returns the exit code."""
    run_dir = RunDir(Path(run_folder))
    run_file = run_dir.read_resolved().run_file
    asked = run_file.job.health
    if isinstance(asked, str):
        problem, hint = _own_check(asked), "repair the node, or correct `job.health`"
    else:
        result = check_node(NodeView(expected=expectation_of_run(run_file)))
        problem = "; ".join(failed.complaint for failed in result.failed)
        hint = result.failed[0].action if problem else ""
    names = (os.environ.get(name) for name in ("SLURMD_NODENAME", "NODE_NAME"))  # of Slurm, and of a pod's node
    host = next(filter(None, names), socket.gethostname())
    run_dir.note(NodeCheckEvent(kind="node_check", node=int(node), host=host, message=problem, hint=hint))
    return 1 if problem else 0


def _own_check(command: str) -> str:
    """Why the command of the run file refuses this node; empty if it does not."""
    output = process.run(["/bin/bash", "-c", command])
    sys.stdout.write(output.stdout + output.stderr)
    lines = (output.stdout + output.stderr).strip().splitlines()
    return "" if output.exit_code == 0 else " ".join([*lines[-1:], f"(exit code {output.exit_code})"])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
