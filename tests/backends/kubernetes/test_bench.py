"""The program of a benchmark in the pods of a real Kubernetes, whose folders are gone with the job."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.backends.kubernetes.conftest import Kube
from trainworks.measure.bench.bench_report import build_bench_report
from trainworks.measure.bench.node_record import records_in

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]


def test_pods_measure_together_and_print_their_records(kube: Kube) -> None:
    request = {"kinds": ["storage", "network"], "paths": ["/none"], "prints_record": True}
    command = shlex.join(["python", "-m", "trainworks.measure.bench.node", json.dumps(request)])
    run = kube.command(command, nodes=2)
    run.start()
    assert run.reaches("SUCCEEDED").state == "SUCCEEDED", run.log
    records = records_in(run.backend.output(run.handle))
    report = build_bench_report("bench", records)
    assert report.is_complete
    assert {each.subject for each in report.measurements} == {f"{records[0].name} <-> {records[1].name}"}
