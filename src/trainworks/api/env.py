"""Packages: those that a run has used, as a lock file, and cached environments that no run has used for long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainworks.agent.environments.cache import CachedEnvironment, prune
from trainworks.api.run_handle import Run, as_run
from trainworks.errors import ArgumentError, QuantityError, UsageError
from trainworks.host.clock import SystemClock
from trainworks.record.run_environment import Distribution, NodeEnvironment, ResolvedEnvironment
from trainworks.units import parse_duration


@dataclass(frozen=True, slots=True)
class RunPackages:
    """Python and packages of the ranks of a run."""

    run: str
    wanted: ResolvedEnvironment | None
    """The lock file, conda file or image of the run file; None if it names none."""
    nodes: Mapping[int, NodeEnvironment]
    """What the ranks of each node run with."""

    @property
    def first(self) -> NodeEnvironment:
        """The environment of the first node."""
        return next(iter(self.nodes.values()))

    @property
    def differences(self) -> list[str]:
        """Sentences about nodes that have other packages than the first; empty where all have the same."""
        own = _versions(self.first)
        found = []
        for node, environment in list(self.nodes.items())[1:]:
            others = _versions(environment)
            names = sorted(name for name in own.keys() | others.keys() if own.get(name) != others.get(name))
            if names:
                texts = [f"{name} {others.get(name, 'missing')} instead of {own.get(name, 'none')}" for name in names]
                found.append(f"node {node} has {', '.join(texts[:5])}{' ...' if len(texts) > 5 else ''}")
        return found

    @property
    def lock(self) -> str:
        """A file that installs the same again: requirements for pip and uv, or an explicit list for conda."""
        body = self.first.distributions
        lines = ["@EXPLICIT", *map(_explicit, body)] if self.first.kind == "conda" else map(_requirement, body)
        return "\n".join([*(f"# {line}" for line in self._head()), *lines]) + "\n"

    def _head(self) -> Iterator[str]:
        facts = self.first
        cuda = f", CUDA {facts.cuda}" if facts.cuda else ""
        driver = f", driver {facts.driver}" if facts.driver else ""
        yield f"run {self.run}: Python {facts.python}, {facts.platform}{cuda}{driver}"
        if self.wanted is not None:
            digest = f", digest {facts.image_digest}" if facts.image_digest else ""
            yield f"from {self.wanted.name}, sha256 {self.wanted.sha256}{digest}"
        else:
            yield f"the packages of Trainworks in {facts.folder}; their hashes are not known"
        yield from self.differences

    def to_json(self) -> dict[str, Any]:
        """The same as data."""
        return {
            "run": self.run,
            "wanted": self.wanted.model_dump(mode="json", exclude={"text"}) if self.wanted else None,
            "nodes": {str(node): facts.model_dump(mode="json") for node, facts in self.nodes.items()},
            "differences": self.differences,
        }


def env(run: Run | str | None = None, folder: Path | str = "runs") -> RunPackages:
    """Python and packages that the ranks of a run have used.

    Args:
        run: a run, or its id; the newest run of the folder when None.
        folder: folder of all runs.

    Raises:
        UnknownRunError: no such run.
        UsageError: the record does not say, because the run has not started or its command finds its packages itself.

    Examples:
        >>> import tempfile, trainworks
        >>> folder = tempfile.mkdtemp()
        >>> started = trainworks.run(["true"], folder=folder)
        >>> env(started)
        Traceback (most recent call last):
        ...
        trainworks.errors.UsageError: run true-1 is a command without `environment`: its packages are not in the record
    """
    found = as_run(run, folder).with_record()
    resolved, nodes = found.resolved, found.run_dir.read_node_environments()
    if nodes:
        return RunPackages(found.id, resolved.environment, nodes)
    if resolved.environment is None and not resolved.is_workload:
        raise UsageError(
            f"run {found.id} is a command without `environment`: its packages are not in the record",
            hint="write `environment: requirements.lock` into the run file",
        )
    raise UsageError(f"no node of run {found.id} has recorded its packages yet", hint=f"trainworks status {found.id}")


def _versions(environment: NodeEnvironment) -> dict[str, str]:
    return {one.name: one.version for one in environment.distributions} | {"python": environment.python}


def _requirement(one: Distribution) -> str:
    """A line of a requirements file; a distribution from a folder becomes a comment, which no other machine has."""
    if one.url is not None and one.url.startswith("file:") and not one.hashes:
        return f"# {one.name}=={one.version} from {one.url}"
    pin = f"{one.name} @ {one.url}" if one.url else f"{one.name}=={one.version}"
    return " \\\n".join([pin, *(f"    --hash={value}" for value in one.hashes)])


def _explicit(one: Distribution) -> str:
    """A line of an explicit list of conda: the address of the package, with its checksum."""
    md5 = next((value.removeprefix("md5:") for value in one.hashes if value.startswith("md5:")), None)
    return f"{one.url}{f'#{md5}' if md5 else ''}" if one.url else f"# {one.name} {one.version}"


def prune_environments(unused_for: str | float = "30d") -> list[CachedEnvironment]:
    """Delete the environments of runs in this machine's cache that were not used for a time; one in use stays.

    An environment that a run needs again is built again. The time is one such as `30d`, or seconds, since the last use.

    Returns:
        Those that were deleted, and those that are in use and would have been, by their last use.

    Raises:
        ArgumentError: it is not a time.

    Examples:
        >>> prune_environments("3650d")
        []
    """
    try:
        seconds = parse_duration(unused_for) if isinstance(unused_for, str) else unused_for
    except QuantityError as error:
        raise ArgumentError(error.message, argument="unused_for", hint=error.hint) from None
    return prune(seconds, SystemClock().now())
