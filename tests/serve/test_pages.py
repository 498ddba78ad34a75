"""Pages and the REST API of a real server: jobs, runs, logs, live events."""

from __future__ import annotations

import gzip
import html
import http.client
import json
import os
import re
import subprocess
import time

import pytest

import trainworks
from tests.faults.launcher import wait_until
from tests.program import trainworks_process
from tests.report.conftest import RunWriter, make_plan
from tests.serve.conftest import ADMIN, SUBMITTER, Server
from trainworks.files import take_lock
from trainworks.host import process
from trainworks.record.status import RunStatus
from trainworks.report.pages.run_tabs import TABS, metric_chart
from trainworks.report.rendering.plots import LiveChart
from trainworks.report.rendering.renderer import build_document
from trainworks.report.rendering.svg import markup
from trainworks.report.runs.summary import Report


def submitted(server: Server, command: str, name: str = "hello") -> str:
    """Submit over REST; returns the run once its job has ended: the store learns it after the run's status file."""
    text = json.dumps({"name": name, "run": command, "resources": {"cpus": 0.1}})
    answer = server.post("/api/v1/jobs", {"run_file": text}, token=SUBMITTER)
    assert answer.status == 201, answer.text
    run = str(answer.json["run"])
    wait_for_the_end(run)
    return run


def wait_for_the_end(run: str) -> None:
    job = trainworks.find_run(run).job
    assert job is not None
    wait_until(lambda: job.refresh().is_final)


def test_the_tabs_of_a_run_show_each_section_of_its_report_and_its_events_logs_and_checkpoints(
    server: Server, trained: str
) -> None:
    text = {tab: server.ask(f"/runs/{trained}/{tab}".removesuffix("/overview")).text for tab in TABS}
    titles = {tab: {*re.findall(r"<h2>(.*?)</h2>", page)} for tab, page in text.items()}
    assert {"Loss", "Attempts", "Environment"} <= titles["overview"]
    assert titles["curves"] >= {"Loss", "Throughput", "Learning rate", "Gradient norm", "Step time", "Peak memory"}
    assert titles["plan"] == {"Planned and measured", "Memory"}
    assert titles["time"] == {"Where the time went"}
    assert titles["checkpoints"] == {"Checkpoints"} and "71.2 MB" in text["checkpoints"]
    whole = build_document(read_report(server, trained))
    assert {section.title for section in whole.shown("page") if section.title} <= set().union(*titles.values())
    assert "80 % interval of the plan" in text["curves"] and 'class="interval"' in text["curves"]
    assert "&lt;b&gt;SIGKILL&lt;/b&gt;" in text["events"] and "<b>SIGKILL" not in text["events"]
    assert f'<a href="/runs/{trained}/logs/rank-0">rank-0</a>' in text["logs"]
    for tab, page in text.items():
        (current,) = re.findall(r'<nav class="tabs".*?aria-current="page">(.*?)</a>.*?</nav>', page, re.DOTALL)
        assert current == TABS[tab]


def read_report(server: Server, run: str) -> Report:
    return Report.model_validate_json(server.ask(f"/api/v1/runs/{run}").text)


def test_a_tab_without_content_says_why_and_an_unknown_one_names_the_nearest(server: Server) -> None:
    run = RunWriter(server.runs, None, "true", name="empty").run_dir.run_id
    for tab in ("curves", "plan", "events", "logs", "checkpoints"):
        assert re.search(r"is-dim\">(?:The run has|No log)", server.ask(f"/runs/{run}/{tab}").text), tab
    wrong = server.ask(f"/runs/{run}/curve")
    assert wrong.status == 404 and "did you mean `curves`?" in html.unescape(wrong.text)


def test_a_chart_says_what_its_script_needs(trained: str, server: Server) -> None:
    page = server.ask(f"/runs/{trained}/curves").text
    charts = [json.loads(html.unescape(found)) for found in re.findall(r'data-chart="(.*?)"', page)]
    metrics = ["loss", "tokens_per_s", "grad_norm", "lr", "step_s", "memory_peak_bytes"]
    assert [chart["metric"] for chart in charts] == metrics
    assert charts[0]["runs"] == [trained]
    assert [mark[:2] for mark in charts[0]["marks"]] == [[120, "checkpoint"], [300, "checkpoint"], [120, "restart"]]
    assert [title for *_, title in charts[1]["bands"]] == ["80 % interval of the plan"]
    for script in re.findall(r'<script src="(.*?)"', page):
        assert server.ask(script).headers["cache-control"] == "public, max-age=31536000, immutable"


def test_the_name_of_a_run_ends_no_attribute_of_a_chart() -> None:
    chart = metric_chart("Loss", [("line", "x", [(1, 2.0), (2, 1.0)])])
    drawn = LiveChart(chart, ['"><script>alert(1)</script>'], "loss").picture()
    assert drawn is not None and "<script>" not in markup(drawn)


def test_curves_are_asked_for_by_range_with_means_and_with_lost_steps(server: Server, trained: str) -> None:
    ask = f"/api/v1/runs/{trained}/metrics?names=loss,tokens_per_s"
    inside = server.ask(f"{ask}&first=100&last=110").json
    assert inside["step"] == list(range(100, 111))
    assert inside["tokens_per_s"][0] == pytest.approx(8192 / 0.119)
    lost = server.ask(f"{ask}&lost=true").json
    assert lost["step"] == list(range(121, 151))
    means = server.ask(f"{ask}&mean=5&first=100&last=101").json["loss"]
    values = server.ask(f"{ask}&first=96&last=101").json["loss"]
    assert means == pytest.approx([sum(values[:5]) / 5, sum(values[1:]) / 5])
    assert len(server.ask(f"{ask}&points=20").json["step"]) <= 20


def test_scripts_and_styles_travel_compressed_and_are_kept_until_they_change(server: Server) -> None:
    for name in ("site.css", "live.js", "uplot.js", "uplot.css", "charts.js"):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
        connection.request("GET", f"/static/{name}", headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        body = gzip.decompress(answer.read())
        connection.close()
        assert answer.getheader("content-encoding") == "gzip"
        assert body.decode() == server.ask(f"/static/{name}").text
        assert answer.getheader("cache-control") == "max-age=600", "an address without a version may change"
    assert server.ask("/static/no.js", token=None).status == 404


def test_every_reader_tells_that_a_supervisor_was_killed_and_the_first_one_writes_it(server: Server) -> None:
    run_dir = RunWriter(server.runs, make_plan(), None, name="lost").launch().steps(10).run_dir
    with subprocess.Popen(["sleep", "600"]) as killed:
        pid, started_at = process.identity(killed.pid)
        run_dir.write_status(RunStatus(state="RUNNING", supervisor_pid=pid, supervisor_started_at=started_at))
        killed.kill()
    lock, run = take_lock(run_dir.lock_file), trainworks.find_run(run_dir.run_id, server.runs)
    assert lock is not None  # as a rank that is still ending has it
    for command in (["status", run.id], ["ls"]):
        said = trainworks_process(*command, "--json", folder=server.runs.parent).stdout
        assert '"LOST"' in said and '"agent_lost"' in said and '"RUNNING"' not in said
    assert server.ask(f"/api/v1/runs/{run.id}").json["state"] == "LOST"
    page = server.ask(f"/runs/{run.id}").text
    assert "LOST" in page and "RUNNING" not in page
    assert (run.state, run.status.state, [each.state for each in run.follow()]) == ("LOST", "LOST", ["LOST"])
    assert run_dir.read_status().state == "RUNNING"
    os.close(lock)
    assert run.state == run_dir.read_status().state == "LOST"


def test_why_a_run_is_not_faster_is_a_page_and_json(server: Server, trained: str) -> None:
    diagnosis = server.ask(f"/api/v1/runs/{trained}/why").json
    assert diagnosis["run_id"] == trained
    assert {"restarts", "lost_steps"} <= {cause["name"] for cause in diagnosis["causes"]}
    page = server.ask(f"/runs/{trained}/why")
    assert page.status == 200
    assert f"1. {diagnosis['causes'][0]['title']}" in page.text
    assert f'href="/runs/{trained}"' in page.text
    assert f'href="/runs/{trained}/why"' in server.ask(f"/runs/{trained}/time").text


def test_two_runs_are_compared_on_a_page_and_as_json(server: Server, trained: str) -> None:
    slower = RunWriter(server.runs, make_plan(), None).launch().steps(60, data_s=0.05).finish().run_dir.run_id
    found = server.ask(f"/api/v1/runs/{trained}/compare/{slower}").json
    assert found["runs"] == [trained, slower]
    assert "most by data" in found["finding"]
    page = server.ask(f"/compare?run={trained}&run={slower}").text
    assert found["finding"][1:] in page and 'class="curve-1"' in page
    assert f'value="{trained}"' in server.ask(f"/compare?run={trained}").text
    assert server.ask(f"/compare?run={trained}&run=none-1").status == 404


def test_the_first_answer_about_a_long_record_has_all_of_its_steps(server: Server) -> None:
    def new_run() -> str:
        writer = RunWriter(server.runs, make_plan(num_steps=9000), None).launch().steps(9000).finish()
        assert writer.run_dir.metrics_file.stat().st_size > 2 << 20
        return writer.run_dir.run_id

    page = server.ask(f"/runs/{new_run()}").text
    assert "No steps have been recorded yet" not in page
    assert "<dt>steps</dt><dd>9,000</dd><dd>of 9,000</dd>" in page
    run = new_run()
    assert server.ask(f"/api/v1/runs/{run}").json["training"]["steps_done"] == 9000
    assert server.ask(f"/api/v1/runs/{new_run()}/metrics?names=loss&first=9000").json["step"] == [9000]
    assert server.ask(f"/api/v1/runs/{new_run()}/why").json["num_steps"] == 9000


def test_metrics_are_those_of_the_steps_that_count(server: Server, trained: str) -> None:
    found = server.ask(f"/api/v1/runs/{trained}/metrics?names=loss,step_s").json
    assert found["step"] == list(range(1, 301))
    assert set(found) == {"step", "loss", "step_s"}


def test_metrics_are_thinned_on_the_server(server: Server, trained: str) -> None:
    found = server.ask(f"/api/v1/runs/{trained}/metrics?points=20&first=50&last=200").json
    assert len(found["loss"]) <= 20
    assert found["step"][0] == 50
    assert found["step"][-1] == 200


def test_the_report_events_and_checkpoints_are_json(server: Server, trained: str) -> None:
    report = server.ask(f"/api/v1/runs/{trained}").json
    assert (report["state"], report["training"]["steps_done"], report["training"]["lost_steps"]) == (
        "SUCCEEDED",
        300,
        30,
    )
    events = server.ask(f"/api/v1/runs/{trained}/events?after=1&limit=2").json
    assert len(events) == 2
    assert len(server.ask(f"/api/v1/runs/{trained}/checkpoints").json) == 2
    assert server.ask(f"/api/v1/runs/{trained}/findings").json


def test_a_log_is_searched_in_any_case_and_shown_without_its_control_characters(server: Server, trained: str) -> None:
    assert server.ask(f"/api/v1/runs/{trained}/logs").json == ["rank-0"]
    found = server.ask(f"/api/v1/runs/{trained}/logs/rank-0?text=nan").json
    assert found["lines"] == ["step 3: NaN"]
    page = server.ask(f"/runs/{trained}/logs/rank-0").text
    assert "\x1b" not in page and "\\x1b[31mred" in page
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page


def test_a_log_is_filtered_by_level(server: Server, trained: str) -> None:
    log = server.runs / trained / "logs" / "node-0.log"
    log.write_text("INFO begin\nWARNING hot\nno level\nValueError: bad\n  in its traceback\n")
    found = server.ask(f"/api/v1/runs/{trained}/logs/node-0?level=warning").json
    log.unlink()
    assert found["lines"] == ["WARNING hot", "ValueError: bad", "  in its traceback"]
    wrong = server.ask(f"/api/v1/runs/{trained}/logs/rank-0?level=warnin")
    assert (wrong.status, wrong.json["hint"]) == (422, "did you mean `warning`?")


def test_a_submitted_job_is_listed_found_and_described(server: Server) -> None:
    run = submitted(server, "echo here", name="listed")
    rows = server.ask("/api/v1/jobs?text=LISTED").json
    assert [row["run_id"] for row in rows["jobs"]] == [run]
    assert rows["counts"]["SUCCEEDED"] >= 1
    assert server.ask("/api/v1/jobs?state=failed&text=listed").json["jobs"] == []
    assert "No job matches." in server.ask("/?state=failed&text=listed").text
    detail = server.ask(f"/api/v1/jobs/{run}").json
    assert (detail["job"]["run_id"], len(detail["attempts"])) == (run, 1)
    page = server.ask("/?text=listed").text
    assert f'<a href="/runs/{rows["jobs"][0]["id"]}">{run}</a>' in page


def test_jobs_are_read_page_by_page(server: Server) -> None:
    for number in range(3):
        submitted(server, "true", name=f"paged{number}")
    first = server.ask("/api/v1/jobs?text=paged&limit=2").json
    second = server.ask(f"/api/v1/jobs?text=paged&limit=2&before={first['next']}").json
    assert [row["name"] for row in first["jobs"] + second["jobs"]] == ["paged2", "paged1", "paged0"]
    assert second["next"] is None


def test_a_job_is_stopped_and_resumed(server: Server) -> None:
    text = json.dumps({"name": "long", "run": "sleep 300", "resources": {"cpus": 0.1}})
    run = server.post("/api/v1/jobs", {"run_file": text}).json["run"]
    assert server.post(f"/api/v1/jobs/{run}/stop?at_once=true").status == 202
    assert str(trainworks.find_run(run).wait()) == "STOPPED"
    assert server.post(f"/api/v1/jobs/{run}/resume").status == 202
    assert server.post(f"/api/v1/jobs/{run}/stop?at_once=true").status == 202
    wait_for_the_end(run)


def test_several_jobs_are_stopped_and_resumed_each_with_its_result(server: Server) -> None:
    text = json.dumps({"name": "several", "run": "sleep 300", "resources": {"cpus": 0.1}})
    runs = [server.post("/api/v1/jobs", {"run_file": text}).json["run"] for _ in range(2)]
    stopped = server.post("/api/v1/jobs/stop", {"jobs": [*runs, "nowhere-1", runs[0]], "at_once": True}).json
    assert [(one["job"], one["run"]) for one in stopped] == [*zip(runs, runs, strict=True), ("nowhere-1", None)]
    assert "no run `nowhere-1`" in stopped[2]["problem"]
    assert [str(trainworks.find_run(run).wait()) for run in runs] == ["STOPPED"] * 2
    resumed = server.post("/api/v1/jobs/resume", {"jobs": runs}).json
    assert [one["run"] for one in resumed] == runs
    server.post("/api/v1/jobs/stop", {"jobs": runs, "at_once": True})
    for run in runs:
        wait_for_the_end(run)


def test_a_form_submits_and_names_what_is_wrong(server: Server) -> None:
    wrong = server.ask("/submit", method="POST", body="text=name%3A+x%0Arunn%3A+true", token=ADMIN)
    assert wrong.status == 422
    assert "run.yaml:2" in wrong.text and "did you mean `run`?" in wrong.text
    done = server.ask("/submit", method="POST", body="text=name%3A+formed%0Arun%3A+%22true%22", token=ADMIN)
    assert done.status == 303
    assert "formed-1" in server.ask(done.headers["location"]).text


def test_a_workload_is_planned_on_a_page(server: Server) -> None:
    form = server.ask("/plan").text
    text = re.search(r"<textarea.*?>(.*?)</textarea>", form, re.DOTALL)
    assert text is not None
    from urllib.parse import quote_plus

    as_a_browser_sends_it = text[1].replace("\n", "\r\n")
    page = server.ask("/plan", method="POST", body=f"text={quote_plus(as_a_browser_sends_it)}")
    assert page.status == 200, page.text[-3000:]
    assert "<svg" in page.text
    assert text[0].split(">", 1)[1] in page.text, "the form has the text again, and not its line ends in other signs"


def test_a_plan_is_made_of_fields_which_the_page_keeps_beside_the_run_file(server: Server) -> None:
    fields = "model=llama-2-7b&cluster=4+nodes+of+DGX+H100&sequence_length=4096&global_batch=256&train_for=2B+tokens"
    page = server.ask("/plan", method="POST", body=f"{fields}&precision=bf16&deadline=3h&budget=")
    assert page.status == 200, page.text[-3000:]
    assert "<svg" in page.text and "4 nodes of DGX H100" in page.text
    text = html.unescape(re.findall(r"<textarea.*?>(.*?)</textarea>", page.text, re.DOTALL)[0])
    assert "deadline: 3h" in text and "budget" not in text and "global_batch: 256" in text
    assert 'name="deadline" value="3h"' in page.text
    wrong = server.ask("/plan", method="POST", body="model=%3Cb%3E&cluster=x&train_for=1")
    assert wrong.status == 422 and "<b>" not in wrong.text and 'value="&lt;b&gt;"' in wrong.text


@pytest.mark.parametrize(
    "path",
    ["/", "/sweeps", "/nodes", "/costs", "/compare", "/plan", "/submit", "/login", "/static/live.js"],
)
def test_every_page_opens(server: Server, path: str) -> None:
    assert server.ask(path).status == 200


def test_costs_are_by_month_and_owner(server: Server) -> None:
    submitted(server, "true", name="priced")
    months = server.ask("/api/v1/costs").json
    assert len(months) <= 2  # a month may end meanwhile
    assert sum(month["jobs"] for month in months) >= 1
    assert sum(month["core_hours"] for month in months) > 0


def test_costs_are_summed_by_team_and_month_without_owners(server: Server) -> None:
    submitted(server, "true", name="summed")
    page = server.ask("/costs?by=team").text
    assert '<a href="/costs?by=team" aria-current="true">month and team</a>' in page
    headings = re.findall(r"<th\b.*?>(.*?)</th>", page)
    assert "month" in headings and "owner" not in headings and "core hours" in headings
    wrong = server.ask("/costs?by=teams")
    assert wrong.status == 422 and "did you mean `team`?" in html.unescape(wrong.text)


def test_a_change_of_a_run_is_an_event_of_the_live_stream(server: Server, trained: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
    connection.request("GET", f"/live?run={trained}", headers={"Authorization": f"Bearer {ADMIN}"})
    stream = connection.getresponse()
    assert stream.getheader("content-type", "").startswith("text/event-stream")
    assert stream.readline() == b"retry: 3000\n"
    events = server.runs / trained / "events.jsonl"
    with events.open("a") as file:
        file.write(json.dumps({"t": time.time(), "kind": "idle", "since": 0}) + "\n")
    lines = [stream.readline() for _ in range(2)]
    assert b"event: changed\n" in lines
    connection.close()


def test_nodes_show_what_is_in_use(server: Server) -> None:
    assert server.ask("/api/v1/nodes").json[0]["cores"] > 0


@pytest.mark.parametrize("path", ["/nodes", "/api/v1/nodes"])
def test_a_visitor_asks_for_no_cluster_that_is_a_file_of_the_server(server: Server, path: str) -> None:
    answer = server.ask(f"{path}?cluster=/etc/hostname")
    assert answer.status == 422 and "no cluster `/etc/hostname` is reached from here" in html.unescape(answer.text)


def test_the_machine_of_the_server_shows_its_load_and_health(server: Server) -> None:
    machine = server.ask("/api/v1/machine").json
    assert 0 < machine["load"]["memory_used_bytes"] < machine["load"]["memory_bytes"]
    assert len(machine["health"]["results"]) >= 40
    page = server.ask("/nodes").text
    assert f"Load of {machine['health']['node']}" in page and "cores busy" in page
    assert f"Health of {machine['health']['node']}" in page
