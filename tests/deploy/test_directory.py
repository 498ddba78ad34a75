"""Users of a directory: what nodes ask it, over what, and what they know of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from trainworks.api.deploying import render_stack
from trainworks.config.stack import Stack, load_stack
from trainworks.deploy.delivered import DeliveredFile, delivered_files
from trainworks.deploy.playbook import Answer
from trainworks.deploy.verification import probe, services_of, verify
from trainworks.errors import RunFileError

EXAMPLE = Path("examples/cluster/stack-groups.yaml")
STACK, _ = load_stack(EXAMPLE)
FILES = render_stack(EXAMPLE)
SSSD = "roles/directory/templates/sssd.conf.j2"
CA = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def changed(tmp_path: Path, old: str, new: str) -> Path:
    """The example with another text."""
    text = EXAMPLE.read_text()
    assert old in text
    (tmp_path / "stack.yaml").write_text(text.replace(old, new))
    return tmp_path / "stack.yaml"


def settings(text: str) -> dict[str, str]:
    """Values of sssd.conf, whose sections share no key."""
    lines = (line.partition(" = ") for line in text.splitlines() if not line.startswith("#"))
    return {key: value for key, separator, value in lines if separator}


def test_nodes_ask_over_tls_alone_and_list_nobody() -> None:
    found = settings(FILES[SSSD])
    assert found["ldap_uri"] == "ldaps://ldap1.example.org, ldaps://ldap2.example.org"
    assert (found["ldap_tls_reqcert"], found["enumerate"], found["min_id"]) == ("demand", "false", "1000")
    assert (found["access_provider"], found["simple_allow_groups"]) == ("simple", "train")
    assert found["ldap_default_authtok"] == "{{ directory_password }}"
    assert "deploy" in found["filter_users"].split(", ")


def test_starttls_on_the_plain_port_with_an_authority_of_the_site_and_no_login(tmp_path: Path) -> None:
    authority = CA.replace("\n", "\n    ")
    new = f"tls: starttls\n  ca: |\n    {authority}"
    files = render_stack(changed(tmp_path, "bind: cn=nodes,ou=services,dc=example,dc=org\n  groups: [train]", new))
    found = settings(files[SSSD])
    assert (found["ldap_uri"].split(", ")[0], found["ldap_id_use_start_tls"]) == ("ldap://ldap1.example.org", "true")
    assert (found["access_provider"], "ldap_default_bind_dn" in found) == ("permit", False)
    assert yaml.safe_load(files["group_vars/all.yaml"])["directory_password"] == ""
    host = delivered_files(load_stack(tmp_path / "stack.yaml")[0], files, {})["login1"]
    assert host[found["ldap_tls_cacert"]].text == CA
    assert host["/etc/sssd/sssd.conf"].text == files[SSSD], "no password is missing"


def test_the_password_is_in_no_file_and_no_difference() -> None:
    assert "lookup('ansible.builtin.file'" in yaml.safe_load(FILES["group_vars/all.yaml"])["directory_password"]
    tasks = {each["name"]: each for each in yaml.safe_load(FILES["roles/directory/tasks/main.yaml"])}
    assert tasks["Configure sssd"]["diff"] is False
    unknown = delivered_files(STACK, FILES, {})["gpu1"]
    assert unknown["/etc/sssd/sssd.conf"] == DeliveredFile("/etc/sssd/sssd.conf", None, "600")
    known = delivered_files(STACK, FILES, {"directory.password": b"hidden\n"})["gpu1"]["/etc/sssd/sssd.conf"]
    assert "ldap_default_authtok = hidden\n" in str(known.text)
    assert "hidden" not in str(known.difference("ab 644 root:root"))


def test_users_of_the_directory_have_accounts_and_are_created_by_no_role() -> None:
    script = FILES["roles/scheduler/files/accounts.sh"]
    assert "add user carol account=research" in script
    users = {each["name"]: each["uid"] for each in yaml.safe_load(FILES["group_vars/all.yaml"])["users"]}
    assert users == {"alice": 2001, "carol": None}
    create, *_ = yaml.safe_load(FILES["roles/users/tasks/main.yaml"])
    assert create["loop"] == "{{ users | selectattr('uid') }}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{name: carol,", "{name: carol, keys: [ssh-ed25519 AAAA],", "the keys of `carol` are those of the directory"),
        ("ldap1.example.org", "ldaps://ldap1", "text that matches"),
        ("cn=nodes,ou=services,dc=example,dc=org", '"cn={{ lookup(1) }}"', "text that matches"),
        ("cn=nodes,ou=services,dc=example,dc=org", '"cn=a\\nldap_tls_reqcert = never"', "text that matches"),
        ("groups: [train]", "ca: text", "text that matches"),
    ],
)
def test_what_sssd_must_not_read_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(RunFileError, match=message):
        load_stack(changed(tmp_path, old, new))


def test_jobs_find_a_home_on_nodes_that_have_their_own(tmp_path: Path) -> None:
    shared = changed(
        tmp_path, "mounts:\n", "mounts:\n  - {kind: nfs, at: /home, server: store1, export: /export/home}\n"
    )
    makes = {
        files is FILES: [path for path, text in files.items() if "mkhomedir_helper" in text]
        for files in (FILES, render_stack(shared))
    }
    assert makes[True] and all(path.endswith("/prolog.sh") for path in makes[True]) and makes[False] == []


def test_a_stack_without_a_directory_has_no_user_without_a_number() -> None:
    data = yaml.safe_load(EXAMPLE.read_text())
    del data["directory"]
    with pytest.raises(ValueError, match="the user `carol` has no `uid`"):
        Stack.model_validate(data)


@pytest.mark.parametrize(("uid", "outcome", "found"), [("70001", "pass", "70001"), ("", "fail", "nothing")])
def test_verify_looks_the_users_up_on_each_node(uid: str, outcome: str, found: str) -> None:
    assert 'say user carol "$(id --user carol 2> /dev/null)"' in probe(STACK, [])
    lines = ["os\t\tubuntu 24.04", "clock\t\t0.0,Normal", "user\talice\t2001", f"user\tcarol\t{uid}"]
    lines += [f"service\t{name}\tactive" for name in services_of(STACK, "store1")]
    judged = verify(STACK, {"store1": {}}, {"store1": Answer(0, "\n".join(lines) + "\n")}).verdicts
    verdicts = {each.check: each for each in judged}
    assert verdicts["service sssd"].outcome == "pass"
    assert (verdicts["user carol"].outcome, verdicts["user carol"].found) == (outcome, found)


@pytest.mark.skipif(shutil.which("sssctl") is None, reason="needs sssctl of the package sssd-tools")
def test_sssd_knows_every_setting(tmp_path: Path) -> None:
    (tmp_path / "sssd.conf").write_text(FILES[SSSD])
    (tmp_path / "sssd.conf").chmod(0o600)
    command = ["sssctl", "config-check", "--config", tmp_path / "sssd.conf", "--snippet", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Issues identified by validators: 0" in done.stdout, done.stdout
