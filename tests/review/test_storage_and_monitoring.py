"""Exports, mounts and the configuration of Prometheus: what the rules find, and what they leave alone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from trainworks.review.check import check_text
from trainworks.review.files import ReviewedFile
from trainworks.review.registry import RULES

EVERY = tuple(RULES.values())
ALERT = "groups:\n- name: g\n  rules:\n  - alert: A\n    expr: up == 0\n"


def found(name: str, text: str) -> list[tuple[str, int, int]]:
    return [(each.rule, each.line, each.column) for each in check_text(text, EVERY, name=name)]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("/a *(ro,no_root_squash)\n/b *.gpu(rw,no_root_squash)\n/c -rw,sync node1 node2\n", []),
        ("# /a *(rw,async)\n\n/a @nodes(rw,sync)  # async is faster\n", []),
        ('"/a b" 10.0.0.0/8(rw,sync) \\\n  *(rw,no_root_squash)\n', [("TW512", 2, 8)]),
        ("/a 10.0.0.0/8(async,rw)\n", [("TW513", 1, 15)]),
        ("/a n1(ro) (rw)\n", []),
    ],
)
def test_exports(text: str, places: list[tuple[str, int, int]]) -> None:
    assert found("etc/exports", text) == places


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("UUID=1 / ext4 errors=remount-ro 0 1\n", []),
        ("s:/d /d nfs ro,soft,rsize=1048576 0 0\n", []),
        ("s:/d /d nfs4 hard,softreval 0 0\n", []),
        ("s:/d /d nfs4 rw,softerr 0 0\n", [("TW514", 1, 17)]),
        ("s:/d /d nfs hard,wsize=32768 0 0\n", [("TW515", 1, 18)]),
        ("none /dev/shm tmpfs defaults,size=16g 0 0\nnone /tmp tmpfs size=64m 0 0\n", []),
        ("none /dev/shm tmpfs defaults,size=524288k 0 0\n", [("TW516", 1, 30)]),
        ("s:/d /d nfs\n", []),
    ],
)
def test_mounts(text: str, places: list[tuple[str, int, int]]) -> None:
    assert found("fstab", text) == places


@pytest.mark.skipif(shutil.which("findmnt") is None, reason="needs findmnt")
def test_mounts_are_those_that_linux_reads(tmp_path: Path) -> None:
    text = (
        "# local\nUUID=1  /  ext4 defaults 0 1\ns:/a\\040b /a\\040b nfs hard 0 0 # shared\n\ntmpfs /t tmpfs size=1g\n"
    )
    (tmp_path / "fstab").write_text(text)
    command = [
        "findmnt",
        "--fstab",
        "--tab-file",
        tmp_path / "fstab",
        "--noheadings",
        "--raw",
        "--output",
        "FSTYPE,OPTIONS",
    ]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    mounts = ReviewedFile("fstab", text).mounts
    assert [f"{fields[2].text} {fields[3].text}" for fields in mounts] == said.splitlines()


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        (ALERT + "    for: 1h30m\n", []),
        (ALERT + "    for: 30m1h\n", ["TW721"]),
        (ALERT + "    for: 90\n", ["TW721"]),
        (ALERT + "    for: 500ms\n    keep_firing_for: 0\n", []),
        (ALERT + "    for: ${TIME}\n", []),
        (ALERT + '    annotations: {a: "{{ $labels.gpu }} {{ $value | humanize }} costs $5"}\n', []),
        (ALERT + '    annotations: {a: "{{ range $i, $e := query `up` }}{{ $e.Value }}{{ end }}"}\n', []),
        (ALERT + '    annotations: {a: "{{ $values }}"}\n', ["TW723"]),
        (ALERT + "  - expr: up\n", ["TW724"]),
        (ALERT + "  - {alert: B, record: c, expr: up}\n", ["TW724"]),
        ("groups:\n- name: users\n  rules:\n  - {allow: read}\n", []),
        ("spec:\n  groups:\n  - name: g\n    rules:\n    - {record: a, expr: up, for: 5m}\n", ["TW724"]),
        ("global: {scrape_interval: 15s}\nscrape_configs:\n- {job_name: a, scrape_timeout: 20s}\n", []),
        ("global: {scrape_interval: 15s, scrape_timeout: 1m}\nscrape_configs: []\n", ["TW722"]),
        ("jobs:\n  a: {interval: 5 minutes}\n", []),
    ],
)
def test_prometheus(text: str, rules: list[str]) -> None:
    assert [rule for rule, _, _ in found("rules.yml", text)] == rules
