"""The program of a benchmark in the pods of a real Kubernetes, whose folders are gone with the job."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.kubernetes.conftest import Kube
from tests.kubernetes.cluster import CLAIM, IMAGE
from trainworks.measure.bench.bench_report import build_bench_report
from trainworks.measure.bench.node_record import records_in

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]


def test_pods_measure_together_and_print_their_records(kube: Kube) -> None:
    request = {"kinds": ["storage", "network"], "paths": ["/none"], "prints_record": True}
    command = shlex.join(["python", "-m", "trainworks.measure.bench.node", json.dumps(request)])
    run = kube.command(command, nodes=2).submit()
    assert run.reaches("SUCCEEDED").state == "SUCCEEDED", run.log
    records = records_in(run.backend.output(run.handle))
    report = build_bench_report("bench", records)
    assert report.is_complete
    assert {each.subject for each in report.measurements} == {f"{records[0].name} <-> {records[1].name}"}


@pytest.mark.parametrize(
    ("accelerators", "what"), [("h100:8", "all"), (None, "network")], ids=["two nodes", "two pods of a node"]
)
def test_the_command_measures_and_makes_one_report_of_all_nodes(
    kube: Kube, tmp_path: Path, accelerators: str | None, what: str
) -> None:
    cluster = {"engine": "kubernetes", "processes_per_node": 1, "kubernetes": {"image": IMAGE, "volume": CLAIM}}
    asked = {"accelerators": accelerators} if accelerators else {}
    (tmp_path / "run.yaml").write_text(json.dumps({"name": "b", "run": "true", "resources": asked, "cluster": cluster}))
    own = {"KUBECONFIG": str(kube.cluster.kubeconfig), "TRAINWORKS_DATA": str(tmp_path / "data")}
    command = [sys.executable, "-m", "trainworks", "bench", what, "--cluster", "run.yaml", "--nodes", "2"]
    command += ["--path", "/tmp", "--runs", "runs", "--json", "--html", "page.html"]
    env = os.environ | own
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert found["complete"], done.stderr
    names = [node["name"] for node in found["nodes"]]
    assert len(set(names)) == 2
    assert ["/" in name for name in names] == [accelerators is None] * 2
    subjects = {each["subject"] for each in found["measurements"]}
    assert f"{names[0]} <-> {names[1]}" in subjects
    kinds = {each["quantity"] for each in found["measurements"]}
    assert {"link_bandwidth", "link_latency"} <= kinds
    if what != "all":
        return
    for name in names:
        assert {f"{name} cpu", f"{name} /tmp"} <= subjects
    assert {"gemm", "memory_bandwidth", "storage_write", "busbw"} <= kinds
    assert "Collectives" in (tmp_path / "page.html").read_text()
