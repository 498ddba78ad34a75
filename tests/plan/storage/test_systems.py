"""Verdicts on kinds of storage: what never turns round, and the reasons that people should know."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.storage.demands import images, needs_of, text
from trainworks.plan.storage.demand import Demand
from trainworks.plan.storage.systems import DESIGNS, StorageVerdict, judge, recommended, verdict_of
from trainworks.plan.trace import leaves

DESIGN = st.sampled_from(DESIGNS)
DEMAND = st.builds(
    images,
    samples_per_s=st.floats(1.0, 1e7),
    samples_per_file=st.sampled_from([1, 1000]),
    epochs=st.sampled_from([1, 90]),
    num_parameters=st.floats(1e6, 1e12),
    num_nodes=st.integers(1, 500),
)


def judged(demand: Demand) -> dict[str, StorageVerdict]:
    """Every verdict by the design's name."""
    return {verdict.name: verdict for verdict in judge(demand, needs_of(demand))}


@given(DESIGN, st.floats(1.0, 1e7), st.floats(1.0, 100.0))
def test_a_faster_run_never_needs_fewer_servers(design, rate: float, factor: float) -> None:
    counts = []
    for demand in (images(samples_per_s=rate), images(samples_per_s=rate * factor)):
        needs = needs_of(demand)
        counts.append([count.value for count in verdict_of(design, demand, needs).servers])
    assert all(after >= before for before, after in zip(*counts, strict=True))


@given(DEMAND)
def test_drives_of_the_nodes_alone_are_never_enough(demand: Demand) -> None:
    assert not judged(demand)["local NVMe"].enough


@given(DEMAND)
def test_what_is_recommended_is_the_first_that_is_enough(demand: Demand) -> None:
    verdicts = judge(demand, needs_of(demand))
    enough = [verdict for verdict in verdicts if verdict.enough]
    assert recommended(verdicts) == (enough[0] if enough else None)


def test_nothing_is_recommended_where_nothing_is_enough() -> None:
    demand = text(num_parameters=1e16, num_nodes=1)
    assert recommended(judge(demand, needs_of(demand))) is None


def test_an_object_store_is_too_slow_for_a_file_per_image() -> None:
    verdict = judged(images())["object store"]
    assert not verdict.enough
    assert "waiting 100 ms for each, 1,000 files/s" in verdict.reason


def test_an_object_store_serves_packed_shards() -> None:
    assert judged(images(samples_per_file=2327))["object store"].enough


def test_one_file_server_does_not_scale() -> None:
    verdict = judged(text(num_parameters=700e9, stall_share=0.05))["NFS"]
    assert "1 file server gives 4.00 GB/s" in verdict.reason


def test_small_files_cost_metadata_servers_of_a_parallel_file_system() -> None:
    names = {count.name: count.value for count in judged(images())["Lustre"].servers}
    assert names == {"Lustre: object storage servers": 2, "Lustre: metadata servers": 3}


def test_local_drives_take_the_checkpoint_that_one_file_server_cannot_take_at_once() -> None:
    verdicts = judged(text(stall_share=0.05))
    assert (verdicts["NFS"].enough, verdicts["NFS + local NVMe"].enough) == (False, True)


def test_a_cache_spares_nothing_where_the_data_are_read_once() -> None:
    assert judged(text())["object store + Alluxio"].reason.endswith("so that the cache spares nothing")


def test_a_cache_relieves_the_home_where_the_data_are_read_again() -> None:
    verdicts = judged(images())
    assert (verdicts["object store"].enough, verdicts["object store + Alluxio"].enough) == (False, True)


def test_no_node_reads_faster_than_its_client() -> None:
    verdict = judged(images(num_nodes=1, samples_per_file=2327))["CephFS"]
    assert verdict.reason == "dataset read 9.68 GB/s for each node, and a node gets 5.00 GB/s"


@pytest.mark.parametrize("design", DESIGNS, ids=lambda design: design.name)
def test_every_number_of_servers_says_where_it_comes_from(design) -> None:
    demand = images()
    for count in verdict_of(design, demand, needs_of(demand)).servers:
        assert all(leaf.source for leaf in leaves(count))
