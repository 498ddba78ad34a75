"""Write docs/reference/ from the source: `python docs/generate_reference.py`, or `--check` to compare only."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from typer.testing import CliRunner

from trainworks import errors
from trainworks.catalog import bounds
from trainworks.catalog.bounds import NCCL_TESTS
from trainworks.catalog.catalog import find_row, load_catalog
from trainworks.catalog.cluster import parse_cluster
from trainworks.catalog.left_out import left_out
from trainworks.cli.app import app
from trainworks.cli.commands import COMMANDS
from trainworks.config import (
    autoscale,
    data,
    engines,
    finetune,
    layout,
    model,
    notify,
    optimizer,
    recovery,
    run_file,
    software,
    stack,
    track,
)
from trainworks.config import environment as run_environment
from trainworks.config.spec import field_docs
from trainworks.config.stack_parts import fabric, layers, nodes, scheduler, storage, users
from trainworks.config.stack_parts import software as parts
from trainworks.jobs import state
from trainworks.measure.bench.expected import EXPECTED, Yardstick
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.verdict import BANDS, BOUNDS, judge, unit_of
from trainworks.measure.health import fabric_checks, gpu_checks, history_checks, host_checks
from trainworks.measure.health.check import HealthCheck
from trainworks.observe.exporter import FAMILIES
from trainworks.observe.metrics.family import MetricFamily
from trainworks.observe.monitoring.rules import ALERTS, RECORDED, AlertRule
from trainworks.record import (
    calibration,
    dev_environment,
    environment,
    manifest,
    memory,
    metrics,
    model_shape,
    processes,
    resolved,
    run_dir,
    status,
    step_time,
    usage,
)
from trainworks.record.events import job, log, training
from trainworks.record.measured import step_anchor
from trainworks.review.check import check_text
from trainworks.review.registry import DOMAINS, RULES
from trainworks.review.rule import ReviewRule
from trainworks.units import format_duration, format_quantity

FOLDER = Path(__file__).parent / "reference"
SOURCE = Path(__file__).parent.parent / "src" / "trainworks"
NOTE = "<!-- Written by docs/generate_reference.py from the source. Do not edit; run `make docs`. -->"


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` name those that differ; returns the exit code."""
    pages = {
        "cli.md": cli_page(),
        "run-file.md": run_file_page(),
        "stack-file.md": stack_file_page(),
        "record.md": record_page(),
        "errors-and-exit-codes.md": errors_page(),
        "bench-bounds.md": bench_bounds_page(),
        "left-out.md": left_out_page(),
        "health-checks.md": health_checks_page(),
        "metrics.md": metrics_page(),
        "alerts.md": alerts_page(),
        "review-rules.md": review_rules_page(),
    }
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python docs/generate_reference.py [--check]\n")
        return 2
    stale = [name for name, text in pages.items() if _read(FOLDER / name) != text]
    if arguments == ["--check"]:
        for name in stale:
            sys.stderr.write(f"docs/reference/{name} is out of date; run: make docs\n")
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(pages[name], encoding="utf-8")
    return 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([NOTE, f"# {title}", *(part.strip("\n") for part in parts)]) + "\n"


# The command line


def cli_page() -> str:
    """Print every command with its help."""
    intro = (
        "`trainworks` has these commands. Data goes to stdout, messages go to stderr.\n"
        "`TRAINWORKS_CACHE` sets the folder of tokenized data and calibrations (default: `~/.cache/trainworks`).\n"
        "`TRAINWORKS_LOG` sets [the levels of the log](../guides/monitor.md#read-what-the-program-does), as `-v` does."
    )
    sections = [f"## trainworks {name}\n\n{_block(_help(name))}" for name in COMMANDS]
    return _page("Command line", intro, _block(_help()), *sections)


def _help(*command: str) -> str:
    done = CliRunner().invoke(app, [*command, "--help"], prog_name="trainworks", terminal_width=78)
    if done.exit_code:
        raise SystemExit(f"trainworks {' '.join(command)} --help failed: {done.output}")
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


def _block(text: str, language: str = "text") -> str:
    return f"```{language}\n{text}\n```"


# The run file


def run_file_page() -> str:
    """Tabulate every field of every model of the run file, outermost first."""
    intro = (
        "A run file is YAML. Unknown keys are refused, and every problem is reported with its line.\n"
        "`trainworks schema` prints these keys as a JSON Schema for your editor.\n\n"
        "Set either `workload` (a model that Trainworks trains) or `run` (a command of your own).\n"
        "Write a duration as `90s`, `10m`, `3h` or `1h30m`; a bare number is refused."
    )
    models: list[tuple[str, type[BaseModel]]] = [
        ("", run_file.RunFile),
        ("workload", run_file.Workload),
        ("workload.model", model.Model),
        ("workload.data", data.Data),
        ("workload.data.source[]", data.DataSource),
        ("workload.data.chat", finetune.Chat),
        ("workload.adapter", finetune.Adapter),
        ("workload.preference", finetune.Preference),
        ("workload.eval", data.Evaluation),
        ("workload.optimizer", optimizer.Optimizer),
        ("cluster", run_file.Cluster),
        ("cluster.local.container", engines.LocalContainer),
        ("cluster.slurm", engines.Slurm),
        ("cluster.slurm.container", engines.Container),
        ("cluster.kubernetes", engines.Kubernetes),
        ("cluster.skypilot", engines.SkyPilot),
        ("cluster.autoscale", autoscale.Autoscale),
        ("cluster.autoscale.slurm", autoscale.SlurmAutoscale),
        ("cluster.autoscale.slurm.node", autoscale.CloudNode),
        ("cluster.autoscale.kubernetes", autoscale.KubernetesAutoscale),
        ("cluster.autoscale.skypilot", autoscale.SkyPilotAutoscale),
        ("environment", run_environment.RunEnvironment),
        ("software", software.TrainingSoftware),
        ("layout", layout.Layout),
        ("job", engines.JobOptions),
        ("job.idle", engines.Idle),
        ("goal", run_file.Goal),
        ("checkpoint", recovery.Checkpoint),
        ("recover", recovery.Recover),
        ("guard", recovery.Guard),
        ("metrics", track.ScriptMetrics),
        ("track", track.Track),
        ("track.tensorboard", track.TensorBoard),
        ("track.mlflow", track.MLflow),
        ("track.wandb", track.WeightsAndBiases),
        ("notify", notify.Notifications),
    ]
    return _page("Run file", intro, *(_model_section(path or "Top level", model) for path, model in models))


def stack_file_page() -> str:
    """Tabulate every field of every model of the stack file, outermost first."""
    intro = (
        "A stack file is YAML: the machines of a cluster, and the software that they are to run. Unknown keys are\n"
        "refused, and every problem is reported with its line. [The guide](../guides/deploy-a-cluster.md) shows one."
    )
    models: list[tuple[str, type[BaseModel]]] = [
        ("", stack.Stack),
        ("nodes[]", nodes.NodeGroup),
        ("nodes[].hardware", nodes.Hardware),
        ("nodes[].fabric", fabric.NodeAdapters),
        ("gpu", parts.GpuSoftware),
        ("fabric", fabric.Fabric),
        ("fabric.mpi", fabric.MpiJobs),
        ("slurm", scheduler.SlurmScheduler),
        ("slurm.partitions[]", scheduler.Partition),
        ("slurm.qos[]", scheduler.QualityOfService),
        ("slurm.accounts[]", scheduler.SlurmAccount),
        ("slurm.power", scheduler.SlurmPower),
        ("mounts[]", storage.SharedMount),
        ("mounts[].folders[]", storage.StripedFolder),
        ("scratch", storage.Scratch),
        ("metadata", storage.MetadataArray),
        ("environments[]", parts.SoftwareEnvironment),
        ("images[]", parts.ImageRecipe),
        ("machine_image", parts.MachineImage),
        ("kubernetes", parts.KubernetesBundle),
        ("monitoring", parts.Monitoring),
        ("users[]", users.StackUser),
        ("directory", users.Directory),
        ("layers: roles.yaml[]", layers.OwnRole),
        ("layers: systems", layers.OperatingSystem),
        ("layers: systems.packages", layers.SystemPackages),
        ("layers: systems.packages.schedmd", layers.SlurmPackages),
        ("layers: systems.packages.driver", layers.DriverPackages),
        ("layers: systems.services", layers.SystemServices),
        ("layers: systems.paths", layers.SystemPaths),
    ]
    return _page("Stack file", intro, *(_model_section(path or "Top level", model) for path, model in models))


def _model_section(title: str, model: type[BaseModel]) -> str:
    heading = title if title == "Top level" else f"`{title}`"
    properties, docs = model.model_json_schema()["properties"], field_docs(model)
    rows = [
        f"| `{name}` | {_cell(_type(properties[name]))} | {_default(field)} | {_cell(docs.get(name, ''))} |"
        for name, field in model.model_fields.items()
    ]
    table = ["| key | value | default | meaning |", "|---|---|---|---|", *rows]
    return f"## {heading}\n\n{_sentence(model.__doc__)}\n\n" + "\n".join(table)


def _type(schema: dict[str, Any]) -> str:
    """Describe the JSON Schema of a property in a few words."""
    if "$ref" in schema:
        return "mapping, see below"
    if each := schema.get("anyOf") or schema.get("oneOf"):
        options = (_type(option) for option in each if option.get("type") != "null")
        return " or ".join(dict.fromkeys(options))
    if values := schema.get("enum") or schema.get("examples") or ([schema["const"]] if "const" in schema else []):
        return ", ".join(f"`{value}`" for value in values)
    if schema.get("type") == "array":
        length = f"{len(schema['prefixItems'])} " if "prefixItems" in schema else ""
        items = {"integer": "numbers", "string": "text"}.get(schema.get("items", {}).get("type"), "mappings")
        return f"list of {length}numbers" if length else f"list of {items}"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), {})
        contents = "anything" if values is True else "numbers" if values.get("type") == "number" else "text"
        return f"mapping of text to {contents}"
    names = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    return names[schema["type"]] + _limits(schema)


def _limits(schema: dict[str, Any]) -> str:
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    limits = [f"{sign} {schema[key]:,}" for key, sign in signs.items() if key in schema and schema[key] < 1e9]
    return f", {' and '.join(limits)}" if limits else ""


def _default(field: FieldInfo) -> str:
    """Format the default as in a run file; empty for an empty mapping, a mapping of defaults or no default."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if (
        value is None
        or value in ({}, ())
        or (isinstance(value, BaseModel) and type(value).__str__ is BaseModel.__str__)
    ):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        parts_of = (part.model_dump(exclude_unset=True) if isinstance(part, BaseModel) else part for part in value)
        return f"`[{', '.join(str(part) for part in parts_of)}]`"
    return f"`{format_duration(value)}`" if _is_duration(field) else f"`{value}`"


def _is_duration(field: FieldInfo) -> bool:
    """Return True for a float that holds seconds and is written with a unit."""
    return isinstance(field.default, float) and any(isinstance(item, BeforeValidator) for item in field.metadata)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _sentence(docstring: str | None) -> str:
    return inspect.cleandoc(docstring or "")


# What a run leaves


def record_page() -> str:
    """Describe files, events, metrics and models of a run directory."""
    return _page(
        "What a run leaves",
        "`status`, `ls` and `report` read these files alone. All of them are plain text or JSON.",
        f"## Files\n\n{_block(_after_first_paragraph(run_dir))}",
        f"## events.jsonl\n\n{_about(log)}\n\n"
        "Every event has `t` (seconds since the epoch), `kind` and `writer` (a process id), and these fields.",
        _event_table(),
        f"## metrics.jsonl\n\n{_about(metrics)}",
        _field_table(metrics, "MetricsRow"),
        _record_section(None, metrics, "EvaluationResult"),
        _record_section(None, metrics, "SlowestRank"),
        _record_section("status.json", status, "RunStatus"),
        _record_section(None, usage, "NodeUsage"),
        _record_section("dev/server.json", dev_environment, "DevServer"),
        _record_section("dev/use.json", dev_environment, "DevUse"),
        f"### States\n\n{_block(_after_first_paragraph(state))}\n\n{_members(state, 'JobState')}",
        _record_section("manifest.json of a checkpoint", manifest, "Manifest"),
        _record_section("`memory` of a failure", memory, "MemoryAtFailure"),
        _record_section("anchor.json", step_anchor, "StepAnchor"),
        _record_section(None, step_anchor, "AnchoredStep"),
        "## resolved.json\n\nThe resolved run: decisions and predictions of `plan`, and their inputs.",
        _record_section(None, resolved, "ResolvedRun"),
        _record_section(None, processes, "Processes"),
        _record_section(None, resolved, "Plan"),
        *(_record_section(None, model_shape, name) for name in ("ModelShape", "LatentAttention", "SmallParameters")),
        _record_section(None, step_time, "StepTimeTerms"),
        _record_section(None, memory, "MemoryTerms"),
        _record_section(None, resolved, "PlannedEvaluation"),
        *(_record_section(None, calibration, name) for name in ("Calibration", "GemmRate")),
        *(_record_section(None, environment, name) for name in ("HostFacts", "AcceleratorFacts")),
    )


def _about(module: ModuleType) -> str:
    """Return a module's docstring without its leading file name."""
    text = inspect.cleandoc(module.__doc__ or "").partition(": ")[2]
    return text[:1].upper() + text[1:]


def _after_first_paragraph(module: ModuleType) -> str:
    return inspect.cleandoc(module.__doc__ or "").partition("\n\n")[2]


def _record_section(title: str | None, module: ModuleType, name: str) -> str:
    heading = f"## {title}" if title else f"### {name}"
    return f"{heading}\n\n{_sentence(getattr(module, name).__doc__)}\n\n{_field_table(module, name)}"


def _field_table(module: ModuleType, name: str) -> str:
    rows = [f"| `{field}` | `{_cell(kind)}` | {_cell(text)} |" for field, kind, text in _fields(module, name)]
    return "\n".join(["| field | type | meaning |", "|---|---|---|", *rows])


def _fields(module: ModuleType, name: str) -> Iterator[tuple[str, str, str]]:
    """Name, annotation and docstring of every annotated field of a class, as written."""
    body = _class(module, name).body
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, ast.unparse(statement.annotation), _text(following)


def _members(module: ModuleType, name: str) -> str:
    body = _class(module, name).body
    pairs = zip(body, [*body[1:], None], strict=True)
    rows = [
        f"| `{target.id}` | {_cell(_text(following))} |"
        for statement, following in pairs
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    ]
    return "\n".join(["| state | meaning |", "|---|---|", *rows])


def _class(module: ModuleType, name: str) -> ast.ClassDef:
    tree = ast.parse(inspect.getsource(module))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def _text(statement: ast.stmt | None) -> str:
    """Return the string of a docstring statement, else an empty string."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return str(statement.value.value)
    return ""


def _event_table() -> str:
    """Tabulate the kinds of events with their fields."""
    rows = []
    for event in get_args(log.Event):
        (kind,) = get_args(event.__annotations__["kind"])
        fields = list(_event_fields(event.__name__))
        required, optional = (
            ", ".join(text for text, left_out in fields if left_out is some) for some in (False, True)
        )
        rows.append(f"| `{kind}` | {_cell(_sentence(event.__doc__))} | {_cell(required)} | {_cell(optional)} |")
    return "\n".join(["| kind | when | fields | optional fields |", "|---|---|---|---|", *rows])


def _event_fields(name: str) -> Iterator[tuple[str, bool]]:
    """Every own or inherited field of an event with its docstring, and whether it may be missing."""
    module = job if hasattr(job, name) else training
    for base in map(ast.unparse, _class(module, name).bases):
        if base not in ("TypedDict", "Stamp"):
            yield from _event_fields(base)
    for field, annotation, text in _fields(module, name):
        if field != "kind":
            meaning = f" ({text[:1].lower()}{text[1:].rstrip('.')})" if text else ""
            yield f"`{field}`{meaning}", annotation.startswith("NotRequired")


# Errors


def errors_page() -> str:
    """Describe the exception tree, and exit codes of the program and of a rank."""
    codes = [
        "| exit code | meaning |",
        "|---|---|",
        "| 0 | success |",
        "| 1 | the run failed, as its report says; a check of `health` failed; `review` or `bench` found something |",
        "| 2 | usage error: the request is wrong |",
        "| 3 | environment error: the machine cannot do what was requested |",
        "| 130 | the run was stopped with Ctrl-C or `trainworks stop`; `trainworks resume` continues it |",
        "| other | exit code of the rank that failed first, returned by `run` and `resume`; 128 + N after signal N |",
    ]
    causes = re.search(r"Causes: (.*)", (SOURCE / "worker" / "health" / "rank_failure.py").read_text(encoding="utf-8"))
    assert causes is not None
    return _page(
        "Errors and exit codes",
        "An error says what failed and why, names the place, and gives a hint. Errors go to stderr. With `--json`,\n"
        'stdout has one document more, `{"schema": "trainworks.error/1", "errors": [...], "exit_code": 2}`; each\n'
        "error has `message`, `place`, `hint` and `exit_code`, and a run file may have several.",
        "## Exit codes of `trainworks`\n\n" + "\n".join(codes),
        f"## Errors\n\n{_sentence(errors.__doc__).partition(chr(10))[0]}\n\n{_block(_after_first_paragraph(errors))}",
        "## Exit codes of a rank\n\n" + _rank_codes(),
        f"## Causes of a failure\n\nA `failure` event names a cause. A rank of a workload reports {causes[1]}\n"
        "Its node agent adds `killed` (a signal ended it), `unknown` (an exit code without an exception), `hang`\n"
        "(no progress), `oom` (the kernel killed it for its memory) and `agent_lost` (its fork server ended).\n"
        "The agent of a command adds `launch_failed`.\n"
        "The supervisor adds `agent_lost` (a signal ended an agent), `step_lost` (its step of Slurm was lost),\n"
        "`node_lost` (the connection to its node was lost), `environment` and\n"
        "`controller_error`. [Faults of ranks](../concepts/faults.md#which-failures-restart) lists the causes after\n"
        "which ranks restart.",
    )


# Health checks


def bench_bounds_page() -> str:
    """Tabulate bound, expected value and verdicts of every quantity, and the published results they are tested on."""
    intro = (
        "A measurement is `impossible` above its bound, `pass` from the first share of the expected value on, `weak`\n"
        "from the second on, and `fail` below it. Shares without a source are assumptions, and say so."
    )
    collectives = f"## Collectives\n\n{inspect.getdoc(bounds)}\n\nSource of the factors: {NCCL_TESTS}"
    anchors = (
        "## Published results\n\nEvery one is held against bound and expected value by the tests. "
        "`trainworks catalog show NAME` has its source."
    )
    return _page("Bounds of benchmarks", intro, _quantity_table(), collectives, anchors, _anchor_table())


def _quantity_table() -> str:
    rows = []
    for quantity, band in BANDS.items():
        bound, expected = BOUNDS.get(quantity), EXPECTED.get(quantity)
        texts = [inspect.getdoc(rule) if rule else "" for rule in (bound, expected)]
        bound_text, expected_text = (_cell(" ".join((text or "").split())) for text in texts)
        limits = f"{band.passes:g} | {band.fails:g} | {_cell(band.why)}"
        rows.append(
            f"| `{quantity.value}` | {bound_text or 'none'} | {expected_text or 'what the run needs'} | {limits} |"
        )
    head = "| quantity | bound | expected | pass from | weak from | why |"
    return "\n".join([head, "|---|---|---|---|---|---|", *rows])


def _anchor_table() -> str:
    rows = []
    for name, anchor in load_catalog().anchors.items():
        quantity = Quantity(anchor.quantity)
        measurement = Measurement(quantity, anchor.value, anchor.cluster, "published", anchor.conditions)
        judged, unit = judge(measurement, Yardstick(parse_cluster(anchor.cluster))), unit_of(quantity)
        figures = [anchor.value, judged.bound.value if judged.bound else None, judged.expected]
        cells = " | ".join("" if figure is None else format_quantity(figure, unit) for figure in figures)
        source = find_row(name, "anchors").figure("quantity").source
        rows.append(
            f"| {name} | {anchor.kind} | {cells} | {judged.verdict} | {_cell(judged.slip or '')} | {_cell(source)} |"
        )
    head = "| published | kind | value | bound | expected | verdict | slip | source |"
    return "\n".join([head, "|---|---|---|---|---|---|---|---|", *rows])


def left_out_page() -> str:
    """Tabulate what is deliberately left out, with the reason, the replacement and the source."""
    intro = (
        "Articles and guides name these, and Trainworks does not do them. The sentences are those of the catalogue:\n"
        "the same ones come when you write the name into a run file or a stack file, as a cluster or a model, with\n"
        "`trainworks catalog show NAME`, or when `trainworks review` finds it in your code (TW706)."
    )
    rows = [(term.name, term.meaning, term.instead, find_row(term.name, "terms")) for term in left_out()]
    photonic, centos = find_row("Photonic", "accelerators"), find_row("CentOS 8", "software")
    rows.append((photonic.name, photonic.unplannable or "", f"use {photonic.instead}", photonic))
    ended = f"had support until {centos.facts()['ends']}"
    rows.append((centos.name, ended, "install a system that is supported, such as Ubuntu 24.04 or Rocky 9", centos))
    cells = ((name, _cell(why), _cell(instead), _cell(row.figures[0].cited)) for name, why, instead, row in rows)
    head = ["| name | why not | instead | source, date, confidence |", "|---|---|---|---|"]
    return _page("What is left out, and why", intro, "\n".join([*head, *(f"| {' | '.join(row)} |" for row in cells)]))


def health_checks_page() -> str:
    """Tabulate every health check with its limit, action and source, by the module that has it."""
    intro = (
        "The checks of [`trainworks health`](../guides/health.md). One that fails takes the node out of service, one\n"
        "that warns does not. The source is where the limit was read; a limit without one is said to be an assumption."
    )
    parts = [f"## {title}\n\n{_check_table(module)}" for title, module in _CHECKS.items()]
    return _page("Health checks", intro, *parts)


_CHECKS = {
    "GPUs": gpu_checks,
    "NVLink, NICs and PCI": fabric_checks,
    "Processor, memory, limits, storage": host_checks,
    "Kernel log and earlier jobs": history_checks,
}


def _check_table(module: ModuleType) -> str:
    checks = [each for each in vars(module).values() if isinstance(each, HealthCheck)]
    rows = [
        f"| `{each.name}` | {_cell(each.about)} | {_cell(each.limit)} | {each.severity} | {_cell(each.action)} | "
        f"{_source(each.source)} |"
        for each in checks
    ]
    return "\n".join(
        ["| check | a healthy node | limit | beyond it | action | source |", "|---|---|---|---|---|---|", *rows]
    )


def _source(source: str) -> str:
    return f"[source]({source})" if source.startswith("https://") else _cell(source)


def _rank_codes() -> str:
    """Tabulate exit codes of ranks, parsed from source because importing `worker` would need torch."""
    tree = ast.parse((SOURCE / "record" / "exit_code.py").read_text(encoding="utf-8"))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef)).body
    rows = [
        f"| {ast.unparse(statement.value)} | `{ast.unparse(statement.targets[0])}` | {_cell(_text(following))} |"
        for statement, following in zip(body, [*body[1:], None], strict=True)
        if isinstance(statement, ast.Assign)
    ]
    return "\n".join(["| exit code | name | meaning |", "|---|---|---|", *rows])


# Metrics and alerts


def metrics_page() -> str:
    """Tabulate every metric of the exporter, and the series that Prometheus records."""
    intro = (
        "The metrics of [`trainworks exporter`](../guides/monitor.md). A value that is not known has no sample.\n"
        "Times are seconds since the epoch."
    )
    parts = [f"## {title}\n\n{_metric_table(families)}" for title, families in FAMILIES.items()]
    rows = [f"| `{name}` | {_cell(meaning)} | `{_cell(expr)}` |" for name, (expr, meaning) in RECORDED.items()]
    recorded = "\n".join(["| series | meaning | expression |", "|---|---|---|", *rows])
    return _page("Metrics", intro, *parts, f"## Recorded series\n\n{recorded}")


def _metric_table(families: tuple[MetricFamily, ...]) -> str:
    rows = [
        f"| `{family.name}` | {family.kind} | {', '.join(f'`{label}`' for label in family.labels)} | "
        f"{_cell(family.help)} | {_cell(family.source)} |"
        for family in families
    ]
    return "\n".join(["| metric | type | labels | meaning | read from |", "|---|---|---|---|---|", *rows])


def alerts_page() -> str:
    """Describe every alert: what it says, where its threshold comes from, and what to do."""
    intro = (
        "The alerts that `trainworks monitor render` writes; [the guide](../guides/monitor.md) sets them up.\n"
        "A `critical` alert goes to the receiver `page`, a `warning` to `ticket`."
    )
    return _page("Alerts", intro, *map(_alert_section, ALERTS))


def _alert_section(alert: AlertRule) -> str:
    summary = re.sub(r"{{ \$labels\.(\w+) }}", lambda match: match[1].upper(), alert.summary)
    lasts = "at once" if alert.lasts == "0m" else f"after {alert.lasts}"
    return (
        f"## {alert.name}\n\n{alert.severity}, {lasts}: {summary}\n\nThreshold: {alert.threshold}.\n\n"
        f"What to do: {alert.action}.\n\n{_block(alert.expr, 'promql')}"
    )


# Rules of the review


def review_rules_page() -> str:
    """Describe every rule, by domain."""
    intro = (
        f"`trainworks review` has {len(RULES)} rules. [The guide](../guides/review.md) says how to choose them.\n"
        "An `error` fails, hangs or states what cannot be; a `warning` loses speed, data or time; a `note` is outdated."
    )
    parts = []
    for start, domain in DOMAINS.items():
        rules = [rule for rule in RULES.values() if rule.id.startswith(start)]
        parts += [f"## {start}xx: {domain}", *map(_rule_section, rules)]
    return _page("Rules of the review", intro, *parts)


def _holds_for(rule: ReviewRule) -> str:
    return f"Holds for {rule.holds_for}.\n\n" if rule.holds_for else ""


def _rule_section(rule: ReviewRule) -> str:
    fixable = any(finding.edits for finding in check_text(rule.bad, [rule], name=rule.file))
    source = f"<{rule.source}>" if rule.source.startswith("https://") else f"`{rule.source}`"
    address, blank, about = rule.source.partition(" (")
    if blank and address.startswith("https://"):
        source = f"<{address}> ({about}"
    return (
        f"### {rule.id}: {rule.title}\n\n{rule.severity}{', `--fix` corrects it' if fixable else ''}"
        f"{', `run` and `submit` refuse it' if rule.stops else ''}\n\n"
        f"{_holds_for(rule)}"
        f"{rule.why}\n\nFix: {rule.fix}\n\nIn `{rule.file}`:\n\n{_sample(rule.bad)}\n\nCorrect:\n\n"
        f"{_sample(rule.good)}\n\nSource: {source}"
    )


def _sample(text: str) -> str:
    """An example in a fence that is longer than any of its own."""
    return f"````text\n{text.rstrip()}\n````"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
