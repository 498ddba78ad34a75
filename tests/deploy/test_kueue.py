"""Kueue's admission check for nodes on request, held against the fields of its API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from trainworks.config.autoscale import Autoscale
from trainworks.deploy.kueue import kueue_files, kueue_objects
from trainworks.errors import UsageError

FIELDS = Path(__file__).parents[1] / "data" / "kueue_v1beta2.json"
"""By kind: the fields of Kueue, 0.15 to 0.19, of what is written here."""


def autoscale(**words: Any) -> Autoscale:
    return Autoscale.model_validate(words)


def check(document: dict[str, Any]) -> None:
    jsonschema.validate(document, json.loads(FIELDS.read_text())[document["kind"]])


def test_the_objects(golden) -> None:
    wanted = {"provisioning_class": "queued-provisioning.gke.io", "parameters": {"flex": "yes"}, "retry_after": "5m"}
    golden("kueue.yaml", kueue_files(autoscale(kubernetes=wanted))["kueue.yaml"])


@pytest.mark.parametrize("words", [{}, {"kubernetes": {"retries": 0, "retry_after": "1h", "parameters": {"a": "b"}}}])
def test_they_are_objects_of_its_api(words: dict[str, Any]) -> None:
    for document in kueue_objects(autoscale(**words)):
        check(document)


def test_the_fields_refuse_what_an_api_server_refuses() -> None:
    config, _ = kueue_objects(autoscale())
    with pytest.raises(jsonschema.ValidationError):
        check(config | {"spec": config["spec"] | {"provisioningClass": "x"}})


def test_the_check_uses_the_configuration() -> None:
    config, used = kueue_objects(autoscale())
    assert used["spec"]["parameters"]["name"] == config["metadata"]["name"]


def test_the_file_is_yaml_and_says_how_a_queue_uses_the_check() -> None:
    text = kueue_files(autoscale())["kueue.yaml"]
    patch = json.loads(text.splitlines()[0].partition("--patch '")[2].rstrip("'"))
    _, used = yaml.safe_load_all(text)
    assert patch["spec"]["admissionChecksStrategy"]["admissionChecks"] == [{"name": used["metadata"]["name"]}]


@pytest.mark.parametrize(
    "words", [{"down_after": "10m"}, {"keep": 2}, {"start_timeout": "10m"}, {"stop_timeout": "10m"}], ids=str
)
def test_what_no_object_can_say_is_refused(words: dict[str, Any]) -> None:
    (word,) = words
    with pytest.raises(UsageError, match=f"`cluster.autoscale.{word}`") as refused:
        kueue_objects(autoscale(**words))
    assert refused.value.hint == f"remove `cluster.autoscale.{word}`"
