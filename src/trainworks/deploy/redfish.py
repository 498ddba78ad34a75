"""Servers as their BMCs describe them, over Redfish: processors, memory, accelerators, adapters, firmware, settings.

Requests only read. What a BMC says is not trusted: names are stripped of what is not printable, answers have a limit,
and links are followed below `/redfish/` of the same BMC alone.

Protocol: DMTF DSP0266. Shapes of the answers: DMTF DSP2046.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Resource = Mapping[str, Any]
_ANSWER_BYTES = 16 * 2**20
_MOST_RESOURCES = 4000
_MOST_LETTERS = 120
_PARALLEL = 32
_MAC = re.compile(r"[0-9a-f][048c](?::[0-9a-f]{2}){5}")
"""An address of a manufacturer, for one receiver; that of the link between BMC and system is a local one."""
_OTHER_IMAGE = re.compile(r"backup|golden|staging|pending|previous|installed", re.IGNORECASE)
"""Entries of the firmware inventory that do not run: spare copies, and updates that wait for a restart."""
_OF_ONE_BOARD = re.compile(r"[\s-]*(?:[0-9a-f]{2}:){5}[0-9a-f]{2}|\s+$", re.IGNORECASE)


class RedfishError(Exception):
    """A BMC does not give a resource; the message is one line."""


@dataclass(frozen=True, slots=True)
class BmcLogin:
    """How BMCs are asked."""

    user: str
    password: str = field(repr=False)
    ca: Path | None = None
    """Certificates of the authority that signed those of the BMCs; those of the operating system when None."""
    answer_s: float = 15.0
    """Longest wait for a connection, and for the next bytes of an answer."""
    total_s: float = 180.0
    """Longest time that one BMC is asked altogether."""


@dataclass(frozen=True, slots=True)
class BmcReport:
    """A server as its BMC describes it; empty or 0 where the BMC does not say."""

    host: str
    model: str
    serial: str
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    memory_bytes: int
    """Memory that is installed."""
    accelerators: tuple[str, ...]
    """Models of the GPUs; of all PCIe devices where the BMC counts no GPU among the processors."""
    adapters: tuple[str, ...]
    macs: tuple[str, ...]
    addresses: tuple[str, ...]
    """IPv4 addresses of the operating system's interfaces."""
    settings: Mapping[str, str]
    """Attributes of the BIOS, under the names of the vendor."""
    firmware: Mapping[str, str]
    """Version of each part that runs."""
    unread: tuple[str, ...]
    """Resources that the BMC names and does not give, each with the reason."""


def read_bmcs(addresses: Iterable[str], login: BmcLogin) -> dict[str, BmcReport | str]:
    """Ask BMCs, `https://10.0.0.1`, 32 at a time; for each its report, or a line that says why there is none."""
    context = ssl.create_default_context(cafile=login.ca)
    unique = list(dict.fromkeys(addresses))
    with ThreadPoolExecutor(_PARALLEL) as threads:
        return dict(zip(unique, threads.map(lambda each: _read(each, login, context), unique), strict=True))


def word(value: object) -> str:
    """A value of another program as one line of printable letters, without blanks around it."""
    letters = (letter if letter.isprintable() else " " for letter in str("" if value is None else value))
    return " ".join("".join(letters).split())[:_MOST_LETTERS]


def _read(address: str, login: BmcLogin, context: ssl.SSLContext) -> BmcReport | str:
    try:
        with closing(_Bmc(address, login, context)) as bmc:
            root = bmc.get("/redfish/v1/")
            bmc.expands = bool((root.get("ProtocolFeaturesSupported") or {}).get("ExpandQuery", {}).get("NoLinks"))
            return _report(bmc, root)
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not trusted: {error.verify_message}"
    except TimeoutError:
        return f"no answer within {login.answer_s:g} s, or not all of them within {login.total_s:g} s"
    except (RedfishError, OSError, http.client.HTTPException) as error:
        return word(getattr(error, "strerror", None) or error) or "the connection failed"
    except (TypeError, ValueError, AttributeError):
        return "it answers in another form than Redfish"


def _report(bmc: _Bmc, root: Resource) -> BmcReport:
    systems = list(bmc.members(root, "Systems"))
    if not systems:
        raise RedfishError("it knows no system")
    chassis = list(bmc.members(root, "Chassis"))

    def boards(key: str) -> tuple[str, ...]:
        return tuple(word(each.get("Model") or each.get("Name")) for one in chassis for each in bmc.members(one, key))

    def processors(kind: str) -> list[list[Resource]]:
        """Those of a kind by system: the board of the GPUs may be one of its own, with the host's processors again."""
        parts = [[each for each in bmc.members(system, "Processors") if _is_present(each)] for system in systems]
        return [[each for each in found if each.get("ProcessorType") == kind] for found in parts]

    first = next((each for each in systems if each.get("Bios") or each.get("BiosVersion")), systems[0])
    cpus, gpus = next(filter(None, processors("CPU")), []), max(processors("GPU"), key=len)
    cores, threads = (sum(int(each.get(key) or 0) for each in cpus) for key in ("TotalCores", "TotalThreads"))
    modules = [int(each.get("CapacityMiB") or 0) for each in bmc.members(first, "Memory") if _is_present(each)]
    installed = (first.get("MemorySummary") or {}).get("TotalSystemMemoryGiB") or 0
    interfaces = list(bmc.members(first, "EthernetInterfaces"))
    macs = [str(each.get("PermanentMACAddress") or each.get("MACAddress") or "").lower() for each in interfaces]
    bios = {"BIOS": word(first["BiosVersion"])} if first.get("BiosVersion") else {}
    return BmcReport(
        host=word(first.get("HostName")),
        model=word(first.get("Model")),
        serial=word(first.get("SerialNumber")),
        sockets=len(cpus),
        cores_per_socket=cores // len(cpus) if cpus else 0,
        threads_per_core=max(1, threads // cores) if cores else 0,
        memory_bytes=sum(modules) * 2**20 or int(float(installed) * 2**30),
        accelerators=tuple(word(each["Model"]) for each in gpus if each.get("Model")) or boards("PCIeDevices"),
        adapters=boards("NetworkAdapters"),
        macs=tuple(dict.fromkeys(mac for mac in macs if _MAC.fullmatch(mac))),
        addresses=tuple(word(ip.get("Address")) for each in interfaces for ip in each.get("IPv4Addresses") or ()),
        settings={word(key): word(value) for key, value in (bmc.linked(first, "Bios").get("Attributes") or {}).items()},
        firmware=_firmware(bmc, root) | bios,
        unread=tuple(bmc.unread),
    )


def _firmware(bmc: _Bmc, root: Resource) -> dict[str, str]:
    """Versions by part; parts of one name, such as the ports of an adapter, together."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for each in bmc.members(bmc.linked(root, "UpdateService"), "FirmwareInventory"):
        key, name, version = (word(each.get(key)) for key in ("Id", "Name", "Version"))
        if version and not _OTHER_IMAGE.search(key):
            found[_OF_ONE_BOARD.sub("", name if key.isdigit() or "__" in key else key)].add(version)
    return {name: ", ".join(sorted(versions)) for name, versions in sorted(found.items())}


def _is_present(part: Resource) -> bool:
    return (part.get("Status") or {}).get("State") != "Absent"


class _Bmc:
    """One connection, over which each resource is read once."""

    def __init__(self, address: str, login: BmcLogin, context: ssl.SSLContext) -> None:
        at = urlsplit(address)
        if at.scheme != "https" or not at.hostname:
            raise RedfishError("its address is not `https://HOST`")
        self._ends = time.monotonic() + login.total_s
        self._connection = http.client.HTTPSConnection(at.hostname, at.port, timeout=login.answer_s, context=context)
        token = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
        self._headers = {"Accept": "application/json", "OData-Version": "4.0", "Authorization": f"Basic {token}"}
        self._seen: dict[str, Resource] = {}
        self.close = self._connection.close
        self.expands = False
        """Whether the BMC gives the members of a collection with it."""
        self.unread: list[str] = []

    def linked(self, resource: Resource, key: str) -> Resource:
        """The resource that a property links to; empty if there is none."""
        link = (resource.get(key) or {}).get("@odata.id")
        return self._optional(str(link)) if link else {}

    def members(self, resource: Resource, key: str) -> Iterator[Resource]:
        """The members of a collection that a property links to, over all its pages, or of a list of links."""
        value = resource.get(key) or {}
        page: Resource = {"Members": value} if isinstance(value, list) else {}
        if path := "" if page else str(value.get("@odata.id") or ""):
            page = self._optional(f"{path}?$expand=.($levels=1)") if self.expands else {}
            page = page if "Members" in page else self._optional(path)
        pages: set[str] = set()
        while page:
            for each in page.get("Members") or ():
                # a member that was not expanded is a link alone
                yield each if len(each) > 1 else self._optional(str(each.get("@odata.id")))
            path = str(page.get("Members@odata.nextLink") or page.get("@odata.nextLink") or "")
            page = self._optional(path) if path and path not in pages else {}
            pages.add(path)

    def _optional(self, path: str) -> Resource:
        """A resource; empty, with a line in `unread`, where the BMC answers and does not give it."""
        if path not in self._seen:
            try:
                self._seen[path] = self.get(path)
            except RedfishError as error:
                self._seen[path] = {}
                self.unread += [] if "$expand" in path else [f"{word(path)}: {error}"]
        return self._seen[path]

    def get(self, path: str) -> Resource:
        """A resource, from the BMC."""
        if not path.startswith("/redfish/") or len(self._seen) > _MOST_RESOURCES:
            raise RedfishError("no resource, or one too many")
        try:
            status, text = self._answer(path)
        except (http.client.RemoteDisconnected, http.client.CannotSendRequest, BrokenPipeError, ConnectionResetError):
            self.close()  # a kept connection that the BMC has closed
            status, text = self._answer(path)
        if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            raise PermissionError(status, f"it does not accept the user and the password (HTTP {status})")
        if status != http.client.OK:
            raise RedfishError(f"it answers with HTTP {status}")
        try:
            found = json.loads(text)
        except ValueError:
            raise RedfishError("it answers with no JSON, or with a part of it") from None
        return found if isinstance(found, dict) else {}

    def _answer(self, path: str) -> tuple[int, bytes]:
        self._connection.request("GET", path, headers=self._headers)
        response = self._connection.getresponse()
        text = b""
        while piece := response.read1(65536):
            text += piece
            if len(text) > _ANSWER_BYTES or time.monotonic() > self._ends:
                raise TimeoutError
        response.close()  # the connection is free for the next request
        return response.status, text
