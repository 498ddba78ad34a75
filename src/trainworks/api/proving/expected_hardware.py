"""The hardware that `expect` names: for health checks and for verdicts on benchmarks."""

from __future__ import annotations

from pathlib import Path

from trainworks.api.inputs import argument, load_run
from trainworks.catalog.cluster import ClusterDescription, parse_cluster
from trainworks.errors import ArgumentError
from trainworks.measure.health.expectation import expected_cluster


def described_hardware(expect: str) -> ClusterDescription:
    """The cluster of a description, or of a run file with one.

    Raises:
        ArgumentError: `expect` is neither.
    """
    if not Path(expect).is_file():
        with argument("expect"):
            return expected_cluster(expect)
    run_file, _ = load_run(expect)
    if run_file.cluster.of is None:
        raise ArgumentError(
            f"`{expect}` describes no cluster", argument="expect", hint="describe a node: `8x H100-SXM-80GB, 8x NDR`"
        )
    return parse_cluster(run_file.cluster.of)
