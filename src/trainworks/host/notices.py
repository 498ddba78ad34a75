"""Notices of clouds that they take this node back: asked from the metadata service, by a thread of the node agent.

| cloud | asked                                                                   | time left                        |
|-------|-------------------------------------------------------------------------|----------------------------------|
| AWS   | `spot/instance-action`, `events/recommendations/rebalance`, every 5 s   | as it says: 120 s; advice only   |
| GCP   | `instance/preempted`, `instance/maintenance-event`, held until a change | 30 s; 60 s for maintenance       |
| Azure | Scheduled Events that name this machine, every second                   | until `NotBefore`: 30 s or more  |

Sources: AWS EC2 User Guide, "Spot Instance interruption notices" and "Use IMDSv2"; Google Cloud, "Preemptible VM
instances" and "Query metadata about host maintenance"; Azure, "Scheduled Events for Linux VMs" (read in 2026-11).
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal

from trainworks.files import readable_text
from trainworks.record.events.job import NoticeEvent
from trainworks.record.run_dir import RunDir

Cloud = Literal["aws", "gcp", "azure"]
_DMI = Path("/sys/class/dmi/id")
_AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"
_TOKEN_LIFE_S = 21_600
_ANSWER_WITHIN_S = 5.0
_HELD_S = 60
"""Time after which GCP answers a request that waits for a change."""
_AFTER_ERROR_S = 10.0


@dataclass(frozen=True, slots=True)
class CloudNotice:
    """What a cloud says about this node."""

    cloud: Cloud
    what: str
    """In words, such as `spot interruption (terminate)`."""
    ends: bool
    """Whether the node ends; False for advice, and for a pause that it survives."""
    deadline_at: float | None
    """End of the node in seconds since the epoch; None without one."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of a metadata service."""

    status: int
    text: str
    etag: str = ""


def cloud_here(dmi: Path = _DMI) -> Cloud | None:
    """The cloud whose virtual machine this is, by the names in its firmware; None elsewhere."""
    if "Amazon EC2" in (readable_text(dmi / "sys_vendor"), readable_text(dmi / "bios_vendor")):
        return "aws"
    if readable_text(dmi / "product_name") == "Google Compute Engine":
        return "gcp"
    return "azure" if readable_text(dmi / "chassis_asset_tag") == _AZURE_ASSET_TAG else None


def address_of(cloud: Cloud, environment: Mapping[str, str]) -> str:
    """Address of a metadata service; the variables of the clouds' own tools change it."""
    if cloud == "aws":
        return environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")
    if cloud == "gcp":
        return "http://" + environment.get("GCE_METADATA_HOST", "metadata.google.internal")
    return environment.get("AZURE_POD_IDENTITY_AUTHORITY_HOST", "http://169.254.169.254").rstrip("/")


class AwsNotices:
    """EC2's interruption of spot instances, and its advice to leave, by IMDSv2."""

    pause_s = 5.0

    def __init__(self) -> None:
        self._token = ""

    def look(self, ask: Ask, now: float) -> Iterator[CloudNotice]:
        """Both; an answer of 404 means that there is none."""
        action = self._get(ask, "/latest/meta-data/spot/instance-action")
        if action:
            fields = json.loads(action)
            at = datetime.strptime(fields["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
            yield CloudNotice("aws", f"spot interruption ({fields['action']})", True, at)
        if self._get(ask, "/latest/meta-data/events/recommendations/rebalance"):
            yield CloudNotice("aws", "rebalance recommendation", False, None)

    def _get(self, ask: Ask, path: str) -> str:
        for _ in range(2):
            if not self._token:
                life = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_LIFE_S)}
                granted = ask("/latest/api/token", life, method="PUT")
                if granted.status != http.client.OK:
                    return ""
                self._token = granted.text
            reply = ask(path, {"X-aws-ec2-metadata-token": self._token})
            if reply.status != http.client.UNAUTHORIZED:
                return reply.text if reply.status == http.client.OK else ""
            self._token = ""
        return ""


class GcpNotices:
    """One value of Compute Engine's metadata, answered when it changes."""

    pause_s = 0.0

    def __init__(self, key: Literal["preempted", "maintenance-event"]) -> None:
        self._key = key
        self._etag = ""

    def look(self, ask: Ask, now: float) -> Iterator[CloudNotice]:
        """Preempted, or maintenance that ends the machine or moves it."""
        query = f"wait_for_change=true&timeout_sec={_HELD_S}&last_etag={self._etag or 0}"
        path = f"/computeMetadata/v1/instance/{self._key}?{query}"
        reply = ask(path, {"Metadata-Flavor": "Google"}, within_s=_HELD_S + _ANSWER_WITHIN_S)
        if reply.status != http.client.OK:
            raise ConnectionError(f"{self._key}: status {reply.status}")
        self._etag = reply.etag
        if self._key == "preempted" and reply.text == "TRUE":
            yield CloudNotice("gcp", "preemption", True, now + 30.0)
        elif reply.text == "TERMINATE_ON_HOST_MAINTENANCE":
            yield CloudNotice("gcp", "host maintenance (terminate)", True, now + 60.0)
        elif reply.text == "MIGRATE_ON_HOST_MAINTENANCE":
            yield CloudNotice("gcp", "host maintenance (live migration)", False, None)


class AzureNotices:
    """Scheduled Events of this machine. Events of the other machines of its scale set are theirs."""

    pause_s = 1.0
    _ENDS = ("Preempt", "Terminate", "Reboot", "Redeploy")

    def __init__(self) -> None:
        self._name = ""

    def look(self, ask: Ask, now: float) -> Iterator[CloudNotice]:
        """Every event that names this machine."""
        headers = {"Metadata": "true"}
        if not self._name:
            named = ask("/metadata/instance/compute/name?api-version=2021-02-01&format=text", headers)
            self._name = named.text if named.status == http.client.OK else ""
        reply = ask("/metadata/scheduledevents?api-version=2020-07-01", headers)
        if reply.status != http.client.OK:
            raise ConnectionError(f"scheduled events: status {reply.status}")
        for event in json.loads(reply.text)["Events"]:
            if self._name and self._name in event.get("Resources", ()) and event["EventStatus"] != "Completed":
                kind, not_before = event["EventType"], event.get("NotBefore")
                ends = kind in self._ENDS
                deadline_at = parsedate_to_datetime(not_before).timestamp() if not_before else now
                yield CloudNotice("azure", f"scheduled event ({kind})", ends, deadline_at if ends else None)


NoticeSource = AwsNotices | GcpNotices | AzureNotices
"""One question to a metadata service, asked again after `pause_s`."""


def sources_of(cloud: Cloud) -> list[NoticeSource]:
    """The questions to ask a cloud; each is asked by a thread of its own."""
    if cloud == "aws":
        return [AwsNotices()]
    if cloud == "gcp":
        return [GcpNotices("preempted"), GcpNotices("maintenance-event")]
    return [AzureNotices()]


class Ask:
    """Sends requests to the metadata service at an address, past any proxy: it answers its own machine alone."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def __call__(
        self, path: str, headers: Mapping[str, str], *, method: str = "GET", within_s: float = _ANSWER_WITHIN_S
    ) -> Reply:
        """The answer, an error status included; raises OSError if the service does not answer."""
        request = urllib.request.Request(self._address + path, method=method, headers=dict(headers))  # noqa: S310
        try:
            with self._opener.open(request, timeout=within_s) as reply:
                return Reply(reply.status, reply.read().decode().strip(), reply.headers.get("ETag", ""))
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, "")
        except (urllib.error.URLError, http.client.HTTPException, UnicodeDecodeError) as error:
            raise ConnectionError(str(error)) from None


def follow_notices(run_dir: RunDir, node: int, wanted: Cloud | Literal["auto", "off"]) -> None:
    """Write what the cloud says of this node into the record, once each, by threads that end with this process.

    `auto` is the cloud that the firmware names.
    """
    cloud = cloud_here() if wanted == "auto" else wanted
    if cloud is None or cloud == "off":
        return
    ask = Ask(address_of(cloud, os.environ))

    def take(notice: CloudNotice) -> None:
        run_dir.note(
            NoticeEvent(
                kind="notice",
                node=node,
                cloud=notice.cloud,
                what=notice.what,
                ends=notice.ends,
                deadline_at=notice.deadline_at,
            ),
        )

    never = threading.Event()
    for source in sources_of(cloud):
        threading.Thread(target=watch, args=(source, ask, take, never), name="notices", daemon=True).start()


def watch(source: NoticeSource, ask: Ask, take: Callable[[CloudNotice], None], ended: threading.Event) -> None:
    """Look until `ended`, and pass on each notice once. A service that does not answer is asked again later."""
    seen: set[str] = set()
    pause_s = 0.0
    while not ended.wait(pause_s):
        pause_s = source.pause_s
        try:
            for notice in source.look(ask, time.time()):
                if notice.what not in seen:
                    take(notice)
                    seen.add(notice.what)
        except (OSError, ValueError, KeyError, TypeError):  # no answer, or not what the cloud documents
            pause_s = _AFTER_ERROR_S
