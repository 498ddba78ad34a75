"""Rows beside those of Trainworks: the user's own and those of an update, and how old rows may be."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from trainworks.api.planning.catalog_update import install_update, read_update, undo_update
from trainworks.catalog.age import MOST_DAYS, old_rows, own_rows_note, place_of, price_note
from trainworks.catalog.catalog import find_row, load_catalog, node
from trainworks.catalog.cluster import parse_cluster
from trainworks.catalog.prices import known_accelerator
from trainworks.catalog.row_files import use_files
from trainworks.catalog.rows import read_rows
from trainworks.errors import TrainworksError, UsageError

OFFER = "{source: a quote, date: 2026-11, provider: ACME, accelerator: H100-SXM-80GB, accelerators: 8"
BOX = "{source: superpod, accelerator: H100-SXM-80GB, accelerators: 8, scale_up_domain: 8, nics: 8, nic: our 800}"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's file, in a folder of settings of its own; what is written into it counts after `use_files(None)`."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("TRAINWORKS_CATALOG", raising=False)
    path = tmp_path / "trainworks" / "catalog.yaml"
    path.parent.mkdir()
    use_files(None)
    yield path
    monkeypatch.undo()
    use_files(None)


def write(path: Path, text: str) -> None:
    path.write_text(text)
    use_files(None)


def refusal(path: Path, text: str) -> TrainworksError:
    """The error of a file of rows, by `catalog update`."""
    path.write_text(text)
    with pytest.raises(TrainworksError) as caught:
        read_update(str(path))
    return caught.value


def test_a_row_of_the_user_takes_the_place_of_ours_with_the_same_name(own: Path) -> None:
    write(own, f"offers:\n  AWS p5.48xlarge: {OFFER}, on_demand_usd_h: 40}}\n")
    offer = load_catalog().offers["AWS p5.48xlarge"]
    assert (offer.usd_per_hour, offer.spot_usd_per_hour, offer.source) == (40, (), f"{own}:2")
    assert own_rows_note([("offers", "AWS p5.48xlarge"), ("nodes", "DGX H100")]) == (
        f"`AWS p5.48xlarge` is a row of {own}:2"
    )


def test_rows_of_one_file_name_each_other(own: Path) -> None:
    link = "{source: a quote, date: 2026-11, network: RoCE, bandwidth: 800 Gb/s}"
    write(own, f"links:\n  our 800: {link}\nnodes:\n  our box: {BOX}\n")
    assert node("our box").nic_bytes_per_s == 100e9
    assert parse_cluster("4 nodes of our box").num_accelerators == 32


def test_an_alias_of_the_user_wins_over_ours(own: Path) -> None:
    assert known_accelerator("H100") == "H100-SXM-80GB"
    box = BOX.replace("our 800", "InfiniBand NDR").replace("{", "{aliases: [DGX A100], ")
    write(own, f"nodes:\n  our box: {box}\n")
    assert node("DGX A100").name == "our box"


def test_an_instance_of_the_user_is_one_that_is_rented(own: Path) -> None:
    write(own, f"instances:\n  big.8x: {BOX.replace('our 800', 'InfiniBand NDR')}\n")
    assert node("big.8x").kind == "instance"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("prices:\n  A: {}\n", 1, "no kind `prices`"),
        ("offers:\n  A: 7\n", 2, "`A` is not a row"),
        (f"offers:\n  A: {OFFER}, on_demand_usd_h: 2x}}\n", 2, "is not a number: `2x`"),
        (f"offers:\n  A: {OFFER}}}\n  B: {{provider: x}}\n", 3, "has no `source`"),
        ("offers:\n  A:\n    source: a quote\n    provider: x\n", 2, "the row has no date"),
        ("offers:\n  A:\n    source: recalled\n    provder: x\n", 4, "offers have no `provder`"),
        ("offers:\n  A: {source: recalled, provider: x}\n", 2, "`accelerator`: field required"),
        ("links:\n  A: {source: recalled, network: RoCE, bandwidth: 400}\n", 2, "`400` has no unit"),
        ("nodes:\n  A: {source: recalled, nics: 1, nic: warp}\n", 2, "no column, source or link 'warp'"),
        ("sources:\n  q: {title: a quote}\n", 2, "source `q` needs `title` and `date`"),
        ("offers: [\n", 2, "invalid YAML"),
    ],
)
def test_a_bad_row_is_named_with_its_line(own: Path, text: str, line: int, message: str) -> None:
    error = refusal(own.parent / "rows.yaml", text)
    assert message in error.render()
    assert f"rows.yaml:{line}" in error.render()
    own.write_text(text)
    use_files(None)
    with pytest.raises(TrainworksError):
        read_rows("offers"), read_rows("links"), read_rows("nodes")


def test_an_update_shows_what_changes_and_refuses_what_contradicts_itself(own: Path) -> None:
    file = own.parent / "rows.yaml"
    file.write_text(
        f"offers:\n  new: {OFFER}, on_demand_usd_h: 20}}\n  AWS p5.48xlarge: {OFFER}, on_demand_usd_h: 44}}\n"
    )
    changes = {(change.row, change.figure): (change.old, change.new) for change in read_update(str(file)).changes}
    assert changes["AWS p5.48xlarge", "on demand"] == ("55.04 USD/h", "44 USD/h")
    assert changes["AWS p5.48xlarge", "zones"] == ("14", "")
    assert changes["new", ""][0] == ""
    assert "new" not in load_catalog().offers
    error = refusal(file, f"offers:\n  new: {OFFER}, on_demand_usd_h: 700}}\n")
    assert "breaks the rule offer-price" in error.message and error.place == f"{file}:2"


def test_an_update_is_taken_and_can_be_undone_step_by_step(own: Path) -> None:
    file = own.parent / "rows.yaml"
    for price in (20, 21):
        file.write_text(f"offers:\n  new: {OFFER}, on_demand_usd_h: {price}}}\n")
        written = install_update(read_update(str(file)))
        assert load_catalog().offers["new"].usd_per_hour == price
        assert f"from: {file}" in written.read_text()
    write(own, f"offers:\n  new: {OFFER}, on_demand_usd_h: 5}}\n")
    assert load_catalog().offers["new"].usd_per_hour == 5
    own.unlink()
    undo_update()
    assert load_catalog().offers["new"].usd_per_hour == 20
    undo_update()
    assert "new" not in load_catalog().offers
    with pytest.raises(UsageError, match="no update"):
        undo_update()


@pytest.mark.parametrize("origin", ["http://example.org/a.yaml", "file:///etc/passwd", "ftp://example.org/a"])
def test_an_update_comes_by_https_or_from_a_file(own: Path, origin: str) -> None:
    with pytest.raises(UsageError, match="has no `https://`"):
        read_update(origin)


def test_rows_age_by_kind(own: Path) -> None:
    node_ = BOX.replace("source: superpod", "source: a quote, date: 2020-01").replace("our 800", "RoCE 100")
    prices = OFFER.replace("2026-11", "2026-01")
    write(own, f"offers:\n  A: {prices}, on_demand_usd_h: 20}}\nnodes:\n  N: {node_}\ninstances:\n  I: {node_}\n")
    found = {row.row: row for row in old_rows(date(2026, 1, 31)) if row.place.startswith(str(own))}
    assert set(found) == {"I"}
    assert (found["I"].days, found["I"].most_days) == (2192, MOST_DAYS["instances"])
    assert "A" not in {row.row for row in old_rows(date(2026, 7, 30))}
    assert "A" in {row.row for row in old_rows(date(2026, 7, 31))}


def test_a_release_whose_support_has_ended_does_not_age() -> None:
    far = {row.row for row in old_rows(date(2040, 1, 1))}
    assert "R580" in far and "Ubuntu 16.04" not in far


def test_every_row_has_its_line_in_the_data() -> None:
    for kind, name in (("offers", "AWS p5.48xlarge"), ("nodes", "DGX H100"), ("nodes", "p5.48xlarge")):
        file, _, line = place_of(find_row(name, kind)).partition(":")  # type: ignore[arg-type]
        text = (Path(find_row.__code__.co_filename).parent / "data" / file).read_text().splitlines()
        assert text[int(line) - 1].startswith(f"{name}:")


def test_an_answer_from_prices_of_the_catalogue_says_from_when_they_are() -> None:
    offers = load_catalog().offers
    assert price_note([offers["AWS p3.2xlarge"]]) == (
        "prices of the catalogue are of 2025-12; `trainworks catalog lint` names those that are too old"
    )
    assert "2025-03 to 2025-12" in (price_note([offers["AWS p3.2xlarge"], offers["AWS g5.xlarge"]]) or "")
    assert price_note([offers["AWS p3.2xlarge"].model_copy(update={"source": "mine.csv:2"})]) is None


def test_a_price_in_yuan_is_shown_in_yuan_and_counts_in_dollars_by_the_rate_of_the_data() -> None:
    assert find_row("Huawei p2v.16xlarge.8", "offers").figure("on demand").written == "133.584 CNY/h"
    rate = load_catalog().assumptions["CNY per USD"].typical
    assert load_catalog().offers["Huawei p2v.16xlarge.8"].usd_per_hour == pytest.approx(133.58356 / rate, abs=1e-4)
