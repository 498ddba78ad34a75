"""What `deploy/kubernetes` gives a cluster: valid and pinned."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from trainworks.backends.kubernetes.render import DEFAULT_USER

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
FILES = sorted(FOLDER.glob("*/*.yaml"))
OTHERS = ("kustomize.config.k8s.io/v1beta1", "kueue.x-k8s.io/v1beta2")


def documents(*files: Path) -> list[dict[str, Any]]:
    return [document for file in files for document in yaml.safe_load_all(file.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_kubernetes_takes_every_manifest(file: Path) -> None:
    found = documents(file)
    assert found
    for document in found:
        if document["apiVersion"] not in OTHERS:
            kubernetes_validate.validate(document, "1.34", strict=True)


def test_every_manifest_is_in_a_kustomization() -> None:
    for folder in {file.parent for file in FILES}:
        resources = documents(folder / "kustomization.yaml")[0]["resources"]
        files = {file.name for file in folder.glob("*.yaml")} - {"kustomization.yaml"}
        assert files == {name for name in resources if name.endswith(".yaml")}


def test_the_image_is_pinned() -> None:
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    assert all(re.search(r":\d+\.\d+\.\d+|@sha256:", line) for line in text.splitlines() if line.startswith("FROM "))
    installs = [line for line in text.splitlines() if "pip install" in line]
    assert installs and all("--constraint constraints.txt" in line for line in installs)


def test_the_image_runs_as_a_user_by_number_that_is_not_root() -> None:
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    users = re.findall(r"^USER (\d+):(\d+)$", text, re.MULTILINE)
    assert users == [(str(DEFAULT_USER), str(DEFAULT_USER))]
    assert text.rindex("USER ") > text.rindex("RUN ")


def test_the_image_gets_files_that_there_are() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (FOLDER / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert all((FOLDER.parents[1] / name).exists() for names in copied for name in names.split())
