"""Start a module in the environment of a run: `... agent.environments.start RUN_DIR NODE MODULE ARGUMENT...`.

It builds the environment on its node and becomes the module, under the same process id, with the interpreter of the
environment. The trainer's agents and the measurements on the nodes of a job start through it, on every backend.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from trainworks.agent.environments.build import BuiltEnvironment, build
from trainworks.errors import TrainworksError
from trainworks.host import process
from trainworks.record.events.job import EnvironmentEvent, FailureEvent
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.run_environment import NodeEnvironment

_MODULE = "trainworks.agent.environments.start"


def agent_module(run_dir: RunDir, resolved: ResolvedRun, node: int, module: str, *arguments: str) -> list[str]:
    """Arguments that start a module with the interpreter of the ranks: the one place that decides which that is."""
    if resolved.environment is None or resolved.environment.kind == "image":
        return process.python_module(module, *arguments)
    return process.python_module(_MODULE, str(run_dir.path), str(node), module, *arguments)


def environment_command(run_dir: Path, node: int, command: list[str]) -> list[str]:
    """The command of a module, which starts it in the environment of the run instead."""
    module = command[command.index("-m") + 1 :]
    return process.python_module(_MODULE, str(run_dir), str(node), *module)


def record_environment(run_dir: RunDir, node: int, facts: NodeEnvironment) -> None:
    """Write what the ranks of a node run with into the record."""
    run_dir.write_node_environment(node, facts)
    run_dir.note(EnvironmentEvent(kind="environment", node=node, key=facts.key, seconds=round(facts.built_s, 3)))


def note_failure(run_dir: RunDir, node: int, error: TrainworksError) -> None:
    """Record why the ranks of a node have no environment."""
    run_dir.note(
        FailureEvent(
            kind="failure",
            rank=None,
            node=node,
            host=socket.gethostname(),
            cause="environment",
            exit_code=error.exit_code,
            message=error.message,
            hint=error.hint,
        )
    )


def main(run_folder: str, node: str, module: str, *arguments: str) -> int:
    """Become the module; returns the exit code if the environment cannot be built."""
    process.die_with_parent(signal.SIGTERM)
    run_dir = RunDir(Path(run_folder))
    resolved = run_dir.read_resolved()
    assert resolved.environment is not None
    try:
        built: BuiltEnvironment = build(resolved.environment, trains=resolved.is_workload)
    except TrainworksError as error:
        note_failure(run_dir, int(node), error)
        sys.stderr.write(f"{error.render()}\n")
        return error.exit_code
    record_environment(run_dir, int(node), built.facts)
    return process.replace([built.python, "-P", "-m", module, *arguments], built.variables(os.environ))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
