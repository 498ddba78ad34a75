"""Who may do what, and what no request can do."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from starlette.datastructures import Headers
from typer.testing import CliRunner

from tests.serve.conftest import PROXY, VIEWER, Server
from trainworks.cli.app import app
from trainworks.errors import ArgumentError, TrainworksError, UsageError
from trainworks.serve.access import Access, Role, TeamAccess, Visitor
from trainworks.serve.guard import is_host_of

RUN = {"run_file": "name: x\nrun: 'true'\n"}


@pytest.mark.parametrize("path", ["/", "/api/v1/jobs", "/api/v1/openapi.json", "/live", "/nowhere"])
def test_nothing_is_answered_without_a_token(server: Server, path: str) -> None:
    assert server.ask(path, token=None).status == 401
    assert server.ask(path, token="wrong-token-0123456").status == 401


def test_the_token_of_an_address_becomes_a_cookie_and_leaves_the_address(server: Server) -> None:
    answer = server.ask(f"/?state=live&token={VIEWER}", token=None)
    assert (answer.status, answer.headers["location"]) == (303, "/?state=live")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie
    assert server.ask("/", token=None, Cookie=cookie.partition(";")[0]).status == 200


def test_a_token_is_taken_from_the_form(server: Server) -> None:
    answer = server.ask("/login", method="POST", token=None, body=f"token={VIEWER}")
    assert (answer.status, answer.headers["location"]) == (303, "/")
    assert server.ask("/login", method="POST", token=None, body="token=wrong").status == 401


@pytest.mark.parametrize("path", ["//evil.example/%2e%2e", "/%5cevil.example", "//evil.example"])
def test_signing_in_never_leads_to_another_site(server: Server, path: str) -> None:
    answer = server.ask(f"{path}?token={VIEWER}", token=None)
    assert answer.status == 303
    assert not answer.headers["location"].startswith(("//", "/\\", "http"))


def test_a_viewer_changes_nothing(server: Server) -> None:
    assert server.post("/api/v1/jobs", RUN, token=VIEWER).status == 403
    assert server.post("/api/v1/jobs/1/stop", token=VIEWER).status == 403
    assert server.ask("/submit", token=VIEWER).status == 403
    assert "Submit" not in server.ask("/", token=VIEWER).text


def test_a_role_in_the_request_lowers_that_of_its_token_and_raises_none(server: Server) -> None:
    assert server.post("/api/v1/jobs", RUN, token=VIEWER, Trainworks_Role="admin").status == 403
    for role in ("viewer", "VIEWER", "nobody"):
        assert server.post("/api/v1/jobs", RUN, Trainworks_Role=role).status == 403


def test_a_token_of_a_member_opens_nothing_where_no_team_is(server: Server) -> None:
    assert server.ask("/api/v1/jobs", token=f"1001.{'x' * 43}").status == 401
    assert server.ask(f"/?token=1001.{'x' * 43}", token=None).status == 401


def test_beside_a_team_the_users_of_a_proxy_read_until_they_sign_in_to_a_server_of_their_own(tmp_path: Path) -> None:
    proxy = {"token": PROXY, "admins": ["alice"]}
    access = Access.model_validate({"team": {"folder": str(tmp_path)}, "proxy": proxy})
    assert access.visitor(PROXY, "alice") == Visitor(Role.VIEWER, "alice")


def test_users_who_are_not_listed_and_root_are_not_members() -> None:
    team = TeamAccess.model_validate({"folder": "/team", "members": {7: "admin", "8": "viewer"}})
    assert [team.role_of(uid) for uid in (7, 8, 9, 0)] == [Role.ADMIN, Role.VIEWER, None, None]
    everyone = TeamAccess(folder=Path("/team"))
    assert [everyone.role_of(uid) for uid in (9, 0)] == [Role.SUBMITTER, None]


def test_a_user_whom_the_proxy_names_cannot_submit_as_the_server(server: Server) -> None:
    answer = server.post("/api/v1/jobs", RUN, token=PROXY, X_Forwarded_User="alice")
    assert answer.status == 403
    assert "would run as" in answer.json["message"]


@pytest.mark.parametrize("user", [None, "mallory"])
def test_the_proxy_alone_opens_nothing(server: Server, user: str | None) -> None:
    headers = {"X_Forwarded_User": user} if user else {}
    assert server.ask("/api/v1/jobs", token=PROXY, **headers).status == 401


def test_a_user_header_without_the_token_of_the_proxy_means_nothing(server: Server) -> None:
    assert server.ask("/api/v1/jobs", token=None, X_Forwarded_User="root-of-the-lab").status == 401
    assert server.post("/api/v1/jobs", RUN, token=VIEWER, X_Forwarded_User="root-of-the-lab").status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
def test_a_page_of_another_site_cannot_send_a_form(server: Server, headers: dict[str, str]) -> None:
    answer = server.ask("/submit", method="POST", body="text=name%3A+x%0Arun%3A+true", **headers)
    assert answer.status == 403
    assert server.ask("/api/v1/jobs?text=x-1").json["jobs"] == []


def test_a_page_of_this_site_can_send_a_form(server: Server) -> None:
    answer = server.ask(
        "/submit",
        method="POST",
        body="text=",
        Origin=f"http://127.0.0.1:{server.port}",
        Host=f"127.0.0.1:{server.port}",
    )
    assert answer.status == 422


@pytest.mark.parametrize(
    "path",
    [
        "/runs/..",
        "/runs/../../etc/passwd",
        "/runs/..%2f..%2fetc%2fpasswd",
        "/runs/%2e%2e",
        "/api/v1/runs/..%2F..%2Fetc",
        "/api/v1/runs/%00",
        "/api/v1/runs/.",
        "/static/..%2fapp.py",
        "/static/../app.py",
    ],
)
def test_no_path_leads_out_of_the_folder_of_runs(server: Server, path: str) -> None:
    answer = server.ask(path)
    assert answer.status == 404
    assert "root:" not in answer.text


@pytest.mark.parametrize(
    "log", ["..", "..%2f..%2frun.yaml", "resolved", "rank-0%2f..%2f..%2fx", "rank--1", "rank-0.log"]
)
def test_only_logs_are_read_as_logs(server: Server, trained: str, log: str) -> None:
    assert server.ask(f"/api/v1/runs/{trained}/logs/{log}").status == 404


def test_a_log_that_is_a_link_is_not_followed(server: Server, trained: str) -> None:
    link = server.runs / trained / "logs" / "rank-7.log"
    link.symlink_to("/etc/passwd")
    answer = server.ask(f"/api/v1/runs/{trained}/logs/rank-7")
    link.unlink()
    assert answer.status == 404


def test_a_run_that_is_a_link_out_of_the_folder_is_not_found(server: Server, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (server.runs / "outside").symlink_to(tmp_path)
    assert server.ask("/runs/outside").status == 404


def test_html_in_a_request_is_shown_as_text(server: Server) -> None:
    page = server.ask("/?text=%22%3E%3Cscript%3Ealert(1)%3C/script%3E").text
    assert "<script>alert" not in page
    page = server.ask("/runs/%3Cscript%3Ealert(1)%3C%2Fscript%3E").text
    assert "<script>alert" not in page


def test_every_answer_forbids_scripts_of_others_and_frames(server: Server) -> None:
    for path in ("/", "/nowhere", "/api/v1/jobs", "/login"):
        policy = server.ask(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy


@pytest.mark.parametrize(
    "host",
    [
        "rebound.example",
        "rebound.example:8765",
        "127.0.0.1.rebound.example",
        "localhost.rebound.example",
        "",
        "[::1",
        "a b",
    ],
)
def test_a_name_of_another_site_that_points_at_this_machine_is_refused(server: Server, host: str) -> None:
    for path in ("/", "/login", "/static/live.js"):
        answer = server.ask(path, Host=host)
        assert answer.status in (400, 421), "400: the name is not even one"
        assert "<html" not in answer.text


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9999", "127.0.0.1:1", "[::1]:8765", "10.1.2.3", "train.example"]
)
def test_addresses_and_own_names_are_served_through_any_forwarded_port(server: Server, host: str) -> None:
    assert server.ask("/", Host=host).status == 200


def test_two_hosts_in_one_request_are_refused() -> None:
    assert not is_host_of(Headers(raw=[(b"host", b"localhost"), (b"host", b"rebound.example")]), ["localhost"])


def test_a_large_request_is_refused(server: Server) -> None:
    assert server.post("/api/v1/jobs", {"run_file": "x" * (2 << 20)}).status == 413


def test_other_machines_need_an_access_file() -> None:
    with pytest.raises(UsageError, match="admits other machines"):
        command("--listen", "0.0.0.0:0")


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        ("tokens: {viewer: aaaaaaaaaaaaaaaaaaaa}", 0o644, "other users can read"),
        ("tokens: {viewer: short}", 0o600, "shorter than 16"),
        ("tokens: {guest: aaaaaaaaaaaaaaaaaaaa}", 0o600, "tokens.guest"),
        ("tokens: {viewer: aaaaaaaaaaaaaaaaaaaa, admin: aaaaaaaaaaaaaaaaaaaa}", 0o600, "two tokens are equal"),
        ("{}", 0o600, "neither"),
        ("team: {folder: team}", 0o600, "not absolute"),
        ("team: {folder: /team, members: {ann: root}}", 0o600, "team.members.ann"),
        ("{team: {folder: /team}, tokens: {submitter: aaaaaaaaaaaaaaaaaaaa}}", 0o600, "only a viewer has a token"),
        ("[", 0o600, "not YAML"),
    ],
)
def test_a_bad_access_file_is_refused(tmp_path: Path, content: str, mode: int, problem: str) -> None:
    file = tmp_path / "access.yaml"
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises((ArgumentError, UsageError), match=problem):
        command("--access", str(file))


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(TrainworksError, match="is in use"):
            command("--listen", f"127.0.0.1:{taken.getsockname()[1]}")


def test_a_server_that_joins_a_team_listens_nowhere_else(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in its folder alone"):
        command("--join", str(tmp_path), "--listen", "127.0.0.1:0")


def command(*arguments: str) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
