"""Price tables of the user's own and of SkyPilot: what they mean, and what is wrong with them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.catalog.catalog import assumption
from trainworks.catalog.facts import Offer
from trainworks.catalog.prices import PriceTable, parse_prices
from trainworks.errors import UsageError

OWN = "accelerator,accelerators,on_demand_usd_h,spot_usd_h,name,provider,node,region"
SKYPILOT = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone"
)


def own(*rows: str) -> PriceTable:
    return parse_prices([f"{row}\n" for row in (OWN, *rows)], name="mine.csv")


def sky(*rows: str, cloud: str = "aws") -> PriceTable:
    return parse_prices([f"{row}\n" for row in (SKYPILOT, *rows)], name="vms.csv", cloud=cloud)


def only(table: PriceTable) -> Offer:
    assert len(table.offers) == 1
    return table.offers[0]


def test_a_row_is_an_offer_with_its_line_as_the_source() -> None:
    found = only(own("H100,8,20,,mine,me,rack,here"))
    assert (found.name, found.accelerator, found.accelerators) == ("mine", "H100-SXM-80GB", 8)
    assert (found.usd_per_hour, found.node, found.region, found.source) == (20.0, "rack", "here", "mine.csv:2")


def test_columns_may_come_in_any_order() -> None:
    table = parse_prices(["on_demand_usd_h,accelerators,accelerator\n", "2.5,1,A100\n"], name="mine.csv")
    assert (only(table).accelerator, only(table).usd_per_hour) == ("A100-SXM-80GB", 2.5)


def test_rows_of_one_name_are_the_zones_of_one_offer() -> None:
    found = only(own("H100,8,20,5,mine", "H100,8,19,9,mine", "H100,8,,6,mine"))
    assert (found.usd_per_hour, found.spot_usd_per_hour, found.zones) == (19.0, (5.0, 6.0, 9.0), 3)


@given(st.lists(st.floats(0.5, 30), min_size=2, max_size=9))
def test_spot_prices_come_as_cheapest_median_and_dearest(prices: list[float]) -> None:
    found = only(own(*(f"H100,8,31,{price!r},mine" for price in prices)))
    low, middle, high = found.spot_usd_per_hour
    assert (low, high) == (min(prices), max(prices))
    assert sum(price <= middle for price in prices) * 2 >= len(prices)


def test_an_unknown_accelerator_is_counted_and_left_out() -> None:
    table = own("FOO-9000,8,20", "FOO-9000,4,10", "H100,8,20")
    assert only(table).accelerator == "H100-SXM-80GB"
    assert "2 rows ignored" in table.notes[0]
    assert "`FOO-9000`" in table.notes[0]


@pytest.mark.parametrize("price", ["abc", "=1+1", "-3", "0", "nan", "inf", "1,5\x1b[31m"])
def test_a_price_that_is_none_is_refused_with_its_line(price: str) -> None:
    with pytest.raises(UsageError, match="is not a price") as caught:
        own("H100,8,20", f'H100,8,"{price}"')
    assert caught.value.place == "mine.csv:3"
    assert "\x1b" not in caught.value.render()


@pytest.mark.parametrize("count", ["0", "-1", "1.5", "eight", "", "9999999"])
def test_a_count_that_is_none_is_refused_with_its_line(count: str) -> None:
    with pytest.raises(UsageError, match="must be an integer of at least 1") as caught:
        own(f"H100,{count},20")
    assert caught.value.place == "mine.csv:2"


@pytest.mark.parametrize("header", ["", "a,b,c", "accelerator,accelerators"])
def test_a_table_without_its_columns_is_refused(header: str) -> None:
    with pytest.raises(UsageError, match="missing"):
        parse_prices([f"{header}\n"], name="mine.csv")


def test_an_offer_without_any_price_is_none() -> None:
    assert own("H100,8,,").offers == ()


def test_what_a_stranger_wrote_is_one_printable_line() -> None:
    assert only(own('H100,8,20,,"a\x1b[31m\nb"')).name == "a[31mb"


def test_a_row_of_skypilot_is_an_offer_of_its_cloud() -> None:
    found = only(sky("p5.48xlarge,H100,8.0,192,2048,\"{'Gpus': [1, 2]}\",55.04,10.5,us-east-1,use1-az1"))
    assert (found.name, found.provider, found.node) == ("AWS p5.48xlarge", "AWS", "p5.48xlarge")
    assert (found.usd_per_hour, found.spot_usd_per_hour) == (55.04, (10.5,))


def test_zones_of_skypilot_are_a_distribution() -> None:
    rows = [f"p5.48xlarge,H100,8.0,192,2048,,55.04,{spot},us-east-1,az{spot}" for spot in (12, 30, 55.04)]
    assert only(sky(*rows)).spot_usd_per_hour == (12, 30, 55.04)


def test_a_spot_price_that_is_the_on_demand_price_is_no_discount() -> None:
    assert only(sky("p5.4xlarge,H100,1.0,16,256,,6.88,6.88,us-east-1,az1")).spot_usd_per_hour == ()


@pytest.mark.parametrize("price", ["700.0", "0.0", ""])
def test_what_skypilot_does_not_offer_has_no_price(price: str) -> None:
    assert sky(f"p5.48xlarge,H100,8.0,192,2048,,{price},{price},us-east-1,az1").offers == ()


def test_instances_without_an_accelerator_are_no_offers() -> None:
    assert sky("c3.large,,,2,3.75,,0.128,0.04,us-east-1,az1").offers == ()


@pytest.mark.parametrize(
    ("instance", "name", "part"),
    [
        ("p4d.24xlarge", "A100", "A100-SXM-40GB"),
        ("gpu_8x_a100", "A100", "A100-SXM-40GB"),
        ("gpu_8x_a100_80gb_sxm4", "A100-80GB", "A100-SXM-80GB"),
        ("Standard_NC96ads_A100_v4", "A100-80GB", "A100-PCIE-80GB"),
        ("gpu_1x_h100_pcie", "H100", "H100-PCIE-80GB"),
        ("gpu_8x_v100", "V100", "V100-SXM-16GB"),
        ("g6.xlarge", "L4", "L4-24GB"),
        ("trn1.32xlarge", "Trainium", "Trainium1-32GB"),
    ],
)
def test_names_of_skypilot_mean_the_part_of_the_instance(instance: str, name: str, part: str) -> None:
    assert only(sky(f"{instance},{name},8.0,9,9,,5,2,here,here-a", cloud="lambda")).accelerator == part


def test_an_accelerator_of_google_is_paid_with_its_instance_of_the_same_zone() -> None:
    table = sky(
        ",H100,8.0,,,,78.4,20.0,us-central1,us-central1-a",
        "a3-highgpu-8g,,,208,1872,,9.46,2.89,us-central1,us-central1-a",
        "a3-megagpu-8g,,,208,1872,,9.50,2.90,us-central1,us-central1-a",
        "a3-highgpu-8g,,,208,1872,,1.00,1.00,us-west1,us-west1-a",
        cloud="gcp",
    )
    assert only(table).name == "GCP a3-highgpu-8g"
    assert only(table).usd_per_hour == pytest.approx(87.86)
    assert only(table).spot_usd_per_hour == pytest.approx((22.89,))


def test_an_accelerator_of_google_without_its_instance_is_counted_and_left_out() -> None:
    table = sky(",H100,8.0,,,,78.4,20.0,us-central1,us-central1-a", cloud="gcp")
    assert table.offers == ()
    assert "1 rows of accelerators ignored" in table.notes[0]


def test_shared_accelerators_and_slices_are_counted_and_left_out() -> None:
    table = sky("g6f.large,L4,0.125,2,8,,0.2,0.1,a,b", ",tpu-v6e-8,1,,,,21.6,4.3,a,b", cloud="gcp")
    assert table.offers == ()
    assert "2 rows ignored" in table.notes[0]


def test_a_table_may_have_its_prices_in_yuan() -> None:
    rows = ["accelerator,accelerators,on_demand_cny_h,spot_cny_h,name\n", "H800,8,142,71,ours\n"]
    (offer,) = parse_prices(rows, name="mine.csv").offers
    rate = assumption("CNY per USD").typical
    assert offer.usd_per_hour == pytest.approx(142 / rate)
    assert offer.spot_usd_per_hour == pytest.approx((71 / rate,))


def test_a_price_in_both_currencies_is_refused_with_its_line() -> None:
    rows = ["accelerator,accelerators,on_demand_usd_h,on_demand_cny_h\n", "H800,8,20,142\n"]
    with pytest.raises(UsageError, match="`on_demand_usd_h` and `on_demand_cny_h` are one price") as found:
        parse_prices(rows, name="mine.csv")
    assert (str(found.value.place), found.value.hint) == ("mine.csv:2", "fill in one of the two")
