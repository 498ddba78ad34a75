"""The environment in which the steps of a workload are measured for its plan: that of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from trainworks.agent.environments.build import BuiltEnvironment, build
from trainworks.agent.environments.start import environment_command
from trainworks.host.network import Machines
from trainworks.record.environment import HostFacts
from trainworks.record.run_environment import ResolvedEnvironment


@dataclass(frozen=True, slots=True)
class RanksInterpreter:
    """The Python that trains on this machine, which measures for the plan as well."""

    built: BuiltEnvironment | None = None
    """None for Trainworks' own."""

    @property
    def python(self) -> str | None:
        """Path of the interpreter; None for Trainworks' own."""
        return self.built.python if self.built else None

    @property
    def cache(self) -> tuple[str, ...]:
        """Folder of the trials of this environment, below that of all trials: other packages are another trial."""
        return (self.built.facts.key,) if self.built else ()

    def seen_by(self, host: HostFacts) -> HostFacts:
        """The machine with the package versions of this environment."""
        if self.built is None:
            return host
        versions = {one.name: one.version for one in self.built.facts.distributions}
        packages = {name: versions[name] for name in host.packages if name in versions}
        return host.model_copy(update={"packages": packages, "python": self.built.facts.python})


OWN_INTERPRETER: Final[RanksInterpreter] = RanksInterpreter()


def ranks_interpreter(environment: ResolvedEnvironment | None) -> RanksInterpreter:
    """Build the environment of a workload on this machine.

    Raises:
        UsageError: its lock file does not suit a workload.
        EnvironmentProblem: it cannot be built.
    """
    if environment is None or environment.kind == "image":
        return OWN_INTERPRETER
    return RanksInterpreter(build(environment, trains=True))


@final
class EnvironmentMachines:
    """Nodes of a job on which every process starts in the environment of the run."""

    def __init__(self, machines: Machines, run_dir: Path) -> None:
        self._machines = machines
        self._run_dir = run_dir

    @property
    def addresses(self) -> Sequence[str]:
        """Addresses of the nodes, in their order."""
        return self._machines.addresses

    def command(self, node: int, command: list[str]) -> list[str]:
        """The command of the other machines, for a module that starts in the environment."""
        return self._machines.command(node, environment_command(self._run_dir, node, command))
