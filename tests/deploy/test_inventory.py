"""`deploy inventory`: hosts of a CSV, and BMCs that answer as those of three vendors do, or wrongly, become groups."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from trainworks.api.proving.node_inventory import bmc_login, take_inventory
from trainworks.cli.app import app
from trainworks.config.stack import load_stack
from trainworks.deploy.redfish import BmcLogin, BmcReport, read_bmcs
from trainworks.errors import UsageError

EXAMPLE = Path("examples/cluster/stack.yaml")
Tree = dict[str, Any]
ROOT = "/redfish/v1/"


def link(path: str) -> Tree:
    return {"@odata.id": path}


def collection(path: str, members: Sequence[Tree], *, page: int = 1000) -> Tree:
    """A collection with its members, in pages."""
    tree: Tree = {}
    for start in range(0, max(1, len(members)), page):
        names = [link(f"{path}/{each['Id']}") for each in members[start : start + page]]
        body: Tree = {"@odata.id": path, "Members@odata.count": len(members), "Members": names}
        if start + page < len(members):
            body["Members@odata.nextLink"] = f"{path}?$skip={start + page}"
        tree[f"{path}?$skip={start}" if start else path] = body
    return tree | {f"{path}/{each['Id']}": {**link(f"{path}/{each['Id']}"), **each} for each in members}


def server(
    system: Tree,
    *,
    cpus: list[Tree],
    gpus: Sequence[Tree] = (),
    boards: Sequence[Tree] = (),
    adapters: Sequence[Tree] = (),
    bios: Tree | None = None,
    firmware: Sequence[Tree] = (),
    modules: int = 32,
    page: int = 1000,
) -> Tree:
    """The resources of a BMC, in the shapes of DMTF's schema."""
    name, chassis = f"{ROOT}Systems/{system['Id']}", f"{ROOT}Chassis/1"
    memory = [
        {"Id": f"DIMM{each}", "CapacityMiB": 65536, "Status": {"State": "Enabled"}} for each in range(1, modules + 1)
    ]
    memory.append({"Id": "DIMM99", "CapacityMiB": None, "Status": {"State": "Absent"}})
    ports = [
        {"Id": "ToManager", "MACAddress": "BE:3A:F2:B6:05:9F", "IPv4Addresses": [{"Address": "169.254.3.1"}]},
        {"Id": "NIC1", "PermanentMACAddress": "94:6D:AE:91:FB:22", "IPv4Addresses": [{"Address": "10.10.1.7"}]},
    ]
    parts = {"Processors": [*cpus, *gpus], "Memory": memory, "EthernetInterfaces": ports}
    links = {key: link(f"{name}/{key}") for key in (*parts, "Bios")}
    tree: Tree = {
        ROOT: {"Systems": link(f"{ROOT}Systems"), "Chassis": link(f"{ROOT}Chassis")}
        | {"UpdateService": link(f"{ROOT}UpdateService")},
        f"{name}/Bios": {"Attributes": bios},
        f"{ROOT}UpdateService": {"FirmwareInventory": link(f"{ROOT}UpdateService/FirmwareInventory")},
    }
    tree |= collection(f"{ROOT}Systems", [system | links])
    own = {key: link(f"{chassis}/{key}") for key in ("PCIeDevices", "NetworkAdapters")}
    tree |= collection(f"{ROOT}Chassis", [{"Id": "1"} | own])
    tree |= collection(f"{chassis}/PCIeDevices", boards) | collection(f"{chassis}/NetworkAdapters", adapters)
    for key, members in parts.items():
        tree |= collection(f"{name}/{key}", members, page=page)
    return tree | collection(f"{ROOT}UpdateService/FirmwareInventory", firmware, page=page)


def cpu(name: str, model: str, cores: int) -> Tree:
    return {"Id": name, "ProcessorType": "CPU", "Model": model, "TotalCores": cores, "TotalThreads": 2 * cores}


def supermicro(
    modules: int = 32, bios: str = "1.4", adapters: int = 8, host: str | None = None, **settings: str
) -> Tree:
    """GPUs are PCIe devices, and attributes of the BIOS end with a number."""
    return server(
        {"Id": "1", "Manufacturer": "Supermicro", "Model": "SYS-821GE-TNHR", "HostName": host, "BiosVersion": bios},
        cpus=[cpu("1", "Xeon 8462Y+", 32), cpu("2", "Xeon 8462Y+", 32)],
        boards=[{"Id": f"GPU{each}", "Model": "H100 80GB HBM3"} for each in range(8)]
        + [{"Id": "NIC1", "Name": "NIC1"}],
        adapters=[{"Id": str(each), "Model": "MCX75310AAS-NEAT"} for each in range(adapters)],
        bios={"Above4GDecoding_0041": "Enabled", "PCIeACSCTL_1E3C": "Disable", "Hyper_Threading_ALL__F27F": "Enable"}
        | settings,
        firmware=[{"Id": "BMC", "Version": "11.01.01"}, {"Id": "Backup_BMC", "Version": "11.00.09"}],
        modules=modules,
    )


def dell() -> Tree:
    """GPUs are processors; collections can be had with their members; the firmware has one entry for each port."""
    tree = server(
        {"Id": "System.Embedded.1", "Manufacturer": "Dell Inc.", "Model": "PowerEdge XE9680", "BiosVersion": "2.1.5"},
        cpus=[cpu(f"CPU.Socket.{each}", "Xeon 8480+", 56) for each in (1, 2)],
        gpus=[
            {"Id": f"Video.Slot.{each}", "ProcessorType": "GPU", "Model": "NVIDIA H200", "TotalCores": None}
            for each in range(8)
        ],
        bios={"MmioAbove4Gb": "Enabled", "SysProfile": "PerfPerWattOptimizedDapc", "SriovGlobalEnable": "Disabled"},
        firmware=[
            {"Id": f"Current-1-21.80__NIC.{port}", "Name": f"BCM57414 - E4:3D:1A:13:27:F{port}", "Version": "21.80"}
            for port in range(2)
        ]
        + [{"Id": "Previous-1-21.60__NIC.0", "Name": "BCM57414 - E4:3D:1A:13:27:F0", "Version": "21.60"}],
    )
    expanded = {
        f"{path}?$expand=.($levels=1)": body | {"Members": [tree[each["@odata.id"]] for each in body["Members"]]}
        for path, body in tree.items()
        if "Members" in body
    }
    tree[ROOT]["ProtocolFeaturesSupported"] = {"ExpandQuery": {"NoLinks": True}}
    return tree | expanded


def hpe() -> Tree:
    """Collections come in pages, and models have blanks behind them."""
    return server(
        {
            "Id": "1",
            "Manufacturer": "HPE",
            "Model": "ProLiant XD685 ",
            "HostName": "GPU07.example",
            "BiosVersion": None,
        },
        cpus=[cpu(str(each), "AMD EPYC 9575F 64-Core Processor     ", 64) for each in (1, 2)],
        boards=[{"Id": str(each), "Name": "NVIDIA B200"} for each in range(8)],
        bios={"ProcSMT": "Enabled", "WorkloadProfile": "HighPerformanceCompute(HPC)", "Sriov": "Enabled"},
        firmware=[{"Id": str(each), "Name": f"Part {each} ", "Version": "1.0"} for each in range(5)],
        page=2,
    )


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "certificate.pem", folder / "key.pem"
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    request += ["-days", "2", "-subj", "/CN=bmc", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*request, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


class Requests:
    """What BMCs were asked, and how many at a time."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        self.end = threading.Event()


class Answer(BaseHTTPRequestHandler):
    """Answers of one BMC; faults are by path: a status, bytes in place of JSON, or `slow` and `drip`."""

    protocol_version = "HTTP/1.1"
    tree: Tree
    faults: Tree
    requests: Requests

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        asked = self.requests
        with asked.lock:
            asked.paths.append(self.path)
            asked.at_once += 1
            asked.most_at_once = max(asked.most_at_once, asked.at_once)
        with suppress(OSError):
            self.answer(self.faults.get(self.path) if self.is_known else 401)
        with asked.lock:
            asked.at_once -= 1

    @property
    def is_known(self) -> bool:
        return self.headers["Authorization"] == "Basic cm9vdDpzZWNyZXQ="

    def answer(self, fault: object) -> None:
        status = fault if isinstance(fault, int) else 200 if self.path in self.tree else 404
        body = fault if isinstance(fault, bytes) else json.dumps(self.tree.get(self.path, {})).encode()
        head = f"HTTP/1.1 {status} Any\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        if fault == "slow":
            self.requests.end.wait()
        if fault == "drip":
            self.wfile.write(head)
            while not self.requests.end.wait(0.02):
                self.wfile.write(b" ")
        self.wfile.write(head + body)


Serve = Callable[..., str]


@pytest.fixture
def requests() -> Requests:
    return Requests()


@pytest.fixture
def serve(certificate: tuple[Path, Path], requests: Requests) -> Iterator[Serve]:
    """Start a BMC over TLS."""
    running: list[ThreadingHTTPServer] = []

    def start(tree: Tree, faults: Tree | None = None) -> str:
        answer = type("Answers", (Answer,), {"tree": tree, "faults": faults or {}, "requests": requests})
        found = ThreadingHTTPServer(("127.0.0.1", 0), answer)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        found.socket = context.wrap_socket(found.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
        running.append(found)
        return f"https://127.0.0.1:{found.server_address[1]}"

    yield start
    requests.end.set()
    for each in running:
        each.shutdown()
        each.server_close()


@pytest.fixture
def login(certificate: tuple[Path, Path]) -> BmcLogin:
    return BmcLogin("root", "secret", certificate[0])


def test_the_bmcs_of_three_vendors_are_three_groups_of_a_stack(serve: Serve, login: BmcLogin, tmp_path: Path) -> None:
    found = take_inventory(None, [serve(supermicro()), serve(dell()), serve(hpe())], login)
    nodes = yaml.safe_load(found.text)["nodes"]
    hardware = {node["hosts"]: node["hardware"] for node in nodes}
    assert found.unanswered == ()
    assert hardware == {
        "node001": {"sockets": 2, "cores_per_socket": 32, "threads_per_core": 2, "memory": "1945 GiB"}
        | {"accelerators": "H100-SXM-80GB:8"},
        "node002": {"sockets": 2, "cores_per_socket": 56, "threads_per_core": 2, "memory": "1945 GiB"}
        | {"accelerators": "H200-SXM-141GB:8"},
        "gpu07": {"sockets": 2, "cores_per_socket": 64, "threads_per_core": 2, "memory": "1945 GiB"}
        | {"accelerators": "B200-180GB:8"},
    }
    assert {node["address"] for node in nodes} == {"10.10.1.7"}
    assert "node002: set in the BIOS: power profile PerfPerWattOptimizedDapc" in found.text
    own = [{"hosts": "login1", "address": "10.10.0.10", "roles": ["login", "controller", "database", "monitoring"]}]
    own += [{"hosts": "store1", "address": "10.10.0.20", "roles": ["storage"]}]
    stack = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    addressed = [node | {"address": f"10.10.1.{index}"} for index, node in enumerate(nodes, start=1)]
    (tmp_path / "stack.yaml").write_text(yaml.safe_dump(stack | {"nodes": own + addressed}), encoding="utf-8")
    assert len(load_stack(tmp_path / "stack.yaml")[0].hosts("compute")) == 3


def test_a_host_that_differs_from_its_group_is_named(serve: Serve, login: BmcLogin, tmp_path: Path) -> None:
    trees = [supermicro(), supermicro(modules=31), supermicro(bios="1.5"), supermicro(adapters=7), supermicro()]
    trees += [supermicro(Above4GDecoding_0041="Disabled")]
    rows = [f"gpu{each},10.10.1.{each},{serve(tree)}" for each, tree in enumerate(trees, start=8)]
    (tmp_path / "hosts.csv").write_text("host,address,bmc\n" + "\n".join(rows), encoding="utf-8")
    found = take_inventory(tmp_path / "hosts.csv", (), login)
    (group,) = yaml.safe_load(found.text)["nodes"]
    assert (group["hosts"], group["address"], group["hardware"]["memory"]) == ("gpu[8-13]", "10.10.1.8", "1945 GiB")
    assert [line for line in found.text.splitlines() if line.startswith("#")] == [
        "# gpu13: set in the BIOS: above 4G decoding Disabled",
        "# gpu9: memory is 1984 GiB, and 2048 GiB on most",
        "# gpu11: adapters is 7x MCX75310AAS-NEAT, and 8x MCX75310AAS-NEAT on most",
        "# gpu13: above 4G decoding is Disabled, and Enabled on most",
        "# gpu10: firmware of BIOS is 1.5, and 1.4 on most",
    ]


def test_the_bmc_of_another_server_is_named(serve: Serve, login: BmcLogin, tmp_path: Path) -> None:
    tree = supermicro()
    tree[f"{ROOT}Systems/1"] |= {"SerialNumber": "S1"}
    address = serve(tree)
    rows = ["gpu1,10.10.1.1,S1,94:6D:AE:91:FB:22", "gpu2,10.10.1.2,S2,94:6d:ae:91:fb:23"]
    lines = [f"{row},{address}/{number}" for number, row in enumerate(rows)]
    (tmp_path / "hosts.csv").write_text("host,address,serial,mac,bmc\n" + "\n".join(lines), encoding="utf-8")
    found = take_inventory(tmp_path / "hosts.csv", (), login)
    assert [line for line in found.text.splitlines() if line.startswith("#")] == [
        f"# gpu2: {address}/1 is the BMC of another server: its serial number is S1, not S2",
        f"# gpu2: {address}/1 is the BMC of another server: it has no 94:6d:ae:91:fb:23",
    ]


def test_two_hosts_of_one_name_get_names_of_their_own(serve: Serve, login: BmcLogin) -> None:
    found = take_inventory(None, [serve(supermicro(host="localhost")), serve(supermicro(host="localhost"))], login)
    assert [node["hosts"] for node in yaml.safe_load(found.text)["nodes"]] == ["localhost", "node002"]


def test_pages_and_expanded_collections_are_read_whole_and_spare_firmware_is_not(serve: Serve, login: BmcLogin) -> None:
    addresses = [serve(hpe()), serve(dell()), serve(supermicro())]
    reports = [each for each in read_bmcs(addresses, login).values() if isinstance(each, BmcReport)]
    assert [dict(each.firmware) for each in reports] == [
        {f"Part {each}": "1.0" for each in range(5)},
        {"BCM57414": "21.80", "BIOS": "2.1.5"},
        {"BMC": "11.01.01", "BIOS": "1.4"},
    ]
    assert [each.memory_bytes // 2**30 for each in reports] == [2048] * 3
    assert {each.macs for each in reports} == {("94:6d:ae:91:fb:22",)}
    assert all(each.unread == () for each in reports)


def test_collections_that_come_with_their_members_take_few_requests(
    serve: Serve, login: BmcLogin, requests: Requests
) -> None:
    read_bmcs([serve(dell())], login)
    assert len(requests.paths) < 15


FAULTS: list[tuple[object, str]] = [
    (401, "it does not accept the user and the password (HTTP 401)"),
    (500, "it answers with HTTP 500"),
    (b'{"Systems": {"@odata.id"', "it answers with no JSON, or with a part of it"),
    (b"<html>", "it answers with no JSON, or with a part of it"),
    (b'{"Systems": 3}', "it answers in another form than Redfish"),
    (b"[]", "it knows no system"),
    ("slow", "no answer within 0.3 s, or not all of them within 0.5 s"),
    ("drip", "no answer within 0.3 s, or not all of them within 0.5 s"),
]


@pytest.mark.parametrize(("fault", "reason"), FAULTS, ids=lambda value: str(value)[:20])
def test_a_bmc_that_fails_is_one_line(serve: Serve, certificate: tuple[Path, Path], fault: object, reason: str) -> None:
    login = BmcLogin("root", "secret", certificate[0], answer_s=0.3, total_s=0.5)
    address = serve(supermicro(), {ROOT: fault})
    assert read_bmcs([address], login) == {address: reason}


def test_a_bmc_is_believed_with_the_right_certificate_and_password_alone(serve: Serve, login: BmcLogin) -> None:
    address = serve(supermicro())
    assert read_bmcs([address], BmcLogin("root", "secret")) == {
        address: "its certificate is not trusted: self-signed certificate"
    }
    wrong = BmcLogin("root", "wrong", login.ca)
    assert read_bmcs([address], wrong) == {address: "it does not accept the user and the password (HTTP 401)"}
    assert read_bmcs(["http://127.0.0.1:1"], login) == {"http://127.0.0.1:1": "its address is not `https://HOST`"}
    assert "secret" not in repr(login)


def test_what_a_bmc_does_not_give_is_named_and_the_rest_is_kept(serve: Serve, login: BmcLogin) -> None:
    modules = f"{ROOT}Systems/1/Memory"
    address = serve(supermicro(), {f"{modules}/DIMM7": 500, f"{ROOT}Systems/1/Bios": b"{"})
    found = take_inventory(None, [address], login)
    assert f"# {address}: no {modules}/DIMM7: it answers with HTTP 500" in found.text
    assert f"# {address}: no {ROOT}Systems/1/Bios: it answers with no JSON, or with a part of it" in found.text
    assert "accelerators: 'H100-SXM-80GB:8'" in found.text


def test_what_a_bmc_says_is_no_yaml_no_link_elsewhere_and_no_control_of_the_terminal(
    serve: Serve, login: BmcLogin
) -> None:
    tree = supermicro(bios="1.4\n- evil: \x1b[31m\u202e", host="a\nroles: [controller]")
    tree[f"{ROOT}Systems/1"] |= {"Bios": link("https://elsewhere/redfish/v1/x"), "Model": "x: [\n# fill in: nothing"}
    tree[f"{ROOT}Systems/1/Memory"]["Members@odata.nextLink"] = f"{ROOT}Systems/1/Memory"
    report = read_bmcs([address := serve(tree)], login)[address]
    assert isinstance(report, BmcReport)
    assert report.firmware["BIOS"] == "1.4 - evil: [31m"
    assert report.unread == ("https://elsewhere/redfish/v1/x: no resource, or one too many",)
    (group,) = yaml.safe_load(take_inventory(None, [address], login).text)["nodes"]
    assert (group["hosts"], group["roles"]) == ("node001", ["compute"])


def test_many_bmcs_are_asked_at_a_time_but_not_all(serve: Serve, login: BmcLogin, requests: Requests) -> None:
    tree = {ROOT: {"Systems": link(f"{ROOT}Systems")}} | collection(f"{ROOT}Systems", [{"Id": "1", "Model": "X"}])
    address = serve(tree)
    found = read_bmcs([f"{address}/{number}" for number in range(100)], login)
    assert len(found) == 100
    assert all(isinstance(each, BmcReport) for each in found.values())
    assert 1 < requests.most_at_once <= 32


CSV = "host, address, bmc, mac, model\nlogin1, 10.10.0.10\n"


def test_a_list_alone_makes_groups_of_the_machines_that_the_catalogue_has(tmp_path: Path) -> None:
    rows = [f"gpu{each:02}, 10.10.1.{each}, , , DGXH100" for each in (1, 2, 3, 5, 9, 10)]
    (tmp_path / "hosts.csv").write_text(CSV + "\n".join([*rows, "big, 10.10.2.1, , , XE9680"]), encoding="utf-8")
    found = CliRunner().invoke(app, ["deploy", "inventory", str(tmp_path / "hosts.csv")])
    assert found.exit_code == 0, found.output
    assert [(node["hosts"], node.get("machine"), node["roles"]) for node in yaml.safe_load(found.stdout)["nodes"]] == [
        ("login1", None, ["login"]),
        ("big", None, ["login"]),
        ("gpu[01-03]", "DGX H100", ["compute"]),
        ("gpu05", "DGX H100", ["compute"]),
        ("gpu[09-10]", "DGX H100", ["compute"]),
    ]
    assert found.stdout.count("# fill in: what these hosts are for") == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("gpu1, 10.10.1.300", "hosts.csv:3: `10.10.1.300` is not an IPv4 address"),
        ("gpu1", "`` is not an IPv4 address"),
        ("$(id), 10.10.1.1", "`$(id)` is not the name of a host"),
        ("login1, 10.10.1.1", "`login1` is there twice"),
    ],
)
def test_a_wrong_row_is_refused_with_its_place(tmp_path: Path, row: str, message: str) -> None:
    (tmp_path / "hosts.csv").write_text(CSV + row, encoding="utf-8")
    with pytest.raises(UsageError) as raised:
        take_inventory(tmp_path / "hosts.csv")
    place = (raised.value.place or "").rpartition("/")[2]
    assert f"{place}: {raised.value.message}".endswith(message)
    assert place == "hosts.csv:3"


def test_the_command_asks_with_a_password_that_no_other_user_can_read(
    serve: Serve, certificate: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, dead = serve(supermicro()), "https://127.0.0.1:1"
    secret = tmp_path / "password"
    secret.write_text("secret\n", encoding="utf-8")
    secret.chmod(0o644)
    words = ["deploy", "inventory", "--redfish", f"{good}, {dead}", "--user", "root", "--ca", str(certificate[0])]
    refused = CliRunner().invoke(app, [*words, "--password-file", str(secret)])
    assert "other users can read the secrets" in str(refused.exception)
    secret.chmod(0o600)
    found = CliRunner().invoke(app, [*words, "--password-file", str(secret)])
    assert (found.exit_code, found.stderr) == (1, f"{dead}: Connection refused\n")
    assert "accelerators: 'H100-SXM-80GB:8'" in found.stdout
    monkeypatch.setenv("TRAINWORKS_BMC_PASSWORD", "secret")
    assert CliRunner().invoke(app, words).stdout == found.stdout
    monkeypatch.delenv("TRAINWORKS_BMC_PASSWORD")
    with pytest.raises(UsageError, match="no password of the BMCs"):
        bmc_login("root")
