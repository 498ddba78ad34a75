"""What a cloud says of a node reaches the record, once, whatever its metadata service does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.metadata_service import MetadataService, metadata_service
from trainworks.host.notices import (
    Ask,
    AwsNotices,
    AzureNotices,
    CloudNotice,
    GcpNotices,
    Reply,
    address_of,
    cloud_here,
    follow_notices,
    sources_of,
    watch,
)
from trainworks.record.events.log import read_events
from trainworks.record.run_dir import RunDir


@pytest.fixture
def service() -> Iterator[MetadataService]:
    with metadata_service() as made:
        yield made


@pytest.fixture
def ask(service: MetadataService) -> Ask:
    return Ask(service.address)


def test_ec2_says_nothing_until_it_interrupts(service: MetadataService, ask: Ask) -> None:
    source = AwsNotices()
    assert list(source.look(ask, 0.0)) == []
    earliest = int(time.time()) + 120  # EC2 says it in whole seconds
    service.reclaim(120.0)
    latest = time.time() + 120
    (notice,) = source.look(ask, 0.0)
    assert (notice.what, notice.ends) == ("spot interruption (terminate)", True)
    assert notice.deadline_at is not None and earliest <= notice.deadline_at <= latest


def test_ec2s_advice_to_leave_does_not_end_the_node(service: MetadataService, ask: Ask) -> None:
    service.rebalance = '{"noticeTime": "2026-11-25T08:22:00Z"}'
    assert list(AwsNotices().look(ask, 0.0)) == [CloudNotice("aws", "rebalance recommendation", False, None)]


def test_a_token_that_has_expired_is_renewed(service: MetadataService, ask: Ask) -> None:
    source = AwsNotices()
    assert list(source.look(ask, 0.0)) == []
    service.token = "second"
    service.reclaim(120.0)
    assert len(list(source.look(ask, 0.0))) == 1


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("preempted", "FALSE", []),
        ("preempted", "TRUE", [CloudNotice("gcp", "preemption", True, 1030.0)]),
        ("maintenance-event", "NONE", []),
        (
            "maintenance-event",
            "TERMINATE_ON_HOST_MAINTENANCE",
            [CloudNotice("gcp", "host maintenance (terminate)", True, 1060.0)],
        ),
        (
            "maintenance-event",
            "MIGRATE_ON_HOST_MAINTENANCE",
            [CloudNotice("gcp", "host maintenance (live migration)", False, None)],
        ),
    ],
)
def test_gcps_values(service: MetadataService, ask: Ask, key, value, expected) -> None:
    service.change(key, value)
    assert list(GcpNotices(key).look(ask, 1000.0)) == expected


def test_gcp_answers_at_the_moment_of_the_change(service: MetadataService, ask: Ask) -> None:
    source = GcpNotices("preempted")
    assert list(source.look(ask, 0.0)) == []
    changer = threading.Thread(target=service.change_when_awaited, args=("preempted", "TRUE"))
    changer.start()
    assert len(list(source.look(ask, 0.0))) == 1
    changer.join()


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_azures_events_of_this_machine_end_it(service: MetadataService, ask: Ask, kind: str) -> None:
    service.schedule(kind, service.machine, 1_800_000_000.0)
    service.schedule(kind, "another_machine", 1_800_000_000.0)
    expected = CloudNotice("azure", f"scheduled event ({kind})", True, 1_800_000_000.0)
    assert list(AzureNotices().look(ask, 0.0)) == [expected]


def test_an_azure_event_that_has_begun_leaves_no_time(service: MetadataService, ask: Ask) -> None:
    service.schedule("Preempt", service.machine, None)
    (notice,) = AzureNotices().look(ask, 7.0)
    assert notice.deadline_at == 7.0


def test_a_freeze_is_survived(service: MetadataService, ask: Ask) -> None:
    service.schedule("Freeze", service.machine, 1_800_000_000.0)
    (notice,) = AzureNotices().look(ask, 0.0)
    assert (notice.ends, notice.deadline_at) == (False, None)


class _Ended(threading.Event):
    """Ends after some looks, without waiting."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._looks = looks

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        return len(self.waits) > self._looks


def test_a_notice_is_taken_once() -> None:
    service_says = Reply(200, "TRUE")
    taken: list[CloudNotice] = []
    watch(GcpNotices("preempted"), lambda *_, **__: service_says, taken.append, _Ended(5))
    assert len(taken) == 1


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
@pytest.mark.parametrize("state", ["broken", "gone"])
def test_a_service_that_does_not_answer_right_is_asked_again_later(service: MetadataService, cloud, state) -> None:
    service.broken = True
    ask = Ask(service.address if state == "broken" else "http://127.0.0.1:9")
    for source in sources_of(cloud):
        ended, taken = _Ended(2), []
        watch(source, ask, taken.append, ended)
        assert taken == []
        assert (cloud, ended.waits[-1]) in {("aws", 10.0), ("azure", 10.0), ("gcp", 10.0), ("gcp", 0.0)}


def test_the_record_has_the_notice_of_the_node(
    service: MetadataService, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", service.address.removeprefix("http://"))
    service.change("preempted", "TRUE")
    follow_notices(run_dir, 3, "gcp")
    deadline = time.monotonic() + 240
    while not (events := read_events(run_dir.events_file)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [(event["node"], event["cloud"], event["what"], event["ends"]) for event in events] == [
        (3, "gcp", "preemption", True)
    ]


@pytest.mark.parametrize(
    ("file", "content", "cloud"),
    [
        ("sys_vendor", "Amazon EC2\n", "aws"),
        ("product_name", "Google Compute Engine\n", "gcp"),
        ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77\n", "azure"),
        ("sys_vendor", "Supermicro\n", None),
    ],
)
def test_the_firmware_names_the_cloud(tmp_path: Path, file: str, content: str, cloud: str | None) -> None:
    (tmp_path / file).write_text(content)
    assert cloud_here(tmp_path) == cloud


def test_the_variables_of_the_clouds_own_tools_change_the_address() -> None:
    assert address_of("aws", {}) == "http://169.254.169.254"
    assert address_of("aws", {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://[fd00:ec2::254]/"}) == (
        "http://[fd00:ec2::254]"
    )
    assert address_of("gcp", {"GCE_METADATA_HOST": "127.0.0.1:1"}) == "http://127.0.0.1:1"
