"""Describe the nodes of a cluster from a list of hosts and from their BMCs."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainworks.config.source import read_text
from trainworks.deploy.inventory import complaints, groups_of, hosts_behind, inventory_yaml, read_hosts
from trainworks.deploy.redfish import BmcLogin, BmcReport, read_bmcs
from trainworks.errors import ArgumentError, UnreachableError, UsageError
from trainworks.host.listening import read_secret
from trainworks.measure.health.node_health import odd_ones_out


@dataclass(frozen=True, slots=True)
class Inventory:
    """The nodes of a cluster as a stack file has them."""

    text: str
    """`nodes:`, below what the hosts of a group do not have in common, and settings that training suffers from."""
    unanswered: tuple[str, ...]
    """BMCs without a report, each with the reason."""


def bmc_login(user: str, password_file: Path | None = None, ca: Path | None = None) -> BmcLogin:
    """The login of BMCs: the password is in a file that its owner alone reads, else in TRAINWORKS_BMC_PASSWORD.

    Raises:
        UsageError: the password is missing, or others can read it.
        ArgumentError: `ca` cannot be read.
    """
    password = os.environ.get("TRAINWORKS_BMC_PASSWORD", "")
    if password_file is not None:
        password = read_secret(password_file, argument="password_file").strip()
    if not password:
        raise UsageError("no password of the BMCs", hint="set TRAINWORKS_BMC_PASSWORD, or name a `--password-file`")
    try:
        ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise ArgumentError(f"no certificate in `{ca}`: {error.strerror or error}", argument="ca") from None
    return BmcLogin(user, password, ca)


def take_inventory(hosts: Path | None, bmcs: Sequence[str] = (), login: BmcLogin | None = None) -> Inventory:
    """Describe the hosts of a list, or those behind some BMCs, as groups of a stack file.

    Args:
        hosts: CSV with the columns `host`, `address`, and where known `bmc`, `model`, `mac`, `serial`.
        bmcs: addresses of BMCs, `https://10.0.0.1`, in place of a list.
        login: how BMCs are asked; None asks none.

    Raises:
        UsageError: the list cannot be read, or has a wrong value, or neither a list nor BMCs are given.
    """
    found = read_hosts(read_text(hosts, "list of hosts"), hosts.name) if hosts else []
    reports = read_bmcs([host.bmc for host in found if host.bmc] or bmcs, login) if login else {}
    known = {bmc: report for bmc, report in reports.items() if isinstance(report, BmcReport)}
    found = [replace(host, report=known.get(host.bmc)) for host in (found if hosts else hosts_behind(known))]
    unanswered = tuple(f"{bmc}: {report}" for bmc, report in reports.items() if isinstance(report, str))
    notes = [*unanswered, *(f"{bmc}: no {one}" for bmc, report in known.items() for one in report.unread)]
    notes += [f"{host.name}: {one}" for host in found for one in complaints(host)]
    if not found and unanswered:
        raise UnreachableError(f"no BMC gave a report; {unanswered[0]}", hint="check the address, `--user` and `--ca`")
    if not found:
        raise UsageError("no host is known", hint="write a CSV with `host,address`, or name BMCs")
    groups = groups_of(found)
    for group in groups:
        for odd in odd_ones_out({host.name: host.facts for host in group if host.report}):
            usual = f", and {odd.usual} on most" if odd.usual else ""
            notes.append(f"{', '.join(odd.nodes)}: {odd.fact} is {odd.value or 'not reported'}{usual}")
    return Inventory(inventory_yaml(groups, notes), unanswered)
