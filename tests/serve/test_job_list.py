"""The list of jobs: what runs now, orders, columns that stay, dates, and runs to choose."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.report.conftest import RunWriter, make_plan
from tests.serve.conftest import ACCESS, ADMIN, VIEWER
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.store import open_store
from trainworks.serve.app import create_app
from trainworks.serve.site import Site

HOSTILE = '"><script>alert(1)</script>'
SUBMITTED_AT = 1_760_000_000.0
"""2025-10-09 08:53:20 UTC."""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """A client of a server over four jobs, each a minute after the one before, and over an empty folder of runs."""
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "queue").mkdir(parents=True, mode=0o700)
    (tmp_path / "runs").mkdir()
    store = open_store(f"sqlite:///{tmp_path}/data/queue/jobs.db")
    for number, (name, owner) in enumerate([("delta", "ada"), ("alpha", "grace"), ("charlie", "ada"), (HOSTILE, "x")]):
        spec = JobSpec(run_id=f"{name}-1", name=name, team="vision", min_nodes=1, max_nodes=1, node=NodeResources())
        store.add(
            spec, run_dir=f"/nowhere/{number}", owner=owner, engine="slurm", now=SUBMITTED_AT + 60 * number, uid=1
        )
    app = create_app(Site(tmp_path / "runs"), ACCESS, port=1, is_encrypted=False)
    return TestClient(app, base_url="http://127.0.0.1", headers={"Authorization": f"Bearer {VIEWER}"})


def runs_on(page: str) -> list[str]:
    """The names of the listed runs, in order."""
    return [
        html.unescape(name).removesuffix("-1") for name in re.findall(r'name="run" .*? aria-label="Choose (.*?)"', page)
    ]


@pytest.mark.parametrize(
    ("order", "runs"),
    [
        ("", [HOSTILE, "charlie", "alpha", "delta"]),
        ("?order=job", ["delta", "alpha", "charlie", HOSTILE]),
        ("?order=run", [HOSTILE, "alpha", "charlie", "delta"]),
        ("?order=-owner", [HOSTILE, "alpha", "charlie", "delta"]),
        ("?order=-started", [HOSTILE, "charlie", "alpha", "delta"]),
        ("?order=submitted&owner=ada", ["delta", "charlie"]),
        ("?order=run&skip=2", ["charlie", "delta"]),
    ],
)
def test_jobs_are_listed_in_the_order_of_the_address(client: TestClient, order: str, runs: list[str]) -> None:
    assert runs_on(client.get(f"/{order}").text) == runs


def test_an_order_is_a_link_of_its_heading_that_keeps_the_filter_and_turns_round(client: TestClient) -> None:
    page = client.get("/?owner=ada&order=-submitted").text
    turned = '<a href="/?owner=ada&amp;order=submitted">submitted (UTC)</a>'
    assert f'<th class="left" aria-sort="descending">{turned}</th>' in page
    assert '<a href="/?owner=ada&amp;order=-run">run</a>' in page
    assert page.count("aria-sort") == 1


def test_an_unknown_order_is_refused_with_the_known_ones(client: TestClient) -> None:
    answer = client.get("/?order=id;DROP TABLE jobs")
    assert answer.status_code == 422 and "one of job, run, state" in html.unescape(answer.text)
    assert client.get("/api/v1/jobs?order=runn").json()["hint"] == "did you mean `run`?"


def test_chosen_columns_stay_and_unknown_ones_are_left_out(client: TestClient) -> None:
    page = client.get("/?columns=ended&columns=run&columns=passwords").text
    headings = re.findall(r"<th .*?>(?:<a .*?>)?(.*?)(?:</a>)?</th>", page)
    assert headings == ["run", "ended (UTC)"]
    assert re.findall(r"<th .*?>(?:<a .*?>)?(.*?)(?:</a>)?</th>", client.get("/?order=run").text) == headings
    client.cookies.clear()
    assert "submitted (UTC)</a></th>" in client.get("/").text


def test_dates_are_those_of_the_jobs(client: TestClient) -> None:
    page = client.get("/?order=submitted").text
    assert re.findall(r"2025-10-09 [0-9:]+", page) == [f"2025-10-09 08:5{3 + number}" for number in range(4)]


def test_the_name_of_a_run_is_text_everywhere(client: TestClient) -> None:
    page = client.get("/").text
    assert "<script>alert" not in page
    assert 'aria-label="Choose &#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;-1"' in page


def test_a_job_is_chosen_by_its_number(client: TestClient) -> None:
    chosen = re.findall(r'name="run" value="(.*?)" form="chosen"', client.get("/?order=job").text)
    assert chosen == ["1", "2", "3", "4"], "two users may have runs of one id"


def test_chosen_jobs_are_stopped_once_they_are_confirmed_each_with_its_result(client: TestClient) -> None:
    assert "Stop them" not in client.get("/").text, "a viewer"
    assert client.get("/change?change=stop&run=1").status_code == 403
    client.headers["Authorization"] = f"Bearer {ADMIN}"
    assert "Stop them" in client.get("/").text
    page = client.get("/change?change=stop&run=1&run=4&run=1").text
    assert '<form class="line" method="post" action="/change?change=stop&amp;run=1&amp;run=4">' in page
    assert "<button>Stop 2 runs</button>" in page and "2025-10-09 08:53" in page and "<script>alert" not in page
    done = client.post("/change?change=stop&run=1&run=4&run=77")
    assert done.status_code == 200 and "0 of 3 runs asked to stop" in done.text
    assert done.text.count('<span class="is-bad">') == 3 and "no run `77`" in done.text


def test_only_stop_and_resume_change_several_jobs(client: TestClient) -> None:
    client.headers["Authorization"] = f"Bearer {ADMIN}"
    assert client.get("/change?change=delete&run=1").status_code == 422
    assert "tick runs" in client.get("/change?change=resume").text


def test_what_runs_now_is_a_card_with_its_progress(client: TestClient, tmp_path: Path) -> None:
    assert "Running now" not in client.get("/").text
    writer = RunWriter(tmp_path / "runs", make_plan(), None, name="live").launch()
    writer.steps(75).status("RUNNING", supervisor_host="elsewhere")
    RunWriter(tmp_path / "runs", make_plan(), None, name="over").launch().steps(5).finish()
    site = Site(tmp_path / "runs")
    app = create_app(site, ACCESS, port=1, is_encrypted=False)
    page = TestClient(app, base_url="http://127.0.0.1", headers={"Authorization": f"Bearer {VIEWER}"}).get("/").text
    cards = page[page.index("Running now") : page.index("</ul>")]
    assert '<a href="/runs/live-1">live-1</a>' in cards and "over-1" not in cards
    assert '<progress max="1" value="0.2500" aria-label="Steps of live-1">' in cards
    assert "step 75 of 300" in cards and "119 ms a step, 100 ms planned" in cards
