"""The job store: what is in it is not lost, and of two writers one wins."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from tests.postgres import postgres_url
from trainworks.errors import DamagedStoreError, EnvironmentProblem, UsageError
from trainworks.jobs import database
from trainworks.jobs.database import SqliteFile, set_aside
from trainworks.jobs.job_row import Attempt, BilledAttempt, Billing, JobRow, Placement, billed_of_row, billing_of
from trainworks.jobs.job_spec import JobSpec, NodeResources, RoleSpec
from trainworks.jobs.migrations import VERSION
from trainworks.jobs.migrations.versions import v0001_jobs, v0002_cluster
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore, open_store
from trainworks.record.exit_code import End
from trainworks.units import Money

SPEC = JobSpec(
    run_id="demo-1",
    name="demo",
    min_nodes=1,
    max_nodes=2,
    node=NodeResources(cores=2.0, accelerators=8, accelerator="H100", alternatives=("A100:8",)),
    exclude=("node7",),
    depends_on=("3",),
    time_limit_s=60.0,
)
HOSTILE = ["'; DROP TABLE jobs; --", 'quo"te', "new\nline", "$(reboot)", "ünïcode ☃", "%s %(x)s", "\\", " "]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'jobs.db'}"
    else:
        yield postgres_url(tmp_path.name)


@pytest.fixture
def store(url: str) -> JobStore:
    """A store without jobs."""
    return open_store(url)


def add(store: JobStore, run_id: str = "demo-1", **changes: object) -> JobRow:
    """Submit a job."""
    spec = replace(SPEC, run_id=run_id, name=run_id.rpartition("-")[0], **changes)  # type: ignore[arg-type]
    return store.add(spec, run_dir=f"/runs/{run_id}", owner="ada", engine="local", now=1.5)


def test_a_job_comes_back_as_it_was_added(store: JobStore) -> None:
    added = add(store)
    assert store.get(added.id) == added
    assert (added.spec, added.state, added.submitted_at) == (SPEC, JobState.QUEUED, 1.5)


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_comes_back_as_it_was_written(store: JobStore, text: str) -> None:
    added = store.add(replace(SPEC, name=text), run_dir=text, owner=text, engine="local", now=1.0)
    assert store.find(text) == added
    assert [job.id for job in store.search(name=text, owner=text)] == [added.id]


def test_a_run_is_submitted_once(store: JobStore) -> None:
    assert add(store) == add(store)
    assert len(store.search()) == 1


def test_a_job_is_found_by_number_run_and_folder(store: JobStore) -> None:
    added = add(store)
    assert [store.find(text) for text in (str(added.id), "demo-1", "/runs/demo-1")] == [added] * 3
    assert store.find("demo-2") is None


def test_of_two_runs_of_one_name_the_newer_is_found(store: JobStore) -> None:
    store.add(SPEC, run_dir="/a/demo-1", owner="ada", engine="local", now=1.0)
    newer = store.add(SPEC, run_dir="/b/demo-1", owner="ada", engine="local", now=2.0)
    assert store.find("demo-1") == newer


def test_jobs_are_listed_newest_first_and_page_by_page(store: JobStore) -> None:
    ids = [add(store, f"demo-{number}").id for number in range(5)]
    first = store.search(limit=2)
    assert [job.id for job in first] == ids[:2:-1]
    assert [job.id for job in store.search(limit=2, before=first[-1].id)] == ids[2:0:-1]


def test_a_start_begins_an_attempt_with_its_nodes(store: JobStore) -> None:
    placement = (Placement("node1", 2.0, (0, 1)), Placement("node2", 2.0))
    started = store.start(add(store), placement, now=3.0)
    assert started is not None and (started.state, started.attempt, started.placement) == (
        JobState.STARTING,
        1,
        placement,
    )
    assert [(one.number, one.placement, one.ended_at) for one in store.attempts(started.id)] == [(1, placement, None)]


def test_a_billed_attempt_has_all_that_its_job_holds_and_who_pays(store: JobStore) -> None:
    cluster = json.dumps({"usd_per_accelerator_hour": 2.0, "slurm": {"account": "vision"}})
    job = store.add(SPEC, run_dir="/runs/demo-1", owner="ada", engine="slurm", now=1.5, cluster=cluster)
    store.start(job, (Placement("node1", 2.0), Placement("node2", 3.0)), now=3.0)
    store.move(job.id, JobState.FAILED, now=9.0)
    assert store.billed_attempts() == [
        BilledAttempt(job.id, "ada", Billing("vision", Money(2.0, "USD")), 1, 3.0, 9.0, 5.0, 16)
    ]


def test_an_attempt_costs_what_it_has_held_so_far() -> None:
    running = BilledAttempt(1, "ada", Billing("", Money(2.0, "CNY")), 1, 3600.0, None, 5.0, 16)
    assert [running.cost(at) for at in (1.5 * 3600.0, 0.0)] == [Money(16.0, "CNY"), Money(0.0, "CNY")]
    assert replace(running, ended_at=2 * 3600.0).cost(9 * 3600.0) == Money(32.0, "CNY")
    assert replace(running, billing=Billing()).cost(9 * 3600.0) is None


def test_the_price_of_a_stored_job_keeps_its_currency() -> None:
    assert billing_of('{"price": "20 CNY"}').hour_price == Money(20.0, "CNY")
    assert billing_of('{"price": 2.5}').hour_price == Money(2.5, "USD")
    assert billing_of("{}").hour_price is None


def test_a_job_that_was_started_is_not_started_again(store: JobStore) -> None:
    job = add(store)
    assert store.start(job, (), now=3.0) is not None
    assert store.start(job, (), now=3.0) is None
    assert len(store.attempts(job.id)) == 1


def test_an_attempt_ends_with_its_job(store: JobStore) -> None:
    job = add(store)
    store.start(job, (), now=3.0)
    assert store.move(job.id, End(JobState.FAILED, "oom", hint="ask for less", exit_code=1), now=9.0)
    (attempt,) = store.attempts(job.id)
    assert attempt.end == End("FAILED", "oom", hint="ask for less", exit_code=1, at=9.0)


def test_an_attempt_that_lost_its_place_has_ended(store: JobStore) -> None:
    job = add(store)
    store.start(job, (), now=3.0)
    store.move(job.id, JobState.PREEMPTED, now=9.0)
    assert [one.ended_at for one in store.attempts(job.id)] == [9.0]


def test_a_state_follows_only_those_that_it_may_follow(store: JobStore) -> None:
    job = add(store)
    assert not store.move(job.id, JobState.PREEMPTED, now=2.0)
    assert store.move(job.id, JobState.STOPPED, now=2.0)
    assert not store.move(job.id, JobState.RUNNING, now=3.0)


@pytest.mark.lane("test")
def test_of_many_that_start_one_job_one_succeeds(url: str) -> None:
    open_store(url)
    job = add(open_store(url))
    won: list[bool] = []

    def start() -> None:
        won.append(open_store(url).start(job, (), now=1.0) is not None)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won.count(True) == 1


def test_changes_are_told_in_their_order_and_once(store: JobStore) -> None:
    first, second = add(store, "a-1"), add(store, "b-1")
    store.change(first.id, held=True)
    changed = store.changed(first.version)
    assert [job.id for job in changed] == [second.id, first.id]
    assert store.changed(changed[-1].version) == []


def test_why_jobs_wait_is_no_change(store: JobStore) -> None:
    first, second = add(store, "a-1"), add(store, "b-1")
    why = {first.id: ("Resources", "needs 2 nodes", 1, 99.5), second.id: ("Priority", "behind job 1", 2, None)}
    store.explain(why)
    found = {job.id: (job.reason, job.detail, job.position, job.starts_at) for job in store.search()}
    assert found == why
    assert store.changed(second.version) == []


def test_a_job_that_has_ended_is_not_changed(store: JobStore) -> None:
    job = add(store)
    store.move(job.id, JobState.STOPPED, now=2.0)
    assert not store.change(job.id, held=True)


def test_a_drained_node_keeps_its_newest_reason(store: JobStore) -> None:
    store.drain("node1", "fan", now=1.0)
    store.drain("node1", "fire", now=2.0)
    assert store.drains() == {"node1": ("fire", None)}
    assert store.undrain("node1") and not store.undrain("node1")


def test_of_an_array_one_job_is_found_and_all_are_counted(store: JobStore) -> None:
    alone = add(store, "alone-1")
    members = [add(store, f"demo-{number}", array="array-kxbwtq") for number in range(2, 5)]
    store.move(members[2].id, JobState.STOPPED, now=5.0)
    assert [job.id for job in store.search(one_per_array=True)] == [members[2].id, alone.id]
    assert [job.id for job in store.search(states=[JobState.QUEUED], one_per_array=True)] == [members[1].id, alone.id]
    assert len(store.search(array="array-kxbwtq")) == 3
    assert store.array_states(["array-kxbwtq", "array-none"]) == {
        "array-kxbwtq": {JobState.QUEUED: 2, JobState.STOPPED: 1}
    }


def test_the_migrations_make_the_columns_and_indexes_that_the_store_reads_by(url: str) -> None:
    open_store(url)
    inspector = sa.inspect(engine := sa.create_engine(url))
    ends = {"state", "cause", "message", "hint", "exit_code", "ended_at"}
    columns = {"jobs": {one.name for one in fields(JobRow)} - {"spec"} | {"ticket", "array"}}
    columns["attempts"] = {one.name for one in fields(Attempt)}
    for table, known in columns.items():
        assert {column["name"] for column in inspector.get_columns(table)} == known - {"end"} | ends
    indexes = {f"jobs_by_{name}" for name in ("version", "state", "run_id", "name", "owner", "array")}
    assert indexes <= {index["name"] for index in inspector.get_indexes("jobs")}
    engine.dispose()


def test_a_store_is_brought_up_to_date_once_though_many_open_it(url: str) -> None:
    errors: list[BaseException] = []

    def look() -> None:
        try:
            open_store(url).search()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_the_newest_migration_is_the_version_that_the_program_knows() -> None:
    folder = Path(v0001_jobs.__file__).parent
    numbers = sorted(match[1] for path in folder.iterdir() if (match := re.fullmatch(r"v(\d{4})_\w+\.py", path.name)))
    assert numbers[-1] == VERSION


def test_a_store_of_the_first_version_keeps_its_jobs(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        context = MigrationContext.configure(connection)
        with Operations.context(context):
            v0001_jobs.upgrade()
        context.stamp(ScriptDirectory(str(Path(v0001_jobs.__file__).parents[1])), "0001")
        columns = {"id": 7, "run_id": "demo-1", "run_dir": "/runs/demo-1", "name": "demo", "owner": "ada"}
        columns |= {"engine": "slurm", "ticket": json.dumps(asdict(SPEC)), "state": "RUNNING"}
        columns |= {"priority": 50, "attempt": 1, "restarts": 0, "version": 3, "held": False, "reachable": True}
        columns |= {"submitted_at": 1.0, "changed_at": 2.0}
        names = ", ".join(columns)
        values = ", ".join(f":{name}" for name in columns)
        connection.execute(sa.text(f"INSERT INTO jobs ({names}) VALUES ({values})"), columns)
    engine.dispose()
    job = open_store(url).find("demo-1")
    assert job is not None
    assert (job.id, job.state, job.spec, job.cluster) == (7, JobState.RUNNING, SPEC, None)


def test_jobs_of_the_second_version_belong_to_the_account_of_their_owner_on_this_machine(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        context = MigrationContext.configure(connection)
        with Operations.context(context):
            v0001_jobs.upgrade()
            v0002_cluster.upgrade()
        context.stamp(ScriptDirectory(str(Path(v0001_jobs.__file__).parents[1])), "0002")
        for number, (owner, kind) in enumerate(
            [("root", "local"), ("nobody-of-that-name", "local"), ("root", "slurm")]
        ):
            columns = {"run_id": f"a-{number}", "run_dir": f"/runs/a-{number}", "name": "a", "owner": owner}
            columns |= {
                "engine": kind,
                "ticket": json.dumps(asdict(SPEC)),
                "state": "RUNNING",
                "asked_to_end": "stop",
            }
            columns |= {"priority": 50, "attempt": 1, "restarts": 0, "version": 3, "held": False, "reachable": True}
            columns |= {"submitted_at": 1.0, "changed_at": 2.0}
            places = ", ".join(f":{name}" for name in columns)
            connection.execute(sa.text(f"INSERT INTO jobs ({', '.join(columns)}) VALUES ({places})"), columns)
        connection.execute(sa.text("INSERT INTO nodes VALUES ('vm', 'fan', 1.0)"))
    engine.dispose()
    store = open_store(url)
    found = [(job.uid, job.asked_by, job.host) for job in reversed(store.search())]
    host, me = os.uname().nodename, os.getuid()
    assert found == [(0, 0, host), (me, me, host), (0, 0, None)]
    assert store.drains() == {"vm": ("fan", me)}


def test_jobs_are_asked_for_by_user_and_machine(store: JobStore) -> None:
    def job(number: int, uid: int, host: str) -> int:
        run = {"run_dir": f"/runs/{number}", "owner": "ann", "engine": "local"}
        return store.add(SPEC, **run, uid=uid, host=host, now=1.0).id  # type: ignore[arg-type]

    large = 2**32 - 2
    mine, _, _ = job(1, large, "gpu01"), job(2, large, "gpu02"), job(3, 7, "gpu01")
    wanted = {"uid": large, "host": "gpu01"}
    assert [one.id for one in store.search(**wanted)] == [mine]  # type: ignore[arg-type]
    assert [one.id for one in store.changed(0, engine="local", **wanted)] == [mine]  # type: ignore[arg-type]


def test_the_queues_of_a_user_are_those_of_jobs_that_have_not_ended(store: JobStore) -> None:
    queues = [("local", "a", 7), ("local", "b", 7), ("slurm", None, 7), ("local", "c", 8)]
    for number, (engine, host, uid) in enumerate(queues):
        store.add(SPEC, run_dir=f"/runs/{number}", owner="ann", engine=engine, host=host, uid=uid, now=1.0)
    store.move(store.search(host="b")[0].id, JobState.STOPPED, now=2.0)
    assert (store.live_queues(7), store.live_queues(9)) == ({("local", "a"), ("slurm", None)}, set())


def test_of_runs_of_one_name_that_of_the_user_who_asks_is_found_first(store: JobStore) -> None:
    mine = store.add(SPEC, run_dir="/a/demo-1", owner="ada", engine="local", uid=7, now=1.0)
    newer = store.add(SPEC, run_dir="/b/demo-1", owner="bob", engine="local", uid=8, now=2.0)
    assert [store.find("demo-1", uid=uid) for uid in (7, 8, 9, None)] == [mine, newer, newer, newer]


@pytest.mark.parametrize("other", [{"uid": 8, "host": "gpu01"}, {"uid": 7, "host": "gpu02"}])
def test_a_run_directory_of_another_user_or_machine_is_not_submitted_again(store: JobStore, other: dict) -> None:
    job = {"run_dir": "/a/demo-1", "owner": "ada", "engine": "local", "now": 1.0}
    first = store.add(SPEC, **job, uid=7, host="gpu01")
    assert store.add(SPEC, **job, uid=7, host="gpu01") == first
    with pytest.raises(UsageError, match="it is job 1 of ada on gpu01 already"):
        store.add(SPEC, **job, **other)


def test_a_store_of_a_newer_version_is_refused(url: str) -> None:
    with open_store(url)._database.transaction(writes=True) as transaction:
        transaction.count("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(EnvironmentProblem, match="has version 9999, and this version of Trainworks knows"):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "Could not parse"),
        ("sqlite:////nonexistent/folder/jobs.db", "unable to open database file"),
        ("sqlite://", "is not the name of a file"),
        ("sqlite:///jobs.db?timeout=5", "is not the name of a file"),
        ("oracle://me:geheim@db/jobs", "cannot open the job store"),
        ("postgresql+psycopg://me:geheim@127.0.0.1:1/jobs", "cannot open the job store"),
    ],
)
def test_a_store_that_cannot_be_opened_says_why_and_no_password(url: str, message: str) -> None:
    with pytest.raises(EnvironmentProblem, match=message) as raised:
        open_store(url)
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("/some/path", "write a URL: TRAINWORKS_STORE=sqlite:////some/path/jobs.db"),
        ("/some/store.db", "write a URL: TRAINWORKS_STORE=sqlite:////some/store.db"),
    ],
)
def test_a_path_in_the_place_of_a_url_gets_the_url_as_a_hint(text: str, hint: str) -> None:
    with pytest.raises(EnvironmentProblem, match="Could not parse") as raised:
        open_store(text)
    assert raised.value.hint == hint


def test_a_file_that_is_no_database_is_refused_and_can_be_rebuilt(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    text = "no database at all, but longer than a header of SQLite would be " * 9
    (tmp_path / "jobs.db").write_text(text)
    with pytest.raises(DamagedStoreError, match="not a database") as raised:
        open_store(url)
    assert str(raised.value.hint).endswith("trainworks jobs rebuild")
    assert set_aside(url).read_text() == text
    assert open_store(url).search() == []


def test_a_store_that_is_damaged_while_it_is_open_says_so(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    (tmp_path / "jobs.db").write_bytes(b"\xff" * 8192)
    with pytest.raises(DamagedStoreError, match="the job store is damaged"):
        store.search()


def test_a_store_knows_that_another_file_took_its_place(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    (tmp_path / "jobs.db").rename(tmp_path / "old.db")
    assert not store.is_replaced()
    open_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    assert store.is_replaced()


@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_file_that_is_deleted_while_it_is_opened_is_not_taken_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    url, bring = f"sqlite:///{tmp_path / 'jobs.db'}", SqliteFile._bring_up_to_date
    open_store(url).close()

    def deleted(file: SqliteFile) -> None:
        bring(file)
        monkeypatch.setattr(SqliteFile, "_bring_up_to_date", bring)
        (tmp_path / "jobs.db").unlink()
        if is_made_again:
            open_store(url).close()

    monkeypatch.setattr(SqliteFile, "_bring_up_to_date", deleted)
    opened = open_store(url, keep_connection=True)
    add(open_store(url))
    assert [job.run_id for job in opened.search()] == ["demo-1"] and not opened.is_replaced()
    opened.close()


def test_a_job_that_has_ended_gives_way_to_a_new_one_in_a_directory_of_its_name(store: JobStore) -> None:
    old = add(store)
    store.move(old.id, JobState.FAILED, now=2.0)
    new = add(store)
    assert (new.id > old.id, new.state, [row.id for row in store.search()]) == (True, JobState.QUEUED, [new.id])


def test_only_a_job_that_no_engine_has_got_is_removed(store: JobStore) -> None:
    refused, taken, started = add(store), add(store, "demo-2"), add(store, "demo-3")
    store.change(taken.id, handle="7")
    store.start(started, [], now=2.0)
    assert [store.remove(job.id) for job in (refused, taken, started)] == [True, False, False]
    assert {job.id for job in store.search()} == {taken.id, started.id}


def test_a_store_that_somebody_keeps_locked_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_BUSY_S", 0.05)
    store = open_store(f"sqlite:///{tmp_path / 'jobs.db'}")
    holder = sqlite3.connect(tmp_path / "jobs.db")
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(EnvironmentProblem, match="does not answer: database is locked"):
        add(store)
    holder.close()


def test_the_roles_of_a_job_are_kept_and_billed(store: JobStore) -> None:
    roles = (
        RoleSpec(name="trainer", nodes=2, node=SPEC.node, depends_on=("fetch",)),
        RoleSpec(name="fetch", nodes=1, node=NodeResources(cores=1.0), decides=False),
    )
    spec = replace(SPEC, roles=roles, min_nodes=3, max_nodes=3)
    row = add(store, roles=roles, min_nodes=3, max_nodes=3)
    assert row.spec == spec
    billed = {"job_id": 1, "owner": "ada", "number": 1, "started_at": 0.0, "ended_at": None, "cluster": None}
    placement = json.dumps([("a", 0.0, []), ("b", 0.0, []), ("c", 0.0, [])])
    assert billed_of_row(billed | {"ticket": json.dumps(asdict(spec)), "placement": placement}).accelerators == 16
