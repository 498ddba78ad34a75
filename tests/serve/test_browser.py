"""The pages in a real browser: Debian's Chromium, driven by playwright."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.report.conftest import RunWriter, make_plan
from tests.serve.browser import BROKEN_WORDS, CHROMIUM, SIZES, sit_down
from tests.serve.conftest import ADMIN, Server
from trainworks.jobs.job_row import JobRow
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.state import JobState
from trainworks.record.exit_code import End
from trainworks.report.jobs import list_document
from trainworks.report.pages.run_tabs import TABS
from trainworks.report.rendering.page import render_page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
RUN_FILE = "name: watched\nrun: until [ -e %s ]; do sleep 0.1; done; echo bye\nresources: {cpus: 0.1}\n"


@pytest.fixture
def problems() -> list[str]:
    """What the console of the browser complains about, a refused script or style among them."""
    return []


def page_of(chromium: Any, server: Server, problems: list[str], *, size: str = "desktop", scheme: str = "light") -> Any:
    page = chromium.new_context(viewport=SIZES[size], color_scheme=scheme).new_page()
    page.set_default_timeout(60_000)
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"http://127.0.0.1:{server.port}/?token={ADMIN}")
    return page


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_is_accessible_and_breaks_nothing(
    chromium: Any, server: Server, trained: str, size: str, scheme: str
) -> None:
    pytest.importorskip("axe_playwright_python", reason="axe-core is not installed")
    desk = sit_down(chromium, server.port, size=size, scheme=scheme)
    desk.open(f"/?token={ADMIN}")
    tabs = [f"/runs/{trained}/{tab}".removesuffix("/overview") for tab in TABS]
    runs = (*tabs, f"/runs/{trained}/why", f"/compare?run={trained}")
    for path in ("/", *runs, f"/runs/{trained}/logs/rank-0", "/nodes", "/costs", "/plan", "/submit"):
        desk.open(path)
        desk.audit(path.strip("/").replace("/", "-") or "jobs")


@pytest.mark.parametrize("width", [390, 800, 1280])
def test_no_state_of_a_job_breaks_in_a_full_list(chromium: Any, width: int) -> None:
    page = chromium.new_page(viewport={"width": width, "height": 844})
    page.set_content(render_page(list_document([job(state) for state in JobState], now=90_000.0)))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(BROKEN_WORDS) == []
    assert page.get_by_text("PREEMPTED").is_visible()
    if width == 390:
        assert page.evaluate("document.querySelector('.scroll').scrollWidth") <= width, "a column is out of sight"


def job(state: JobState) -> JobRow:
    """A job with long names and a reason, of another user."""
    name = "llama_3_8b_instruct_fine_tune_of_chats_of_support"
    spec = JobSpec(run_id=f"{name}-1", name=name, team="language", min_nodes=16, max_nodes=16, node=NodeResources())
    return JobRow(
        id=1000,
        run_id=spec.run_id,
        run_dir="/nowhere",
        name=name,
        owner="barbara",
        uid=os.getuid() + 1,
        engine="kubernetes",
        spec=spec,
        end=End(state),
        reason="resources",
        detail="waits for 16 nodes with accelerators of /scratch/cluster/partition/of/a/very/long/name",
        reachable=False,
        submitted_at=1000.0,
        changed_at=1000.0,
        version=1,
    )


def test_a_run_is_submitted_and_watched_to_its_end(
    chromium: Any, server: Server, problems: list[str], tmp_path: Path
) -> None:
    page = page_of(chromium, server, problems)
    page.get_by_role("link", name="Submit").click()
    page.get_by_label("Run file").fill(RUN_FILE % (tmp_path / "watched"))
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/runs/*")
    page.evaluate("window.isTheSamePage = true")
    (tmp_path / "watched").touch()
    page.locator(".state", has_text="SUCCEEDED").wait_for()
    assert page.evaluate("window.isTheSamePage")
    assert page.get_by_role("status").text_content() == "The run is now SUCCEEDED"
    page.get_by_role("link", name="Logs").click()
    page.get_by_role("link", name="rank-0").click()
    assert "bye" in (page.locator("pre").text_content() or "")
    page.get_by_role("link", name="Jobs").click()
    page.get_by_role("link", name="watched-1").wait_for()
    assert problems == []


def test_a_curve_grows_while_it_is_watched(chromium: Any, server: Server, problems: list[str]) -> None:
    writer = RunWriter(server.runs, make_plan(), None).launch()
    writer.steps(20).status("RUNNING")
    page = page_of(chromium, server, problems)
    page.goto(f"http://127.0.0.1:{server.port}/runs/{writer.run_dir.run_id}")
    before = page.locator("path.line").first.get_attribute("d")
    threading.Thread(target=lambda: (time.sleep(1), writer.steps(100))).start()
    page.wait_for_function("old => document.querySelector('path.line').getAttribute('d') !== old", arg=before)
    assert problems == []


def test_a_curve_is_zoomed_and_smoothed_and_asks_the_server_for_its_range(
    chromium: Any, server: Server, trained: str, problems: list[str]
) -> None:
    page = page_of(chromium, server, problems)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"http://127.0.0.1:{server.port}/runs/{trained}/curves")
    page.locator(".live-chart.is-live canvas").nth(1).wait_for()
    page.get_by_role("button", name="Zoom in").click()
    page.wait_for_function("document.querySelector('.chart-tools output').value !== 'All steps'")
    assert page.locator(".chart-tools output").text_content() == "Steps 75 to 226"
    page.get_by_label("Mean of").select_option("10")
    page.get_by_text("loss, mean of 10").first.wait_for()
    assert any("names=loss" in url and "first=75" in url and "last=226" in url for url in asked)
    assert any("names=loss" in url and "mean=10" in url for url in asked)
    assert page.url.endswith("#steps=75-226&mean=10")
    page.reload()
    page.get_by_text("loss, mean of 10").first.wait_for()
    page.get_by_role("button", name="All steps").click()
    page.wait_for_function("document.querySelector('.chart-tools output').value === 'All steps'")
    assert problems == []


def test_without_a_script_the_curves_are_drawings(chromium: Any, server: Server, trained: str) -> None:
    page = chromium.new_context(java_script_enabled=False).new_page()
    page.goto(f"http://127.0.0.1:{server.port}/?token={ADMIN}")
    page.goto(f"http://127.0.0.1:{server.port}/runs/{trained}/curves")
    assert page.locator(".live-chart svg.plot").first.is_visible()
    assert not page.locator(".chart-tools").is_visible()
    page.get_by_role("link", name="Plan and measured").click()
    assert page.get_by_role("heading", name="Memory").is_visible()


@pytest.mark.lane("test-all")
def test_what_changes_before_the_stream_of_events_is_open_is_shown(
    chromium: Any, server: Server, problems: list[str]
) -> None:
    writer = RunWriter(server.runs, make_plan(), None).launch().steps(20).status("RUNNING")
    page = page_of(chromium, server, problems)
    held: list[Any] = []
    page.route("**/live?*", lambda route: held.append(route))  # noqa: PLW0108, playwright marks it
    page.goto(f"http://127.0.0.1:{server.port}/runs/{writer.run_dir.run_id}")
    before = page.locator("path.line").first.get_attribute("d")
    writer.steps(100)
    while not held:
        page.wait_for_timeout(10)
    time.sleep(1)  # an answer that the visitors of half a second share is no longer that of before
    held[0].continue_()
    page.wait_for_function("old => document.querySelector('path.line').getAttribute('d') !== old", arg=before)
    assert problems == []


def test_the_keyboard_reaches_the_content_and_the_form(
    chromium: Any, server: Server, trained: str, problems: list[str]
) -> None:
    page = page_of(chromium, server, problems)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    names = []
    while "Filter" not in names and len(names) < 60:
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.name || document.activeElement.textContent"))
    assert [name for name in names if name in ("text", "state", "owner", "Filter")] == [
        "text",
        "state",
        "owner",
        "Filter",
    ]


def test_a_script_in_a_message_is_not_run(chromium: Any, server: Server, trained: str, problems: list[str]) -> None:
    page = page_of(chromium, server, problems)
    page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
    page.goto(f"http://127.0.0.1:{server.port}/runs/{trained}/logs/rank-0?text=script")
    assert "<script>alert(1)" in (page.locator("pre").text_content() or "")
    assert problems == []
