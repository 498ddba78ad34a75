"""The hardware that `expect` names: for health checks and for verdicts on benchmarks."""

from __future__ import annotations

from pathlib import Path

from trainworks.api.inputs import argument, load_run
from trainworks.catalog.cluster import ClusterDescription, parse_cluster
from trainworks.config.source import read_text
from trainworks.errors import ArgumentError
from trainworks.measure.health.expectation import expected_cluster


def is_stack_file(path: str) -> bool:
    """Whether a file describes the machines of a cluster, and not a run."""
    if not path.endswith((".yaml", ".yml")):
        return False
    from trainworks.review.files import ReviewedFile  # noqa: PLC0415, a check before each job has no file

    return ReviewedFile(path, read_text(Path(path), "stack file")).stack is not None


def described_hardware(expect: str) -> ClusterDescription:
    """The cluster of a description, of a run file with one, or of the compute nodes of a stack file.

    Raises:
        ArgumentError: `expect` is none of them.
        RunFileError: the run file or the stack file has problems.
    """
    if not Path(expect).is_file():
        with argument("expect"):
            return expected_cluster(expect)
    if is_stack_file(expect):
        from trainworks.config.stack import load_stack  # noqa: PLC0415, a check before each job has no file
        from trainworks.deploy.fabric.network import described_cluster  # noqa: PLC0415, as above

        stack, _ = load_stack(Path(expect))
        with argument("expect"):
            return described_cluster(stack)
    run_file, _ = load_run(expect)
    if run_file.cluster.of is None:
        raise ArgumentError(
            f"`{expect}` describes no cluster", argument="expect", hint="describe a node: `8x H100-SXM-80GB, 8x NDR`"
        )
    return parse_cluster(run_file.cluster.of)
