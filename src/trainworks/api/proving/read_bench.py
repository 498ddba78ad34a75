"""Judge what other benchmark programs printed, and teach the planner what benchmarks measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from trainworks.api.proving.expected_hardware import described_hardware
from trainworks.catalog.cluster import ClusterDescription
from trainworks.errors import ArgumentError
from trainworks.host.folders import data_folder
from trainworks.measure.bench.bench_verdicts import BenchVerdicts, judge_all, measured_curves, measured_rates
from trainworks.measure.bench.expected import Yardstick
from trainworks.measure.bench.readers.registry import read_file
from trainworks.measure.bench.verdict import Judged
from trainworks.record.measured.measurement import ClusterMeasurement
from trainworks.record.measured.measurement_store import append_measurement, measurement_file, read_measurements


def read_bench(files: Sequence[Path | str], *, expect: str | None = None, learn: bool = False) -> BenchVerdicts:
    """Read what other benchmark programs printed, and judge it.

    These are read: nccl-tests and rccl-tests, perftest, OSU micro-benchmarks, fio (JSON and terse), iperf3 (JSON and
    text), STREAM, HPL, HPCC, mdtest and nvbandwidth (JSON and text).

    Args:
        files: output of one program each.
        expect: hardware that was measured: a description such as `4 nodes of 8x H100, 8x NDR`, a run file with one, or
            a stack file.
            Without it a measurement inside a node is held against the accelerator that the output names.
        learn: store the measured rates for the plans of this kind of cluster, with the newest date of the files;
            needs `expect`.

    Raises:
        UsageError: a file is not the complete output of one known program.
        ArgumentError: `expect` describes no cluster, or `learn` has nothing to learn for or from.

    >>> tuned = read_bench(["tests/data/bench/ib_write_bw.txt"], expect="2 nodes of 8x A100-SXM-80GB, 8x HDR")
    >>> tuned.judged[-1].verdict.value
    'pass'
    """
    cluster = described_hardware(expect) if expect is not None else None
    measurements = [measurement for file in files for measurement in read_file(Path(file))]
    judged = judge_all(measurements, Yardstick(cluster))
    measured_at = max((Path(file).stat().st_mtime for file in files), default=None)
    learned = learn_from(judged, cluster, measured_at=measured_at) if learn else None
    return BenchVerdicts(judged, cluster.name if cluster else "", learned)


def learn_from(
    judged: Sequence[Judged], cluster: ClusterDescription | None, *, measured_at: float | None = None
) -> Path:
    """Store measured rates for the plans of a kind of cluster, equal ones once; returns the file.

    They were `measured_at` that many seconds since the epoch; now when left out. The newest figures count.

    Raises:
        ArgumentError: no cluster is described, or no figure tells of a rate that plans use.
    """
    if cluster is None:
        raise ArgumentError(
            "what was measured teaches the plans of a kind of cluster, and none is described",
            argument="learn",
            hint='describe it: `--expect "4 nodes of 8x H100, 8x NDR"`',
        )
    rates, curves = measured_rates(judged), measured_curves(judged, cluster)
    if not rates and not curves:
        raise ArgumentError(
            "no figure that passed or is weak tells of products, device memory or links",
            argument="learn",
            hint="give the output of all_reduce_perf or of ib_write_bw",
        )
    folder = data_folder("clusters")
    measurement = ClusterMeasurement(created_at=measured_at or time.time(), cluster=cluster, rates=rates, curves=curves)
    same = measurement.model_copy(update={"created_at": 0.0})
    stored = (one.model_copy(update={"created_at": 0.0}) for one in read_measurements(folder, cluster))
    known = same in stored
    return measurement_file(folder, cluster) if known else append_measurement(folder, measurement)
