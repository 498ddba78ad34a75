"""Runs over each other, and sweeps, on the pages of a server."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.report.conftest import RunWriter, make_plan
from tests.serve.conftest import ACCESS, VIEWER
from trainworks.record.sweeps.sweep import SweepDefinition, SweepTrial, sweep_dir
from trainworks.serve.app import create_app
from trainworks.serve.site import Site


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """A client of a server over three runs, the second of which takes longer steps, and a sweep of them."""
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path / "data"))
    for slower_s in (0.0, 0.05, 0.0):
        writer = RunWriter(tmp_path / "runs", make_plan(), None, name="t").launch()
        writer.steps(50, data_s=0.002 + slower_s).finish()
    RunWriter(tmp_path / "runs", make_plan(), None, name="empty").launch()
    place = sweep_dir(tmp_path / "runs", "rates")
    place.path.mkdir(parents=True)
    keys = {"workload.optimizer.lr": [1e-4, 1e-3, 1e-2], "workload.optimizer.name": ["adamw", "sgd"]}
    place.write_definition(
        SweepDefinition(
            name="rates",
            run_file={},
            space=keys,
            search="grid",
            num_trials=3,
            seed=0,
            objective="loss",
            pruning=None,
        )
    )
    for number, (rate, name, value) in enumerate([(1e-4, "adamw", 3.0), (1e-3, "sgd", 2.0), (1e-2, "adamw", None)]):
        settings = {"workload.optimizer.lr": rate, "workload.optimizer.name": name}
        state = "failed" if value is None else "succeeded"
        place.append(
            SweepTrial(
                number=number,
                settings=settings,
                run_name="t",
                run=f"t-{number + 1}",
                state=state,
                value=value,
                message="<i>diverged</i>" if value is None else None,
            )
        )
    app = create_app(Site(tmp_path / "runs"), ACCESS, port=1, is_encrypted=False)
    return TestClient(app, base_url="http://127.0.0.1", headers={"Authorization": f"Bearer {VIEWER}"})


def chart_of(page: str) -> dict[str, list[str]]:
    (found,) = re.findall(r'data-chart="(.*?)"', page)
    content: dict[str, list[str]] = json.loads(html.unescape(found))
    return content


def test_any_number_of_runs_lie_over_each_other_with_figures_and_differing_settings(client: TestClient) -> None:
    page = client.get("/compare?run=t-1&run=t-2&run=&run=t-3&run=t-1").text
    assert chart_of(page)["runs"] == ["t-1", "t-2", "t-3"]
    assert {'class="curve-0"', 'class="curve-1"', 'class="curve-2"'} <= {*re.findall(r'class="curve-\d"', page)}
    figures = page[page.index("<h2>Figures</h2>") : page.index("<h2>Settings that differ</h2>")]
    assert figures.count("<tr>") == 4 and "119 ms" in figures and "169 ms" in figures
    assert page.count('name="run" value="t-') == 3, "the form keeps the runs"


def test_two_runs_have_the_finding_and_every_difference(client: TestClient) -> None:
    page = client.get("/compare?run=t-1&run=t-2").text
    assert "a step of t-2 takes 42% longer than one of t-1" in html.unescape(page).replace("A step", "a step")
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == ["Loss", "Settings that differ", "Figures"] and "+42" in page


def test_another_curve_is_chosen_and_a_run_without_it_is_named(client: TestClient) -> None:
    page = client.get("/compare?run=t-1&run=t-3&run=empty-1&metric=tokens_per_s").text
    assert chart_of(page)["metric"] == "tokens_per_s"
    assert "Not recorded by empty-1." in page
    wrong = client.get("/compare?run=t-1&metric=los")
    assert wrong.status_code == 422 and "did you mean `loss`?" in html.unescape(wrong.text)


def test_too_many_runs_and_unknown_ones_are_refused(client: TestClient) -> None:
    many = client.get("/compare?" + "&".join(f"run=r-{number}" for number in range(51)))
    assert many.status_code == 422 and "at most 50" in many.text
    assert client.get("/compare?run=t-1&run=nowhere-1").status_code == 404


def test_a_sweep_is_drawn_as_parallel_coordinates(client: TestClient) -> None:
    assert '<a href="/sweeps/rates">rates</a>' in client.get("/sweeps").text
    page = client.get("/sweeps/rates").text
    picture = page[page.index('class="frame parallel"') : page.index("<h2>Loss over the steps")]
    assert ">lr, log<" in picture and ">adamw<" in picture and ">sgd<" in picture
    assert picture.count("<path") == 2, "the trial that failed has no result"
    assert 'class="best-strand" d="M0.0 0.0L500.0 0.0L1000.0 1000.0"' in picture
    assert "&lt;i&gt;diverged&lt;/i&gt;" in page
    assert "/compare?run=t-2&amp;run=t-1" in page


def test_a_sweep_is_named_and_never_a_path(client: TestClient) -> None:
    for name in ("rate", "..%2Fruns", "%2Fetc"):
        assert client.get(f"/sweeps/{name}").status_code == 404
