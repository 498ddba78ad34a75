"""`trainworks deploy`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from trainworks.cli.admin import deploy_parts as parts
from trainworks.cli.options import AsJson, RunsOption, option_errors, runs_folder
from trainworks.cli.output import Html, Pdf, check_pages, show
from trainworks.errors import UsageError

_InstallStep = Literal["check", "render", "diff", "apply", "verify"]
_UpkeepStep = Literal["upgrade", "add", "remove", "replace", "backup", "restore", "rotate"]


def deploy_command(
    step: Annotated[
        Literal["inventory", _InstallStep, _UpkeepStep],
        typer.Argument(metavar="STEP", help="What to do, as above.", show_default=False),
    ],
    stack_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="STACK_FILE", help="YAML stack file; with `inventory` a CSV of hosts.", show_default=False
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Nodes, the copy, or the secret of the steps that take one."),
    ] = None,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="FOLDER", help="Folder of the Ansible project; not for `check`.")
    ] = None,
    limit: Annotated[
        str | None,
        typer.Option("--limit", metavar="HOSTS", help="With `diff`, `apply`, `verify`: these hosts alone."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Compute nodes of an `apply` or `upgrade` at a time; default: a rack."),
    ] = None,
    wait_s: Annotated[
        int, typer.Option("--wait", min=1, metavar="SECONDS", help="Longest wait for the jobs of a batch.")
    ] = 3600,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With `upgrade`: show its steps alone.")] = False,
    bench: Annotated[
        Path | None,
        typer.Option("--bench", metavar="RUN.yaml", help="With `verify`: benchmark its cluster, and train it there."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files of the project that were changed by hand.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="With `--bench`: sizes for acceptance, up to hours.")] = False,
    html: Html = None,
    pdf: Pdf = None,
    redfish: parts.Redfish = None,
    user: parts.BmcUser = None,
    password: parts.PasswordFile = None,
    ca: parts.Authority = None,
    runs: RunsOption = None,
    as_json: AsJson = False,
) -> None:
    """`inventory` prints the `nodes` of a stack file from a CSV of hosts (`host,address,bmc,model`) and from BMCs.

    `check` judges whether the releases of a stack fit together and are supported; it exits with 1 on an error.

    `render` writes an Ansible project: the configuration of Slurm, file systems, users, environments and monitoring.
    It refuses to replace what you changed there by hand, and removes what the stack does not say any more.

    `apply` renders, then runs the project over ssh, servers first, then rack by rack: it drains nodes before, checks
    and resumes them after, and stops at the first that fails, with 1. `diff` reports what would change; 1 is drift.

    `verify` compares what the nodes run with the stack; it exits with 1 if something differs. With `--bench`
    it then measures every compute node and trains the workload for 30 steps, and holds both against the plan.

    `upgrade` brings Slurm, driver and kernel to what the stack says, step by step, each with its way back.
    `add`, `remove` and `replace NODE...` change compute nodes, as the stack file says it already beside the last apply.

    `backup` brings copies of Slurm's database and state into the project, `restore COPY` puts one of them back.
    `rotate munge`, `exporter-token`, `database` or `grafana` draws a new secret, or takes the old one back if it fails.
    """
    if step == "inventory":
        parts.print_inventory(stack_file, redfish, user, password, ca)
    pages = {"--html": html, "--pdf": pdf}
    stack_file = _checked(step, stack_file, names, limit, bench, pages, full=full, dry_run=dry_run)
    from trainworks.api.deploying import Upkeep, apply_stack, check_stack, verify_stack, write_stack

    if step == "check":
        report = check_stack(stack_file)
        show(report, as_json=as_json)
        raise typer.Exit(int(any(finding.severity == "error" for finding in report.findings)))
    if into is None:
        raise UsageError(f"`{step}` writes a project", hint="name its folder: `--into FOLDER`")
    with option_errors("--into", into):
        if step == "render":
            return typer.echo("\n".join(map(str, map(into.joinpath, write_stack(stack_file, into, force=force)))))
        if step == "verify":
            found = partial(verify_stack, stack_file, into, force=force)
            raise typer.Exit(
                parts.verified(
                    stack_file, found, limit, bench, runs_folder(runs), full=full, as_json=as_json, html=html, pdf=pdf
                )
            )
        on_result = parts.print_result if not as_json else lambda result: None
        on_step = parts.print_step if not as_json else lambda step: None
        if step in get_args(_UpkeepStep):
            upkeep = Upkeep(stack_file, into, wait_s, on_result, on_step, batch, force)
            if dry_run:
                return show(upkeep.plan_upgrade(), as_json=as_json)
            done = upkeep.take(step, names or [])
        else:
            apply = partial(apply_stack, limit=limit, dry_run=step == "diff", batch=batch, wait_s=wait_s, force=force)
            done = apply(stack_file, into, on_result=on_result, on_step=on_step)
        parts.show_run(done, as_json=as_json)
        raise typer.Exit(int(done.failed or (step == "diff" and done.changed)))


def _checked(
    step: str,
    stack_file: Path | None,
    names: list[str] | None,
    limit: str | None,
    bench: Path | None,
    pages: Mapping[str, Path | None],
    *,
    full: bool,
    dry_run: bool,
) -> Path:
    """The stack file, unless there is none, or an option or a name that the step does not take."""
    if stack_file is None:
        raise UsageError("no stack file", place="STACK_FILE", hint=f"name it: `deploy {step} stack.yaml`")
    if bench is not None and (step != "verify" or limit is not None):
        raise UsageError("`--bench` accepts a whole cluster", place="--bench", hint="with `verify`, without `--limit`")
    if step != "verify" and (given := [option for option, path in pages.items() if path]):
        hint = f"read what `{step}` prints, or its `--json`"
        raise UsageError(f"`{given[0]}` is for `verify`", place=given[0], hint=hint)
    check_pages(*pages.values())
    if full and bench is None:
        raise UsageError("`--full` is for `--bench`", place="--full", hint="name the run file: `--bench RUN.yaml`")
    if dry_run and step != "upgrade":
        raise UsageError("`--dry-run` is for `upgrade`", place="--dry-run", hint="`diff` shows what `apply` changes")
    if names and step in get_args(_InstallStep):
        raise UsageError(f"`{step}` takes no name", place=names[0], hint=f"choose hosts by `--limit {names[0]}`")
    return stack_file
