"""A script that brings QOS, accounts and users of Slurm to what a stack says, and prints what it changed.

A second run changes nothing. It removes no QOS, account or user that the stack does not name: their history of usage is
attached to them.

Source: sacctmgr(1) of Slurm 22.05, whose fields these are.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from trainworks.config.slurm.sbatch_amounts import parse_slurm_time
from trainworks.config.stack import Stack
from trainworks.config.stack_parts.scheduler import QualityOfService, SlurmAccount, StackUser
from trainworks.deploy.templating import render

_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60


def accounts_script(stack: Stack) -> str:
    """Text of the script; the parents of accounts come before them."""
    slurm = stack.slurm
    named = {account.name for account in slurm.accounts}
    plain = [SlurmAccount(name=user.account) for user in stack.users if user.account not in named]
    lines = [line for qos in slurm.qos for line in _qos(qos)]
    lines += [line for each in (*slurm.accounts, *dict.fromkeys(plain)) for line in _account(stack.name, each)]
    lines += [line for user in stack.users for line in _user(stack.name, user)]
    return render("slurm/accounts.sh", cluster=stack.name, lines=lines)


def _qos(qos: QualityOfService) -> Iterator[str]:
    gpus = f"gres/gpu={qos.max_gpus_per_user}" if qos.max_gpus_per_user else ""
    wall, jobs = slurm_time(qos.max_time), str(qos.max_jobs_per_user or "")
    show, change = f"qos where name={qos.name}", f"modify qos {qos.name} set"
    yield _ensure(f"{show} format=Name", qos.name, f"add qos {qos.name}")
    yield _ensure(f"{show} format=Priority", str(qos.priority), f"{change} Priority={qos.priority}")
    # -1 takes a limit away
    yield _ensure(f"{show} format=MaxWall", wall, f"{change} MaxWall={wall or -1}")
    yield _ensure(f"{show} format=MaxTRESPU", gpus, f"{change} MaxTRESPerUser={gpus or 'gres/gpu=-1'}")
    yield _ensure(f"{show} format=MaxJobsPU", jobs, f"{change} MaxJobsPerUser={jobs or -1}")
    yield _ensure(f"{show} format=Preempt", _sorted(qos.preempts), f"{change} Preempt={','.join(qos.preempts)}")


def _account(cluster: str, account: SlurmAccount) -> Iterator[str]:
    gpus = f"gres/gpu={account.max_gpus}" if account.max_gpus else ""
    hours = account.accelerator_hours_per_month
    minutes = "" if hours is None else f"gres/gpu={max(1, round(hours * 60))}"
    qos = ("normal", *account.qos)
    default = account.qos[0] if account.qos else "normal"
    place = f"name={account.name} cluster={cluster}"
    show = f"association where account={account.name} cluster={cluster} user="
    change = f"modify account where {place} set"
    parent, share = account.parent, account.share
    yield _ensure(
        f"{show} format=Account", account.name, f"add account {account.name} cluster={cluster} parent={parent}"
    )
    yield _ensure(f"{show} format=ParentName", parent, f"{change} Parent={parent}")
    yield _ensure(f"{show} format=Share", str(share), f"{change} Fairshare={share}")
    yield _ensure(f"{show} format=GrpTRES", gpus, f"{change} GrpTRES={gpus or 'gres/gpu=-1'}")
    yield _ensure(f"{show} format=GrpTRESMins", minutes, f"{change} GrpTRESMins={minutes or 'gres/gpu=-1'}")
    yield _ensure(f"{show} format=QOS", _sorted(qos), f"{change} QosLevel={','.join(qos)}")
    yield _ensure(f"{show} format=DefaultQOS", default, f"{change} DefaultQOS={default}")


def _user(cluster: str, user: StackUser) -> Iterator[str]:
    show = f"association where user={user.name} account={user.account} cluster={cluster}"
    yield _ensure(f"{show} format=User", user.name, f"add user {user.name} account={user.account} cluster={cluster}")
    if user.administers:
        there = f"$(fields account withcoord where name={user.account} format=Coordinators)"
        names = f"account={user.account} names={user.name}"
        yield f'[[ ",{there}," == *,{user.name},* ]] || change add coordinator {names}'


def _ensure(show: str, wanted: str, command: str) -> str:
    return f"ensure {shlex.quote(show)} {shlex.quote(wanted)} {shlex.quote(command)}"


def _sorted(names: tuple[str, ...]) -> str:
    return ",".join(sorted(names))


def slurm_time(text: str | None) -> str:
    """A time as sacctmgr prints it; empty without a limit.

    >>> slurm_time("30:00"), slurm_time("7-00:00:00"), slurm_time("UNLIMITED")
    ('00:30:00', '7-00:00:00', '')
    """
    seconds = parse_slurm_time(text) if text is not None else None
    if seconds is None:
        return ""
    days, rest = divmod(int(seconds), _DAY_S)
    hours, rest = divmod(rest, _HOUR_S)
    clock = f"{hours:02}:{rest // _MINUTE_S:02}:{rest % _MINUTE_S:02}"
    return f"{days}-{clock}" if days else clock
