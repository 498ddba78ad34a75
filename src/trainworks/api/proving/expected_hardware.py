"""The hardware that `expect` names: for health checks and for verdicts on benchmarks."""

from __future__ import annotations

from pathlib import Path

from trainworks.api.inputs import argument, load_run
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.stack_cluster import read_cluster
from trainworks.config.engines import stack_file_in
from trainworks.config.stack import is_stack_file
from trainworks.errors import ArgumentError
from trainworks.jobs.described_nodes import described_cluster
from trainworks.measure.health.expectation import expected_cluster


def described_hardware(expect: str) -> ClusterDescription:
    """The cluster of a description, of a run file with one, or of the compute nodes of a stack file.

    Raises:
        ArgumentError: `expect` is none of them.
        RunFileError: the run file or the stack file has problems.
    """
    if is_stack_file(expect) or (stack_file_in(expect) and not Path(expect).is_file()):
        return read_cluster(expect)
    if not Path(expect).is_file():
        with argument("expect"):
            return expected_cluster(expect)
    run_file, source = load_run(expect)
    if run_file.cluster.of is None:
        raise ArgumentError(
            f"`{expect}` describes no cluster", argument="expect", hint="describe a node: `8x H100-SXM-80GB, 8x NDR`"
        )
    return described_cluster(run_file, source)
