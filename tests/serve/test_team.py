"""One page for a team: what a member does there happens as that member, and no member can act as another."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.serve.conftest import Answer, Server
from tests.users import User, common_folder, require_root, users
from trainworks.host import process
from trainworks.jobs.store import open_store

pytestmark = pytest.mark.root
PATIENCE_S = 240.0
VIEWER = "viewer-token-0123456"

HOSTILE = r"""
import os, socket, sys
folder = os.path.join(sys.argv[1], str(os.getuid()))
os.mkdir(folder, 0o711)
listening = socket.socket(socket.AF_UNIX)
listening.bind(os.path.join(folder, "agent.sock"))
os.chmod(os.path.join(folder, "agent.sock"), 0o666)
listening.listen()
print("listens", flush=True)
while True:
    connection, _ = listening.accept()
    print(connection.recv(65536).decode(), flush=True)
    print("end of request", flush=True)
    connection.sendall(sys.argv[2].encode().decode("unicode_escape").encode())
    connection.close()
"""
"""A program of a member instead of `trainworks serve`: prints what it gets, and answers what it is given."""

PLANTED = r"""
import os, socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
listening.listen()
print("listens", flush=True)
connection, _ = listening.accept()
print("got", len(connection.recv(65536)), flush=True)
"""


@dataclass
class Page:
    """A shared page, and its members."""

    server: Server
    folder: Path
    host: User
    ann: User
    bob: User
    eve: User
    """A viewer."""
    others: list[User]
    """Without a server of their own."""
    store: str
    tokens: dict[int, str]

    def ask(self, user: User, path: str, **keys: object) -> Answer:
        return self.server.ask(path, token=self.tokens[user.uid], **keys)  # type: ignore[arg-type]

    def post(self, user: User, path: str, content: object = None) -> Answer:
        return self.server.post(path, content, token=self.tokens[user.uid])

    def submit(self, user: User, name: str, command: str) -> str:
        text = json.dumps({"name": name, "run": command, "resources": {"cpus": 0.1}})
        answer = self.post(user, "/api/v1/jobs", {"run_file": text})
        assert answer.status == 201, answer.text
        return str(answer.json["run"])

    def number(self, user: User, run: str) -> str:
        job = open_store(self.store).find(run, uid=user.uid)
        assert job is not None and job.uid == user.uid
        return str(job.id)


def started(user: User, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """A server of a user, and the line with which it says that it listens."""
    program = user.popen("serve", *arguments)
    assert program.stderr is not None
    return program, program.stderr.readline().strip()


def store_for_all(common: Path) -> str:
    """A job store that every user can write."""
    (common / "store").mkdir()
    (common / "store").chmod(0o777)
    url = f"sqlite:///{common / 'store' / 'jobs.db'}"
    open_store(url)
    (common / "store" / "jobs.db").chmod(0o666)
    return url


def team_of(host: User, common: Path, members: dict[str, str]) -> tuple[Path, Path]:
    """The folder of a team and the access file of its page, whose user is `host`."""
    team, access = common / "team", host.home / "access.yaml"
    team.mkdir()
    access.write_text(json.dumps({"tokens": {"viewer": VIEWER}, "team": {"folder": str(team), "members": members}}))
    for path, mode in ((team, 0o1777), (access, 0o600)):
        os.chown(path, host.uid, host.uid)
        path.chmod(mode)
    return team, access


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A page for all users but root; three of them have a server of their own."""
    require_root()
    with common_folder() as common:
        url = store_for_all(common)
        env = {"TRAINWORKS_STORE": url, "TRAINWORKS_LEDGER": str(common / "ledger")}
        _, host, ann, bob, eve, *others = users(common, 7, env)
        members = {"*": "submitter", str(eve.uid): "viewer", str(ann.uid): "admin"}
        team, access = team_of(host, common, members)
        shared, address = started(host, "--access", str(access), "--listen", "127.0.0.1:0")
        programs, tokens = [shared], {}
        for user in (ann, bob, eve):
            program, line = started(user, "--join", str(team))
            assert line.startswith(f"{address}?token={user.uid}."), line
            programs.append(program)
            tokens[user.uid] = line.rpartition("=")[2]
        port = int(address.rstrip("/").rpartition(":")[2])
        yield Page(Server(port, Path()), team, host, ann, bob, eve, others, url, tokens)
        for program in programs:
            program.terminate()
            program.communicate(timeout=60)
        while left := process.processes_with({"TRAINWORKS_LEDGER": env["TRAINWORKS_LEDGER"]}):
            for one in left:
                process.kill(one.pid)
            psutil.wait_procs(left, timeout=5.0)


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists() or not (text := path.read_text()):
        assert time.monotonic() < deadline, f"{path} is missing"
        time.sleep(0.1)
    return text


def test_a_job_runs_as_the_member_who_submitted_it_and_all_members_see_whose_it_is(page: Page) -> None:
    for user in (page.ann, page.bob):
        run = page.submit(user, "who", "id -u > who")
        assert wait_for(user.home / "who").strip() == str(user.uid)
        assert page.number(user, run)
    jobs = page.ask(page.eve, "/api/v1/jobs?text=who").json["jobs"]
    assert {(job["run_id"], job["owner"]) for job in jobs} == {
        ("who-1", f"uid {page.ann.uid}"),
        ("who-1", f"uid {page.bob.uid}"),
    }, "one run id of two users"
    listed = page.ask(page.eve, "/?text=who").text
    assert "<th" in listed and "submitted (UTC)" in listed and listed.count(f"uid {page.ann.uid}") >= 1


def test_the_secret_of_one_member_opens_no_other_s_server(page: Page) -> None:
    secret = page.tokens[page.bob.uid].partition(".")[2]
    for uid in (page.ann.uid, page.host.uid, 0):
        forged = page.server.ask("/api/v1/jobs", token=f"{uid}.{secret}")
        assert forged.status in (401, 403, 503), forged.text
    assert page.server.ask("/api/v1/jobs", token=f"{page.ann.uid}.{secret}").status == 401


def test_a_member_stops_and_resumes_several_jobs_and_gets_a_result_of_each(page: Page) -> None:
    own = [page.submit(page.bob, "long", "sleep 600") for _ in range(2)]
    other = page.submit(page.ann, "long", "sleep 600")
    numbers = [*(page.number(page.bob, run) for run in own), page.number(page.ann, other)]
    results = page.post(page.bob, "/api/v1/jobs/stop", {"jobs": [*numbers, "nowhere-1"], "at_once": True})
    assert results.status == 200, results.text
    assert [one["run"] for one in results.json] == [*own, None, None]
    assert "does not belong to" in results.json[2]["problem"] and "no run" in results.json[3]["problem"]
    store = open_store(page.store)
    deadline = time.monotonic() + PATIENCE_S
    while [str(store.get(int(number)).state) for number in numbers[:2]] != ["STOPPED"] * 2:  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    again = page.post(page.bob, "/api/v1/jobs/resume", {"jobs": numbers})
    assert [one["run"] for one in again.json] == [*own, None]
    assert [one["run"] for one in page.post(page.ann, "/api/v1/jobs/stop", {"jobs": numbers[2:]}).json] == [other]


def test_an_administrator_of_the_page_has_no_rights_that_the_machine_does_not_give(page: Page) -> None:
    run = page.submit(page.bob, "mine", "sleep 600")
    refused = page.post(page.ann, f"/api/v1/jobs/{page.number(page.bob, run)}/stop")
    assert refused.status == 403
    assert "trainworks-admins" in refused.json["hint"], "who may"
    page.post(page.bob, f"/api/v1/jobs/{run}/stop")


def test_a_viewer_changes_nothing_even_as_the_own_user(page: Page) -> None:
    assert page.ask(page.eve, "/").status == 200
    assert page.ask(page.eve, "/submit").status == 403
    assert page.post(page.eve, "/api/v1/jobs", {"run_file": "name: x\nrun: 'true'\n"}).status == 403
    raised = page.server.post(
        "/api/v1/jobs", {"run_file": "name: x\nrun: 'true'\n"}, token=page.tokens[page.eve.uid], Trainworks_Role="admin"
    )
    assert raised.status == 403, "a role in the request raises nothing"


def test_the_shared_server_itself_starts_and_stops_nothing(page: Page) -> None:
    assert page.server.ask("/", token=VIEWER).status == 200
    assert page.server.post("/api/v1/jobs", {"run_file": "name: x\nrun: 'true'\n"}, token=VIEWER).status == 403


def test_a_member_without_a_server_learns_the_command_that_starts_it(page: Page) -> None:
    user = page.others[0]
    answer = page.server.ask("/api/v1/jobs", token=f"{user.uid}.{'x' * 43}")
    assert answer.status == 503
    assert f"trainworks serve --join {page.folder}" in answer.json["hint"]
    assert "trainworks serve --join" in page.server.ask("/", token=None).text


def planted(page: Page, user: User, place: Path) -> subprocess.Popen[str]:
    """A socket of that user, which says whether a byte arrived."""
    program = user.popen_program([sys.executable, "-c", PLANTED, str(place)])
    assert program.stdout is not None and program.stdout.readline() == "listens\n"
    return program


def test_a_socket_that_another_user_planted_gets_no_byte(page: Page) -> None:
    victim, thief = page.others[1], page.bob
    place = page.folder / str(victim.uid)
    token = f"{victim.uid}.{'x' * 43}"
    own = thief.home / "listens.sock"
    thief.home.chmod(0o755)
    program = planted(page, thief, own)
    try:
        place.mkdir()
        os.chown(place, thief.uid, thief.uid)
        refused = page.server.ask("/api/v1/jobs", token=token)
        assert refused.status == 403 and f"belongs to uid {thief.uid}" in refused.json["message"]
        os.chown(place, victim.uid, victim.uid)
        place.chmod(0o777)
        refused = page.server.ask("/api/v1/jobs", token=token)
        assert refused.status == 403 and "open to other users" in refused.json["message"]
        place.chmod(0o711)
        (place / "agent.sock").symlink_to(own)
        refused = page.server.ask("/api/v1/jobs", token=token)
        assert refused.status == 403
        assert f"uid {thief.uid} listens in the place of uid {victim.uid}" in refused.json["message"]
        (place / "agent.sock").unlink()
        place.rmdir()
        place.symlink_to(thief.home)
        assert page.server.ask("/api/v1/jobs", token=token).status == 503
        assert program.stdout is not None and program.stdout.readline() == "got 0\n"
    finally:
        program.kill()
        program.communicate()
        place.unlink()


def test_a_user_whose_place_is_taken_learns_by_whom(page: Page) -> None:
    user, place = page.others[1], page.folder / str(page.others[1].uid)
    place.mkdir()
    os.chown(place, page.bob.uid, page.bob.uid)
    done = user.trainworks("serve", "--join", str(page.folder))
    place.rmdir()
    assert done.returncode == 2
    assert f"belongs to uid {page.bob.uid}" in done.stderr and f"rm -r {place}" in done.stderr


def test_a_second_server_of_a_member_is_refused(page: Page) -> None:
    done = page.ann.trainworks("serve", "--join", str(page.folder))
    assert done.returncode == 3 and "has joined" in done.stderr


def test_root_neither_joins_nor_serves_a_team(page: Page, tmp_path: Path) -> None:
    root = User(0, tmp_path, page.ann.env)
    joined = root.trainworks("serve", "--join", str(page.folder))
    assert joined.returncode == 3 and "no jobs of root" in joined.stderr
    access = tmp_path / "access.yaml"
    access.write_text(json.dumps({"team": {"folder": str(page.folder)}}))
    access.chmod(0o600)
    served = root.trainworks("serve", "--access", str(access), "--listen", "127.0.0.1:0")
    assert served.returncode == 3 and "does not run as root" in served.stderr


def test_a_hostile_server_of_a_member_brings_neither_scripts_nor_cookies_nor_other_sites(page: Page) -> None:
    member = page.others[2]
    answer = (
        "HTTP/1.1 303 See Other\\r\\nContent-Length: 2\\r\\nContent-Type: text/html\\r\\n"
        "Content-Security-Policy: script-src *\\r\\nLocation: https://evil.example/\\r\\n"
        "Service-Worker-Allowed: /\\r\\n"
        f"Set-Cookie: trainworks-{page.server.port}=stolen\\r\\nSet-Cookie: trainworks-columns=job\\r\\n"
        "Cache-Control: public, max-age=1000\\r\\nAccess-Control-Allow-Origin: *\\r\\n\\r\\nhi"
    )
    program = member.popen_program([sys.executable, "-c", HOSTILE, str(page.folder), answer])
    assert program.stdout is not None and program.stdout.readline() == "listens\n"
    token = f"{member.uid}.{'s' * 43}"
    cookie = f"trainworks-{page.server.port}={token}; trainworks-columns=run; other=secret"
    got = page.server.ask(
        "/x?a=%20b", token=None, Cookie=cookie, X_Forwarded_User="root", Origin=f"http://127.0.0.1:{page.server.port}"
    )
    try:
        request = "".join(iter(program.stdout.readline, "end of request\n"))
    finally:
        program.kill()
        program.communicate()
    assert (got.status, got.text) == (303, "hi")
    assert got.headers["set-cookie"] == "trainworks-columns=job"
    assert not {"location", "service-worker-allowed", "access-control-allow-origin"} & got.headers.keys()
    assert got.headers["cache-control"] == "no-store"
    assert f"script-src 127.0.0.1:{page.server.port}/static/;" in got.headers["content-security-policy"]
    assert request.startswith("GET /x?a=%20b HTTP/1.1")
    sent = dict(re.findall(r"(?m)^([a-z-]+): (.*?)\r?$", request))
    assert sent == {
        "host": "localhost",
        "connection": "close",
        "content-length": "0",
        "authorization": f"Bearer {'s' * 43}",
        "cookie": "trainworks-columns=run",
        "trainworks-role": "SUBMITTER",
    }


def test_scripts_and_styles_come_from_the_shared_server(page: Page) -> None:
    page.ask(page.ann, "/")
    assert page.server.ask("/static/live.js", token=page.tokens[page.ann.uid]).status == 200
    user = page.others[0]  # whose server does not run
    assert page.server.ask("/static/live.js", token=f"{user.uid}.{'x' * 43}").status == 200


def test_a_page_of_another_site_neither_acts_nor_signs_in(page: Page) -> None:
    token = page.tokens[page.ann.uid]
    cookie = f"trainworks-{page.server.port}={token}"
    forged = page.server.ask(
        "/submit", method="POST", token=None, Cookie=cookie, Sec_Fetch_Site="cross-site", body="text=x"
    )
    assert forged.status == 403
    assert page.server.ask(f"/?token={token}", token=None, Sec_Fetch_Site="cross-site").status == 401
    signed_in = page.server.ask(f"/?token={token}", token=None, Sec_Fetch_Site="none")
    assert signed_in.status == 303 and signed_in.headers["set-cookie"].startswith(cookie)
    assert page.server.ask("/", token=None, Cookie=cookie).status == 200


@pytest.mark.parametrize("path", ["/runs/..%2f..%2fetc%2fpasswd", "/api/v1/runs/..%2F..%2Fetc", "/runs/%2e%2e"])
def test_no_path_leads_out_of_the_folder_of_runs(page: Page, path: str) -> None:
    assert page.ask(page.ann, path).status == 404


def test_pages_of_members_stay_up_to_date(page: Page) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", page.server.port, timeout=PATIENCE_S)
    connection.request("GET", "/live", headers={"Authorization": f"Bearer {page.tokens[page.ann.uid]}"})
    stream = connection.getresponse()
    assert stream.readline() == b"retry: 3000\n"
    page.submit(page.bob, "seen", "true")
    lines = iter(stream.readline, b"event: changed\n")
    assert all(line.startswith((b":", b"\n")) for line in lines)
    connection.close()


def test_the_address_of_another_user_is_not_believed(page: Page, tmp_path: Path) -> None:
    from trainworks.serve.team_folder import TeamFolder

    folder = tmp_path / "team"
    folder.mkdir()
    folder.chmod(0o1777)
    lure = folder / "address"
    lure.write_text("https://evil.example/\n")
    assert TeamFolder(folder).address() == "https://evil.example/", "of the owner of the folder"
    os.chown(lure, page.bob.uid, page.bob.uid)
    assert TeamFolder(folder).address() is None
    TeamFolder(folder).publish("https://train.example/")
    assert TeamFolder(folder).address() == "https://train.example/"


def test_a_folder_in_which_users_can_replace_each_other_is_refused(page: Page) -> None:
    folder = page.folder.parent / "open"
    folder.mkdir()
    folder.chmod(0o777)
    done = page.others[0].trainworks("serve", "--join", str(folder))
    assert done.returncode == 2 and f"chmod +t {folder}" in done.stderr
    assert not any(folder.iterdir())


def test_a_member_stops_ticked_jobs_in_a_browser_that_runs_the_scripts_of_the_page(page: Page) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or pytest.skip("no Chromium: apt-get install chromium")
    page.submit(page.bob, "ticked", "sleep 600")
    problems: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=240_000)
        tab = browser.new_page()
        tab.set_default_timeout(60_000)
        tab.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        tab.goto(f"http://127.0.0.1:{page.server.port}/?token={page.tokens[page.bob.uid]}")
        assert tab.url == f"http://127.0.0.1:{page.server.port}/"
        assert tab.evaluate("getComputedStyle(document.querySelector('nav.site')).display") == "flex", "its style"
        tab.get_by_label("Choose ticked-1").check()
        tab.get_by_role("button", name="Stop them").click()
        tab.get_by_role("button", name="Stop 1 run").click()
        assert tab.get_by_text("1 of 1 run asked to stop").is_visible()
        loaded = tab.evaluate("performance.getEntriesByType('resource').map(({ name }) => new URL(name).pathname)")
        assert "/static/live.js" in loaded
        browser.close()
    assert problems == []
