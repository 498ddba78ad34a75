"""The `nodes` of a stack file from a list of hosts, and from what their BMCs report.

Hosts of equal hardware are one group. A host with less memory than the others, or with another firmware, stays in its
group, and a note names it.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address
from itertools import groupby

from trainworks.catalog.catalog import find_row, has, names, node
from trainworks.catalog.names import normal_name
from trainworks.config.slurm.sbatch_amounts import expand_nodes
from trainworks.config.source import FieldPath
from trainworks.config.stack_parts.nodes import Hardware, NodeGroup
from trainworks.config.stack_parts.words import FILL_IN
from trainworks.deploy.hardware import REPORTED_SHARE, hardware_of
from trainworks.deploy.proposed_stack import FIRST_COMPUTE, commented
from trainworks.deploy.redfish import BmcReport
from trainworks.errors import UsageError
from trainworks.jobs.formats.manifest import to_yaml

_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_MEMORY_MARGIN = 0.04
_SETTINGS = (
    ("hyper-threading", "LogicalProc ProcSMT ProcHyperthreading Hyper_Threading_ALL Processors_HyperThreading", ""),
    ("above 4G decoding", "MmioAbove4Gb Above4GDecoding", "Enable"),
    ("SR-IOV", "SriovGlobalEnable Sriov SR-IOVSupport SRIOVEnable DevicesandIOPorts_SRIOV", ""),
    ("ACS", "PCIeACSCTL Processors_PCIeACSCTL", "Disable"),
    ("IOMMU", "VTdSupport DevicesandIOPorts_IntelVTforDirectedIOVTd IOMMU", ""),
    ("NUMA nodes per socket", "NumaNodesPerSocket NumaMemoryDomainsPerSocket SubNumaCluster SNC Processors_SNC", ""),
    ("power profile", "SysProfile WorkloadProfile", "PerfOptimized|.*HighPerformanceCompute|.*MaxPerformance|Custom"),
)
"""BIOS settings, their names at Dell, HPE, Supermicro, Lenovo and NVIDIA, and how the value that training needs begins;
empty where nodes only have to agree. Supermicro adds a number to each name, `Above4GDecoding_0041`.

Names: servers of these vendors in NVIDIA/libredfish; NumaNodesPerSocket and ProcHyperthreading are recalled.
ACS: NVIDIA NCCL, troubleshooting, PCI access control services. Above 4G decoding: NVIDIA MLNX_OFED, features overview.
Power profiles: the vendors' for HPC, recalled in 2026-11."""


@dataclass(frozen=True, slots=True)
class InventoryHost:
    """A server of the list, and what its BMC says."""

    name: str
    address: IPv4Address | None
    bmc: str = ""
    model: str = ""
    mac: str = ""
    serial: str = ""
    report: BmcReport | None = None

    @property
    def accelerators(self) -> tuple[str, int]:
        """Accelerators of the catalogue, and how many; `("", 0)` if there are none."""
        found = Counter(map(_accelerator, self.report.accelerators if self.report else ()))
        del found[""]
        return found.most_common(1)[0] if found else ("", 0)

    @property
    def machine(self) -> str:
        """The machine of the catalogue with this model, and with these accelerators; empty if there is none."""
        if self.report is None:
            return find_row(self.model, "nodes").name if self.model and has("nodes", self.model) else ""
        model = normal_name(self.report.model)
        fitting = (each for each in names("nodes") if model and normal_name(each).startswith(model))
        return next(
            (each for each in fitting if (node(each).accelerator, node(each).accelerators) == self.accelerators), ""
        )

    @property
    def kind(self) -> str:
        """What the hosts of a group have in common, to compare by."""
        found = self.report
        counts = (found.model, found.sockets, found.cores_per_socket, found.threads_per_core) if found else self.model
        return repr((self.machine, self.accelerators, counts))

    @property
    def facts(self) -> dict[str, str]:
        """What the hosts of a group should have in common beside it."""
        if self.report is None:
            return {}
        return {
            "memory": f"{self.report.memory_bytes / 2**30:.0f} GiB",
            "adapters": ", ".join(
                f"{count}x {model}" for model, count in Counter(sorted(self.report.adapters)).items()
            ),
            **{name: value for name, value, _ in _settings(self.report)},
            **{f"firmware of {name}": version for name, version in self.report.firmware.items()},
        }


def complaints(host: InventoryHost) -> Iterator[str]:
    """What is wrong with one host alone: settings that training suffers from, or the BMC of another server."""
    found = host.report
    if found is None:
        return
    wrong = [f"{name} {value}" for name, value, is_fine in _settings(found) if not is_fine]
    if wrong:
        yield f"set in the BIOS: {', '.join(wrong)}"
    if found.serial and host.serial and found.serial != host.serial:
        yield f"{host.bmc} is the BMC of another server: its serial number is {found.serial}, not {host.serial}"
    if found.macs and host.mac and host.mac not in found.macs:
        yield f"{host.bmc} is the BMC of another server: it has no {host.mac}"


def _settings(report: BmcReport) -> Iterator[tuple[str, str, bool]]:
    """BIOS settings that matter: each with its value, and whether training can do with that."""
    plain = {re.sub(r"_+[0-9A-F]{4}$", "", name): value for name, value in report.settings.items()}
    for name, attributes, wanted in _SETTINGS:
        value = next((plain[each] for each in attributes.split() if each in plain), None)
        if value is not None:
            yield name, value, re.match(wanted, value.replace(" ", "")) is not None


def read_hosts(text: str, file: str) -> list[InventoryHost]:
    """The hosts of a CSV with a row of column names: `host`, `address`, and if known `bmc`, `model`, `mac`, `serial`.

    Raises:
        UsageError: a column or a value is missing, or is not valid, or two rows are of one host.
    """
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    if missing := {"host", "address"} - set(rows.fieldnames or ()):
        raise UsageError(f"no column `{min(missing)}`", place=f"{file}:1", hint="name the columns in the first row")
    found: dict[str, InventoryHost] = {}
    for row in rows:
        values = {key: value.strip() for key, value in row.items() if isinstance(value, str)}
        place, name = f"{file}:{rows.line_num}", values.get("host", "")
        address = _address(values.get("address", ""))
        if address is None:
            raise UsageError(f"`{values.get('address', '')}` is not an IPv4 address", place=place)
        if not _NAME.fullmatch(name) or name in found:
            raise UsageError(f"`{name}` is {'there twice' if name in found else 'not the name of a host'}", place=place)
        bmc, model, mac, serial = (values.get(key, "") for key in ("bmc", "model", "mac", "serial"))
        bmc = bmc if "://" in bmc or not bmc else f"https://{bmc}"
        found[name] = InventoryHost(name, address, bmc, model, mac.lower(), serial)
    return list(found.values())


def hosts_behind(reports: Mapping[str, BmcReport]) -> list[InventoryHost]:
    """Hosts that only their BMCs are known of, by its address; those without a name of their own are numbered."""
    found: dict[str, InventoryHost] = {}
    for number, (bmc, report) in enumerate(reports.items(), start=1):
        name = report.host.lower().partition(".")[0]
        name = name if _NAME.fullmatch(name) and name not in found else f"node{number:03}"
        addresses = (address for each in report.addresses if (address := _address(each)))
        address = next((each for each in addresses if not (each.is_link_local or each.is_unspecified)), None)
        found[name] = InventoryHost(name, address, bmc)
    return list(found.values())


def groups_of(hosts: Sequence[InventoryHost]) -> list[list[InventoryHost]]:
    """Hosts of equal hardware whose names and addresses follow each other, as a group of a stack file has them."""
    groups: list[list[InventoryHost]] = []
    ordered = sorted(hosts, key=lambda host: (host.kind, int(host.address or 0), host.name))
    for _, equal in groupby(ordered, key=lambda host: host.kind):
        groups.append([])
        for host in equal:
            if groups[-1] and not _follows(groups[-1], host):
                groups.append([])
            groups[-1].append(host)
    return groups


def inventory_yaml(groups: Sequence[Sequence[InventoryHost]], notes: Sequence[str]) -> str:
    """`nodes:` of a stack file below the notes, with marks where a person has to complete it."""
    described = [_described(group) for group in groups]
    comments: dict[FieldPath, str] = {
        ("nodes", index, key): text for index, (_, marks) in enumerate(described) for key, text in marks.items()
    }
    for data, _ in described:
        NodeGroup.model_validate(data)
    text = to_yaml({"nodes": [data for data, _ in described]}, is_short=True)
    return "".join(f"# {note}\n" for note in notes) + commented(text, comments)


def _address(text: str) -> IPv4Address | None:
    try:
        return IPv4Address(text)
    except AddressValueError:
        return None


def _accelerator(model: str) -> str:
    """Name in the catalogue of the accelerator that a BMC calls by its model; empty for another device."""
    spellings = (model, f"NVIDIA {model}", model.removeprefix("NVIDIA "), model.removeprefix("AMD Instinct "))
    return next((find_row(each, "accelerators").name for each in spellings if has("accelerators", each)), "")


def _folded(hosts: Sequence[InventoryHost]) -> str:
    """Names that differ in one number, `gpu[01-04]`; else with commas between them."""
    first, last = (re.fullmatch(r"(.*?)(\d+)(\D*)", host.name) for host in (hosts[0], hosts[-1]))
    if len(hosts) == 1 or first is None or last is None:
        return ",".join(host.name for host in hosts)
    return f"{first[1]}[{first[2]}-{last[2]}]{first[3]}"


def _follows(group: Sequence[InventoryHost], host: InventoryHost) -> bool:
    """Whether a host has the next name and address of a group."""
    last, both = group[-1].address, [*group, host]
    try:
        return (
            last is not None
            and host.address == last + 1
            and expand_nodes(_folded(both)) == tuple(each.name for each in both)
        )
    except UsageError:
        return False


def _described(group: Sequence[InventoryHost]) -> tuple[dict[str, object], dict[str, str]]:
    """A group of the stack file, and comments of its keys."""
    first = group[0]
    accelerator, count = first.accelerators
    is_compute = bool(accelerator or first.machine)
    marks = {} if first.address else {"address": f"{FILL_IN} the address of the first of these hosts"}
    marks |= {} if is_compute else {"roles": f"{FILL_IN} what these hosts are for"}
    data: dict[str, object] = {
        "hosts": _folded(group),
        "address": str(first.address or FIRST_COMPUTE),
        "roles": ["compute" if is_compute else "login"],
    }
    known = None
    if first.machine:
        data["machine"] = first.machine
        with suppress(UsageError):  # the catalogue may not know its processors
            known = hardware_of(NodeGroup.model_validate(data))
    found = _reported(group)
    if found is None and known is None and is_compute:
        found = Hardware(sockets=2, cores_per_socket=32, threads_per_core=2, memory=960 * 2**30)
        marks["hardware"] = f"{FILL_IN} the hardware of {first.model or first.name}, by `slurmd -C` on a node"
    # the catalogue rounds memory
    like = known and found and known.model_copy(update={"accelerators": None, "memory": found.memory})
    is_known = known and found and found == like and abs(found.memory / known.memory - 1) < _MEMORY_MARGIN
    if found is not None and not is_known:
        plain = found.model_dump(exclude={"accelerators", "gpu_cores"}) | {"memory": f"{found.memory // 2**30} GiB"}
        named = {"accelerators": f"{accelerator}:{count}"} if accelerator and not first.machine else {}
        data["hardware"] = plain | named
    return data, marks


def _reported(group: Sequence[InventoryHost]) -> Hardware | None:
    """Hardware that the BMCs report, with the memory that most of them have; None if they do not say it."""
    reports = [host.report for host in group if host.report and host.report.sockets and host.report.memory_bytes]
    if not reports:
        return None
    memory, _ = Counter(report.memory_bytes for report in reports).most_common(1)[0]
    first = reports[0]
    return Hardware(
        sockets=first.sockets,
        cores_per_socket=max(1, first.cores_per_socket),
        threads_per_core=max(1, first.threads_per_core),
        memory=int(memory * REPORTED_SHARE),
    )
