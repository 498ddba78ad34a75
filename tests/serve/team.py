"""The queue of a team: jobs of four people over two months, runs of one model, a sweep, and a run that goes on."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from tests.report.conftest import LAUNCH_AT, WORKLOAD, RunWriter, make_plan
from trainworks.config.run_file import RunFile
from trainworks.host.users import this_host
from trainworks.jobs.job_row import Attempt, JobChanges, Placement
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.store import JobStore, open_store
from trainworks.record.exit_code import End
from trainworks.record.sweeps.sweep import SweepDefinition, SweepTrial, sweep_dir
from trainworks.system import user_id

PEOPLE = {"ada": "language", "grace": "language", "edsger": "vision", "barbara": "speech"}
"""User -> team."""
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
_NUM_OTHERS = 60
_ENDS = (
    End("SUCCEEDED", exit_code=0),
    End("SUCCEEDED", exit_code=0),
    End("FAILED", "out of memory", "rank 3 needs 412 MB more than its accelerator has", exit_code=1),
    End("SUCCEEDED", exit_code=0),
    End("STOPPED", "stopped by user"),
    End("LOST", "node failure", "node-7 does not answer"),
)
_OTHER_USER = user_id() + 1
"""Owner of the jobs of a cluster that this machine does not reach: its backend is not asked for the jobs of others."""


@dataclass(frozen=True, slots=True)
class Team:
    """Names of what the queue holds."""

    runs: list[str]
    """Five runs that differ in their learning rate; the third one failed once and was started again."""
    live: str
    """A run that goes on."""
    sweep: str
    drained: str
    """Node that takes no jobs."""


def fill(store_url: str, runs: Path) -> Team:
    """Write all of it: a queue by its URL, and records below a folder of runs."""
    store = open_store(store_url)
    for number in range(_NUM_OTHERS):
        _job_of_a_cluster(store, number)
    _waiting_jobs(store)
    trained = [_trained(store, runs, number, rate) for number, rate in enumerate(RATES)]
    _sweep(runs, trained)
    drained = f"{this_host()}-2"
    store.drain(drained, "an uncorrectable error of its memory; replaced on Tuesday", now=LAUNCH_AT, uid=user_id())
    live = RunWriter(runs, make_plan(), None, name="llama-live").launch()
    live.steps(140).checkpoint().steps(25).status("RUNNING", supervisor_host="elsewhere")
    return Team(trained, live.run_dir.run_id, "rates", drained)


def _spec(name: str, owner: str, *, nodes: int = 2, accelerators: int = 8) -> JobSpec:
    return JobSpec(
        run_id=f"{name}-1",
        name=name,
        team=PEOPLE[owner],
        min_nodes=nodes,
        max_nodes=nodes,
        node=NodeResources(accelerators=accelerators),
    )


def _job_of_a_cluster(store: JobStore, number: int) -> None:
    """One that has ended, ten hours after the one before it."""
    owner, end = [*PEOPLE][number % len(PEOPLE)], _ENDS[number % len(_ENDS)]
    begins_at = LAUNCH_AT - (_NUM_OTHERS - number) * 36_000.0
    nodes = (Placement("node-1", 64, tuple(range(8))), Placement("node-2", 64, tuple(range(8))))
    price = json.dumps({"usd_per_accelerator_hour": 2.5} if number % 3 else {})
    spec, end = _spec(f"{PEOPLE[owner]}-pretraining-{number}", owner), replace(end, at=begins_at + 9_000.0)
    columns: JobChanges = {"cluster": price, "uid": _OTHER_USER, "placement": nodes}
    _write_ended(store, spec, owner, "slurm", f"/srv/runs/{number}", begins_at, end, columns)


def _write_ended(
    store: JobStore,
    spec: JobSpec,
    owner: str,
    engine: str,
    run_dir: str,
    begins_at: float,
    end: End,
    columns: JobChanges,
) -> None:
    """A job with one attempt, which ended with it."""
    columns |= {"attempt": 1, "started_at": begins_at}
    at = begins_at - 900.0
    store.restore(spec, run_dir=run_dir, owner=owner, engine=engine, submitted_at=at, end=end, columns=columns)
    job = store.find(run_dir)
    assert job is not None
    attempt = Attempt(job_id=job.id, number=1, started_at=begins_at, end=end, placement=job.placement)
    store.write_attempts(job.id, [attempt])


def _waiting_jobs(store: JobStore) -> None:
    """Three of other users, who wait for a cluster."""
    for number, owner in enumerate(("barbara", "edsger", "grace")):
        spec = _spec(f"{PEOPLE[owner]}-fine-tuning-{number}", owner, nodes=16)
        job = store.add(
            spec, run_dir=f"/srv/waiting/{number}", owner=owner, engine="slurm", now=LAUNCH_AT, uid=_OTHER_USER
        )
        why = "waits for 16 nodes with accelerators of the partition train"
        store.explain({job.id: ("resources", why, number + 1, LAUNCH_AT + 3_600.0)})


def _trained(store: JobStore, runs: Path, number: int, rate: float) -> str:
    """Id of a run of this machine's queue."""
    writer = RunWriter(runs, make_plan(), None, name="llama")
    workload = WORKLOAD | {"optimizer": {"name": "adamw", "lr": rate}}
    resolved = writer.run_dir.read_resolved()
    run_file = RunFile.model_validate({"name": "llama", "workload": workload})
    writer.run_dir.write_resolved(resolved.model_copy(update={"run_file": run_file}))
    writer.launch().steps(100, loss=4.0 - number / 4).steps(80, evaluation=3.1 - number / 8).checkpoint()
    if number == 2:
        writer.steps(30).wait(2).fail().wait(3).attempt(from_step=180)
    writer.steps(120, communication_s=0.02 + number / 100).checkpoint().finish()
    writer.run_dir.rank_log(0).write_text("".join(f"step {step}: loss 2.5\n" for step in range(1, 301)))
    spec = replace(_spec("llama", "ada", nodes=1, accelerators=0), run_id=writer.run_dir.run_id)
    run_dir, end = str(writer.run_dir.path.resolve()), End("SUCCEEDED", exit_code=0, at=writer.at)
    nodes = (Placement(f"{this_host()}-1", 0.5),)
    columns: JobChanges = {"uid": user_id(), "host": this_host(), "placement": nodes}
    _write_ended(store, spec, "ada", "local", run_dir, LAUNCH_AT, end, columns)
    return writer.run_dir.run_id


def _sweep(runs: Path, trained: list[str]) -> None:
    """Two trials more than there are runs: one that failed, and one that a rule ended."""
    place = sweep_dir(runs, "rates")
    place.path.mkdir(parents=True)
    space = {"workload.optimizer.lr": list(RATES), "workload.optimizer.name": ["adamw", "sgd"]}
    place.write_definition(
        SweepDefinition(
            name="rates",
            run_file={},
            space=space,
            search="grid",
            num_trials=len(RATES) + 2,
            seed=0,
            objective="loss",
            pruning="median",
        )
    )
    for number, (rate, run) in enumerate(zip(RATES, trained, strict=True)):
        settings = {"workload.optimizer.lr": rate, "workload.optimizer.name": "adamw"}
        place.append(
            SweepTrial(
                number=number, settings=settings, run_name="llama", run=run, state="succeeded", value=2.9 - number / 9
            )
        )
    for number, state, message in ((5, "failed", "the loss is not a number since step 17"), (6, "pruned", None)):
        settings = {"workload.optimizer.lr": RATES[number - 5], "workload.optimizer.name": "sgd"}
        place.append(
            SweepTrial(
                number=number,
                settings=settings,
                run_name="llama",
                state="failed" if state == "failed" else "pruned",
                value=None if state == "failed" else 5.5,
                message=message,
            )
        )
