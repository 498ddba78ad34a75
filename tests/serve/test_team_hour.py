"""An hour of a team at the workbench, in a real browser: every page by mouse and keyboard, each checked by axe-core."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve import team
from tests.serve.browser import CHROMIUM, SIZES, Desk, sit_down
from tests.serve.conftest import ADMIN, serving
from trainworks.serve.site import Site

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("axe_playwright_python", reason="axe-core is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
RUN_FILE = "name: talk\nrun: until [ -e %s ]; do sleep 0.1; done; echo bye\nresources: {cpus: 0.1}\n"


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[team.Team, int]]:
    """What a team has in its queue, and the port of the server that shows it."""
    folder = tmp_path_factory.mktemp("team")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRAINWORKS_DATA", str(folder / "data"))
        patched.setenv("TRAINWORKS_NODES", "4")
        patched.chdir(folder)
        (folder / "data" / "queue").mkdir(parents=True, mode=0o700)
        found = team.fill(f"sqlite:///{folder}/data/queue/jobs.db", folder / "runs")
        with serving(Site(folder / "runs")) as port:
            yield found, port


@pytest.fixture(params=SIZES)
def size(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.lane("test-all")
def test_a_team_works_for_an_hour_and_meets_no_obstacle(
    chromium: Any, queue: tuple[team.Team, int], tmp_path: Path, size: str, scheme: str
) -> None:
    found, port = queue
    desk = sit_down(chromium, port, size=size, scheme=scheme)
    sign_in(desk)
    find_jobs(desk)
    read_a_run(desk, found.runs[2])
    zoom_into_curves(desk)
    lay_five_runs_over_each_other(desk, found)
    look_at_a_sweep(desk, found)
    plan_a_training(desk)
    look_at_the_cluster(desk, found)
    stop_and_resume(desk, tmp_path / f"{size}-{scheme}")
    read_the_bill(desk)
    assert len(desk.audited) == len({*desk.audited}) == 25


def sign_in(desk: Desk) -> None:
    desk.open("/login")
    desk.audit("sign-in")
    desk.page.get_by_label("Token").fill(ADMIN)
    desk.page.get_by_role("button", name="Sign in").click()
    card = desk.page.locator(".cards li", has_text="llama-live-1")
    assert "step 165 of 300" in card.inner_text()
    assert card.get_by_role("progressbar").get_attribute("value") == "0.5500"
    desk.audit("jobs")


def runs_of(desk: Desk) -> list[str]:
    return [
        str(name)
        for name in desk.page.locator("input[name=run][form=chosen]").evaluate_all("all => all.map(one => one.value)")
    ]


def find_jobs(desk: Desk) -> None:
    """Filter, sort by a heading, choose columns, and read on."""
    page = desk.page
    page.get_by_label("Text", exact=True).fill("memory")
    page.locator("select[name=state]").select_option("FAILED")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**state=FAILED*")
    found = runs_of(desk)
    assert found and all("pretraining" in run for run in found)
    desk.audit("jobs-filtered")
    page.locator("select[name=order]").select_option("run")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**order=run*")
    assert runs_of(desk) == sorted(found)
    page.get_by_role("link", name="Jobs", exact=True).click()
    page.get_by_role("link", name="Next page").click()
    page.get_by_role("link", name="First page").wait_for()
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("team", exact=True).check()
    desk.audit("jobs-columns")
    page.get_by_role("button", name="Show these").click()
    page.wait_for_url("**columns=team*")
    assert page.get_by_text("language", exact=True).count() > 10


def read_a_run(desk: Desk, run: str) -> None:
    """Each tab but the curves, the log of a rank, and what the time was lost to."""
    page = desk.page
    desk.open(f"/?text={run}")
    page.get_by_role("link", name=run, exact=True).click()
    assert page.locator(".state").first.inner_text() == "SUCCEEDED"
    desk.audit("run")
    for tab in ("Plan and measured", "Time", "Events", "Logs", "Checkpoints"):
        page.get_by_role("navigation", name="Run").get_by_role("link", name=tab).click()
        page.wait_for_url(f"**/{tab.partition(' ')[0].lower()}")
        desk.audit(f"run-{tab.partition(' ')[0].lower()}")
    page.get_by_role("link", name="Logs").click()
    page.get_by_role("link", name="rank-0").click()
    page.get_by_label("Lines with").fill("step 30")
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**text=step*")
    assert page.locator("pre").text_content() == "step 30: loss 2.5\nstep 300: loss 2.5"
    desk.audit("log")
    page.get_by_role("navigation", name="Run").get_by_role("link", name="Time").click()
    page.get_by_role("link", name="Where the time was lost").click()
    page.wait_for_url("**/why")
    desk.audit("why")


def range_of(desk: Desk) -> str:
    return str(desk.page.locator(".chart-tools output").text_content())


def zoom_into_curves(desk: Desk) -> None:
    """By a button, by a drag over the curve, with a logarithmic axis, and back by a double click."""
    page = desk.page
    page.get_by_role("navigation", name="Run").get_by_role("link", name="Curves").click()
    curve = page.locator(".live-chart.is-live").first
    curve.locator("canvas").wait_for()
    desk.audit("curves")
    page.get_by_role("button", name="Zoom in").click()
    page.wait_for_function("document.querySelector('.chart-tools output').value === 'Steps 75 to 226'")
    page.get_by_label("Logarithmic").check()
    page.get_by_label("Mean of").select_option("10")
    curve.get_by_text("loss, mean of 10").wait_for()
    over = curve.locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.25, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, middle, steps=5)
    page.mouse.up()
    page.wait_for_function("document.querySelector('.chart-tools output').value !== 'Steps 75 to 226'")
    first, last = (int(number) for number in range_of(desk).removeprefix("Steps ").split(" to "))
    assert 75 < first < 130 and 170 < last < 226
    assert page.url.endswith(f"/curves#steps={first}-{last}&mean=10&log=1")
    desk.audit("curves-zoomed")
    over.dblclick()
    page.wait_for_function("document.querySelector('.chart-tools output').value === 'All steps'")


def lay_five_runs_over_each_other(desk: Desk, found: team.Team) -> None:
    page = desk.page
    desk.open("/?owner=ada&text=llama")
    for run in found.runs:
        page.get_by_label(f"Choose {run}", exact=True).check()
    page.get_by_role("button", name="Compare the chosen runs").click()
    page.locator(".live-chart.is-live canvas").first.wait_for()
    legend = page.locator(".u-legend").first.inner_text()
    assert all(run in legend for run in found.runs)
    assert "Settings that differ" in page.locator("main").inner_text()
    desk.audit("compare")
    page.locator("select[name=metric]").select_option("step_s")
    page.get_by_role("button", name="Compare", exact=True).click()
    page.wait_for_url("**metric=step_s*")
    desk.open(f"/compare?run={found.runs[0]}&run={found.runs[2]}")
    page.locator(".live-chart.is-live canvas").first.wait_for()
    desk.audit("compare-two")


def look_at_a_sweep(desk: Desk, found: team.Team) -> None:
    page = desk.page
    page.get_by_role("link", name="Sweeps").click()
    desk.audit("sweeps")
    page.get_by_role("link", name=found.sweep).click()
    page.locator(".parallel").wait_for()
    desk.audit("sweep")
    page.get_by_role("link", name="curves of the best").click()
    page.locator(".live-chart.is-live canvas").first.wait_for()


def plan_a_training(desk: Desk) -> None:
    page = desk.page
    page.get_by_role("link", name="Plan", exact=True).click()
    desk.audit("plan-form")
    page.get_by_label("Cluster").fill("4 nodes of DGX H100")
    page.get_by_label("Train for").fill("2B tokens")
    page.get_by_role("button", name="Plan", exact=True).click()
    page.locator("table").first.wait_for()
    assert page.get_by_label("Cluster").input_value() == "4 nodes of DGX H100"
    desk.audit("plan")


def look_at_the_cluster(desk: Desk, found: team.Team) -> None:
    page = desk.page
    page.get_by_role("link", name="Nodes").click()
    page.locator("tr", has_text=found.drained).get_by_text("replaced on Tuesday").wait_for()
    desk.audit("nodes")


def stop_and_resume(desk: Desk, finish: Path) -> None:
    """Submit a run, stop it while it runs, resume it, and see its end without a reload."""
    page = desk.page
    page.get_by_role("link", name="Submit").click()
    desk.audit("submit")
    page.get_by_label("Run file").fill(RUN_FILE % finish)
    page.get_by_role("button", name="Submit").click()
    page.locator(".state", has_text="RUNNING").wait_for()
    desk.audit("run-live")
    page.get_by_role("button", name="Stop").click()
    page.locator(".state", has_text="STOPPED").wait_for()
    page.get_by_role("button", name="Resume").click()
    page.locator(".state", has_text="RUNNING").wait_for()
    finish.touch()
    page.locator(".state", has_text="SUCCEEDED").wait_for()
    assert page.get_by_role("button", name="Resume").count() == 0


def read_the_bill(desk: Desk) -> None:
    page = desk.page
    page.get_by_role("link", name="Costs").click()
    desk.audit("costs")
    page.get_by_role("link", name="month and team").click()
    page.wait_for_url("**/costs?by=team")
    shown = page.locator("main").inner_text()
    assert all(name in shown for name in team.PEOPLE.values())
    desk.audit("costs-by-team")


def test_a_page_that_is_not_accessible_is_found(chromium: Any, queue: tuple[team.Team, int]) -> None:
    """The checks of this file would be worth nothing if axe-core did not run."""
    _, port = queue
    desk = sit_down(chromium, port)
    desk.open("/login")
    desk.page.evaluate("document.querySelector('main').append(document.createElement('input'))")
    with pytest.raises(AssertionError, match="label at main > input"):
        desk.audit("sign-in")
