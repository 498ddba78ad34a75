"""What the backend asks of Slurm's programs, and what it makes of their answers, as 22.05 gave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeClock, FakeSlurm, spec
from trainworks.backends.backend import JobStatus
from trainworks.backends.slurm.backend import SlurmBackend
from trainworks.backends.slurm.client import SlurmClient, SlurmRefusedError
from trainworks.backends.slurm.render import mark_of
from trainworks.config.engines import Slurm
from trainworks.config.slurm.sbatch import parse_batch_script
from trainworks.errors import EnvironmentProblem, UnreachableError, UsageError
from trainworks.host.process import Output
from trainworks.jobs.job_spec import NodeResources
from trainworks.jobs.spec_of_run import spec_of
from trainworks.jobs.state import Cause, JobState
from trainworks.record.run_dir import RunDir

NO_ACCOUNTING = Output(1, "", "Slurm accounting storage is disabled\n")
SILENT = Output(1, "", "squeue: error: Unable to contact slurm controller (connect failure)\n")
UNKNOWN_JOB = Output(1, "", "slurm_load_jobs error: Invalid job id specified\n")
NODES = (
    "node1 |mixed |4/12/0/16|64000|gpu:h100:8|gpu:h100:3(IDX:0-2)|none \n"
    "node1 |mixed |4/12/0/16|64000|gpu:h100:8|gpu:h100:3(IDX:0-2)|none \n"
    "node2 |idle+drain|0/16/0/16|64000|gpu:h100:8|gpu:h100:0(IDX:N/A)|bad | gpu\n"
)


def row(
    job: str,
    word: str,
    *,
    het_job: str = "N/A",
    restarts: int = 0,
    used: str = "1:30",
    code: int = 0,
    start: str = "N/A",
    end: str = "N/A",
    nodes: str = "",
    tag: str = "",
    why: str = "None",
):
    times = f"{used:24}|{code:<16}|{start:24}|{end:24}"
    return f"{job:20}|{het_job:20}|{word:20}|{restarts:<8}|{times}|{nodes:40}|{tag:60}|{why:60}\n"


def backend_of(fake: FakeSlurm, clock: FakeClock | None = None, **options: Any) -> SlurmBackend:
    chosen = Slurm(**options)
    return SlurmBackend(chosen, client=SlurmClient(chosen.login, run=fake, env={"PATH": "/bin"}), clock=clock)


def submitted(fake: FakeSlurm, run_dir: RunDir, clock: FakeClock | None = None) -> str:
    one = backend_of(fake, clock)
    return one.submit(one.render(spec(), run_dir), run_dir)


def test_a_script_is_submitted_by_stdin(run_dir: RunDir) -> None:
    fake = FakeSlurm(sbatch="17\n")
    assert submitted(fake, run_dir) == "17"
    assert fake.asked("sbatch") == ["sbatch --parsable"] and fake.scripts[0].startswith("#!/bin/bash\n")


def test_the_answer_of_a_federation_names_the_cluster_too(run_dir: RunDir) -> None:
    assert submitted(FakeSlurm(sbatch="17;hpc\n"), run_dir) == "17"


def test_a_run_that_waits_already_is_not_submitted_again(run_dir: RunDir) -> None:
    fake = FakeSlurm(squeue=f"16 |other\n17 |{mark_of(run_dir)}  \n")
    assert submitted(fake, run_dir) == "17" and fake.asked("sbatch") == []


def test_a_job_whose_answer_was_lost_is_found_by_its_mark(run_dir: RunDir, clock: FakeClock) -> None:
    lost = EnvironmentProblem("`sbatch` took longer than 60 s")
    fake = FakeSlurm(sbatch=lost, squeue=["", "", f"17 |{mark_of(run_dir)}\n"])
    assert submitted(fake, run_dir, clock) == "17" and len(fake.asked("sbatch")) == 1


def test_a_submission_that_nobody_answers_is_an_error(run_dir: RunDir, clock: FakeClock) -> None:
    with pytest.raises(UnreachableError):
        submitted(FakeSlurm(sbatch=EnvironmentProblem("slow")), run_dir, clock)


def test_sbatch_s_refusal_is_passed_on_in_its_words(run_dir: RunDir) -> None:
    refusal = "sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission failed: Invalid\n"
    with pytest.raises(
        SlurmRefusedError, match=r"^invalid partition specified: nope; Batch job submission failed: Invalid$"
    ):
        submitted(FakeSlurm(sbatch=Output(1, "", refusal)), run_dir)


IMPOSSIBLE = Output(1, "", "sbatch: error: allocation failure: Requested node configuration is not available\n")
TWO_NODES = (
    "node1 |idle |0/16/0/16|64000|gpu:h100:8|gpu:h100:0(IDX:N/A)|none \n"
    "node2 |{state}|0/16/0/16|64000|gpu:h100:8|gpu:h100:0(IDX:N/A)|none \n"
)


@pytest.mark.parametrize(
    ("answers", "state", "nodes", "ending"),
    [
        ([IMPOSSIBLE, IMPOSSIBLE, "17\n"], "idle", 2, "17"),
        ([IMPOSSIBLE], "down*", 2, "Slurm refuses the job while 1 of 2 nodes are away: allocation failure: Requested"),
        ([IMPOSSIBLE], "down*", 1, "allocation failure: Requested node configuration is not available"),
        ([IMPOSSIBLE], "down*", 3, "allocation failure: Requested node configuration is not available"),
        ([IMPOSSIBLE], "idle", 2, "allocation failure: Requested node configuration is not available"),
    ],
    ids=["nodes have answered since", "one is away", "enough are there", "too few in all", "none is away"],
)
def test_a_job_that_lacks_only_nodes_that_are_away_is_not_called_impossible(
    run_dir: RunDir, clock: FakeClock, answers: list[Any], state: str, nodes: int, ending: str
) -> None:
    """slurmctld refuses jobs until the nodes have answered after its start, and while too many of them are down."""
    one = backend_of(FakeSlurm(sbatch=answers, sinfo=TWO_NODES.format(state=state)), clock)
    rendered = one.render(spec(min_nodes=nodes, max_nodes=nodes), run_dir)
    if ending == "17":
        assert one.submit(rendered, run_dir) == "17"
        return
    kind = UnreachableError if ending.startswith("Slurm") else SlurmRefusedError
    with pytest.raises(kind, match=f"^{ending}"):
        one.submit(rendered, run_dir)


@pytest.mark.parametrize(
    ("boot_s", "listed_s", "now_s", "is_lost"),
    [
        (5, 300, 10, True),
        (-40, 300, 10, False),  # started before it accepted the job
        (5, 300, 299, False),  # a job that a user cancelled may have left the list
        (5, 0, 9999, True),  # no job ever leaves the list
    ],
)
def test_a_job_that_is_not_listed_was_lost_if_slurmctld_restarted_and_would_list_it_had_it_ended(
    boot_s: int, listed_s: int, now_s: float, is_lost: bool
) -> None:
    said = f"Configuration data as of 1100\nBOOT_TIME       = {1000 + boot_s}\nMinJobAge       = {listed_s} sec\n"
    assert backend_of(FakeSlurm(scontrol=said)).has_lost(1000.0, 1000.0 + now_s) is is_lost


def test_without_the_settings_of_slurmctld_no_job_counts_as_lost() -> None:
    assert not backend_of(FakeSlurm(scontrol="Configuration data as of 1100\n")).has_lost(1000.0, 1010.0)


def test_one_question_for_all_jobs() -> None:
    waits = row("1", "PENDING", start="1795332189", why="Nodes required for job are DOWN | DRAINED")
    fake = FakeSlurm(squeue=waits + row("2", "RUNNING", restarts=1, nodes="node[1-2]"))
    assert backend_of(fake).poll(["1", "2"]) == {
        "1": JobStatus(
            state=JobState.QUEUED,
            raw="PENDING",
            reason="Nodes required for job are DOWN | DRAINED",
            starts_at=1795332189.0,
        ),
        "2": JobStatus(state=JobState.RUNNING, raw="RUNNING", nodes=("node1", "node2"), restarts=1),
    }
    assert len(fake.calls) == 1


@pytest.mark.parametrize(("code", "seen"), [(0, 0), (7 << 8, 7), (15, 143)])
def test_the_exit_code_of_a_job_that_has_ended(code: int, seen: int) -> None:
    status = backend_of(FakeSlurm(squeue=row("1", "FAILED", code=code))).poll(["1"])["1"]
    assert (status.exit_code, status.cause) == (seen, Cause.USER_ERROR)


def test_the_end_of_a_job_is_slurms_and_a_running_job_has_none() -> None:
    said = row("1", "FAILED", start="100", end="160") + row("2", "RUNNING", start="100", end="400")
    seen = backend_of(FakeSlurm(squeue=said)).poll(["1", "2"])
    assert [(one.starts_at, one.ended_at) for one in seen.values()] == [(100.0, 160.0), (100.0, None)]


def test_a_job_that_slurm_forgot_is_in_accounting() -> None:
    fake = FakeSlurm(squeue=UNKNOWN_JOB, sacct="1|NODE_FAIL|0:15|1795332189|1795332199|node[1-2]\n")
    assert backend_of(fake).poll(["1"]) == {
        "1": JobStatus(
            state=JobState.FAILED,
            raw="NODE_FAIL",
            cause=Cause.NODE_LOST,
            nodes=("node1", "node2"),
            exit_code=143,
            starts_at=1795332189.0,
            ended_at=1795332199.0,
        )
    }


@pytest.mark.parametrize("word", ["PENDING", "RUNNING"])
def test_a_job_that_slurmctld_lost_is_not_what_accounting_still_says(word: str) -> None:
    fake = FakeSlurm(squeue=UNKNOWN_JOB, sacct=f"1|{word}|0:0|1795332189|Unknown|node1\n")
    assert backend_of(fake).poll(["1"]) == {}


def test_without_accounting_a_forgotten_job_is_left_out_and_sacct_is_asked_once() -> None:
    fake = FakeSlurm(squeue=UNKNOWN_JOB, sacct=NO_ACCOUNTING)
    one = backend_of(fake)
    assert (one.poll(["1"]), one.poll(["1"]), len(fake.asked("sacct"))) == ({}, {}, 1)


def test_without_the_program_sacct_there_is_no_accounting() -> None:
    assert backend_of(FakeSlurm(squeue=UNKNOWN_JOB, sacct=FileNotFoundError())).poll(["1"]) == {}


@pytest.mark.parametrize(
    ("sacct", "who"),
    [
        ("1|CANCELLED by 0|0:0|1795332189|1795332199|node1\n", "cancelled in Slurm by root"),
        ("1|RUNNING|0:0|1795332189|Unknown|node1\n", None),  # accounting comes later
        (NO_ACCOUNTING, None),
    ],
)
def test_accounting_knows_who_cancelled_a_job(sacct: Any, who: str | None) -> None:
    fake = FakeSlurm(squeue=row("1", "CANCELLED", nodes="node1"), sacct=sacct)
    status = backend_of(fake).poll(["1"])["1"]
    assert (status.state, status.nodes, status.ended_by) == (JobState.STOPPED, ("node1",), who)


def test_another_complaint_of_sacct_is_not_hidden() -> None:
    with pytest.raises(SlurmRefusedError, match="Invalid field requested"):
        backend_of(FakeSlurm(squeue=UNKNOWN_JOB, sacct=Output(1, "", "sacct: fatal: Invalid field requested"))).poll(
            ["1"]
        )


def test_accounting_that_does_not_answer_says_nothing_of_a_job() -> None:
    fake = FakeSlurm(squeue=UNKNOWN_JOB, sacct=Output(1, "", "sacct: error: Connection refused\n"))
    assert backend_of(fake).poll(["1"])["1"].state is JobState.UNKNOWN


def test_a_controller_that_does_not_answer_says_nothing_of_any_job() -> None:
    with pytest.raises(UnreachableError, match="Slurm does not answer: Unable to contact slurm controller"):
        backend_of(FakeSlurm(squeue=SILENT)).poll(["1"])


@pytest.mark.parametrize(
    "words",
    [
        "sbatch: error: slurm_msg_sendto: address:port=127.0.0.1:6817 msg_type=4012: Unexpected missing socket error\n"
        "allocation failure: Unexpected missing socket error",
        "allocation failure: Message send failure",
        "allocation failure: Communication connection failure",
        "allocation failure: Communication shutdown failure",
    ],
)
def test_a_slurmctld_that_goes_away_while_it_is_asked_does_not_answer_and_does_not_refuse(words: str) -> None:
    fake = FakeSlurm(sinfo="gpu:A100:8\n", sbatch=Output(1, "", words))
    with pytest.raises(UnreachableError, match="Slurm does not answer"):
        backend_of(fake).probe(GPUS)


def test_a_job_that_slurm_holds_after_a_failed_launch_is_released() -> None:
    fake = FakeSlurm(squeue=row("1", "PENDING", restarts=1, why="launch failed requeued held"))
    assert backend_of(fake).poll(["1"])["1"].state is JobState.QUEUED
    assert fake.asked("scontrol") == ["scontrol release 1"]


def test_a_job_whose_launch_fails_again_and_again_stays_held() -> None:
    fake = FakeSlurm(squeue=row("1", "PENDING", restarts=4, why="launch failed requeued held"))
    backend_of(fake).poll(["1"])
    assert fake.asked("scontrol") == []


def test_a_job_that_a_person_holds_is_left_alone() -> None:
    fake = FakeSlurm(squeue=row("1", "PENDING", why="JobHeldUser"))
    backend_of(fake).poll(["1"])
    assert fake.asked("scontrol") == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"time_limit_s": 5400.0}, ["TimeLimit=0-01:30:00"]),
        ({"priority": 10, "name": "late"}, ["JobName=late", "Nice=4000"]),
        ({"exclude": ("node7", "node8")}, ["ExcNodeList=node7,node8"]),
        ({"team": "vision"}, ["Account=vision"]),
        ({"max_restarts": 4, "restart_window_s": 60.0}, []),
    ],
)
def test_a_waiting_job_is_edited_in_one_call(changes: dict[str, Any], words: list[str]) -> None:
    fake = FakeSlurm()
    backend_of(fake).edit("1", spec(), spec(**changes))
    assert fake.asked("scontrol") == ([" ".join(["scontrol update JobId=1", *words])] if words else [])


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"grace_s": 5.0, "priority": 10}, {}, "does not change `grace`"),
        ({"depends_on": ("1",)}, {}, "does not change `depends_on`"),
        ({"time_limit_s": None}, {}, "does not change `time_limit`"),
        ({"time_limit_s": 60.0}, {"options": ["--time=5"]}, "sets `--time`"),
        ({"team": "vision"}, {"account": "audio"}, "sets `--account`"),
    ],
)
def test_what_slurm_does_not_change_is_refused_before_it_is_asked(
    changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    fake = FakeSlurm()
    with pytest.raises(UsageError, match=message):
        backend_of(fake, **options).edit("1", spec(time_limit_s=3600.0), spec(**{"time_limit_s": 3600.0} | changes))
    assert fake.calls == []


def test_an_edit_that_slurm_refuses_says_who_may() -> None:
    denied = Output(1, "", "Access/permission denied for job 1\n")
    with pytest.raises(SlurmRefusedError, match="permission denied") as refused:
        backend_of(FakeSlurm(scontrol=denied)).edit("1", spec(priority=10), spec(priority=50))
    assert "operator" in str(refused.value.hint)


def test_a_stop_that_slurm_refuses_says_who_may() -> None:
    denied = Output(1, "", "scancel: error: Kill job error on job id 1: Access/permission denied\n")
    with pytest.raises(SlurmRefusedError, match="permission denied") as refused:
        backend_of(FakeSlurm(scancel=denied)).stop("1")
    assert refused.value.hint == "ask the owner of the job, or an operator of Slurm"


def test_a_stop_cancels_what_waits_and_asks_what_runs() -> None:
    fake = FakeSlurm()
    backend_of(fake).stop("1")
    assert fake.asked("scancel") == ["scancel --state=PENDING 1", "scancel --batch --signal=INT 1"]


def test_a_job_that_has_ended_is_not_stopped() -> None:
    gone = Output(1, "", "scancel: error: Kill job error on job id 1: Invalid job id specified\n")
    backend_of(FakeSlurm(scancel=gone)).stop("1", at_once=True)


def test_nodes_are_listed_once_with_what_is_taken() -> None:
    fake = FakeSlurm(sinfo=NODES, squeue="7 |N/A |node[1,3]\n")
    first, second = backend_of(fake).nodes()
    assert (first.name, first.state, first.cores_taken, first.accelerators_taken, first.jobs) == (
        "node1",
        "mixed",
        4.0,
        3,
        ("7",),
    )
    assert (second.state, second.reason, second.accelerators, second.accelerator) == ("drained", "bad | gpu", 8, "h100")


def test_nodes_name_their_leaf_switch_where_slurm_knows_it() -> None:
    topology = (
        "SwitchName=spine Level=1 LinkSpeed=1 Nodes=node[1-2] Switches=leaf[1-2]\n"
        "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=node1\nSwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=node[2-4]\n"
    )
    found = backend_of(FakeSlurm(sinfo=NODES, squeue="", scontrol=topology)).nodes()
    assert [node.switch for node in found] == ["leaf1", "leaf2"]
    without = Output(1, "", "slurm_load_topo error: Requested topology configuration is not available")
    assert [node.switch for node in backend_of(FakeSlurm(sinfo=NODES, squeue="", scontrol=without)).nodes()] == [
        None
    ] * 2


def test_a_reason_to_drain_is_one_line() -> None:
    fake = FakeSlurm()
    backend_of(fake).drain("node1", "bad 'gpu'\nXid 79")
    assert fake.calls == [["scontrol", "update", "NodeName=node1", "State=DRAIN", "Reason=bad 'gpu' Xid 79"]]


def test_through_a_login_node_every_argument_is_quoted() -> None:
    fake = FakeSlurm()
    backend_of(fake, login="ada@login1").drain("node1", "it's $(bad)")
    *ssh, command = fake.calls[-1]
    assert ssh[0] == "ssh" and ssh[-1] == "ada@login1"
    assert command == (
        "env LC_ALL=C SLURM_TIME_FORMAT=%s scontrol update NodeName=node1 State=DRAIN 'Reason=it'\"'\"'s $(bad)'"
    )


def test_a_login_node_that_is_away_says_nothing_of_any_job() -> None:
    with pytest.raises(UnreachableError, match="`ada@login1` does not answer"):
        backend_of(FakeSlurm(ssh=Output(255, "", "ssh: connect to host login1: no route\n")), login="ada@login1").poll(
            ["1"]
        )


def test_without_slurm_the_hint_names_the_login_node() -> None:
    with pytest.raises(EnvironmentProblem, match="`squeue` is not installed here") as refused:
        backend_of(FakeSlurm(squeue=FileNotFoundError())).poll(["1"])
    assert refused.value.hint == "set `cluster.slurm.login` to the node that has it"


def test_what_the_shell_has_set_for_slurm_does_not_change_the_job() -> None:
    fake = FakeSlurm()
    env = {
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_JOB_ID": "3",
        "SBATCH_PARTITION": "spot",
        "SBATCH_ACCOUNT": "ai",
        "A": "1",
    }
    SlurmClient(run=fake, env=env).submit("#!/bin/bash\n#SBATCH --partition=train\n")
    assert fake.env == {"SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "ai", "A": "1"}


def test_what_the_shell_has_set_for_squeue_does_not_change_its_answer() -> None:
    fake = FakeSlurm()
    SlurmClient(run=fake, env={"SQUEUE_FORMAT": "%i", "A": "1"}).call("squeue")
    assert fake.env == {"A": "1", "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}


GPUS = spec(node=NodeResources(accelerators=8, accelerator="A100"))


@pytest.mark.parametrize("gres", ["gpu:a100:8(S:0-1)\n(null)\n", "shard:4,gpu:nvidia_a100_80gb_pcie:8\n"])
def test_an_accelerator_has_the_name_that_the_cluster_gives_it(gres: str) -> None:
    fake = FakeSlurm(sinfo=gres, sbatch="")
    name = gres.split("gpu:")[1].partition(":")[0]
    assert backend_of(fake).adapted(GPUS).node.accelerator == name
    backend_of(fake).probe(GPUS)
    assert f"#SBATCH --gres=gpu:{name}:8\n" in fake.scripts[0]


@pytest.mark.parametrize("part", ["nvidia_h100_80gb_hbm3_3g.40gb", "1g.10gb"])
def test_a_part_of_an_accelerator_is_requested_by_its_name(part: str) -> None:
    fake = FakeSlurm(sinfo=f"gpu:nvidia_h100_80gb_hbm3:8,gpu:{part}:2(S:0-1)\n", sbatch="")
    read, _ = parse_batch_script(f"#!/bin/bash\n#SBATCH --gres=gpu:{part}:1\nsrun a\n", name="a.sbatch")
    backend_of(fake).probe(spec_of(read, run_id="a-1", working_folder="/"))
    assert f"#SBATCH --gres=gpu:{part}:1\n" in fake.scripts[0]


@pytest.mark.parametrize(
    ("gres", "error", "hint"),
    [
        ("gpu:h100:8\ngpu:v100:4,gpu:t4:1\n", "the cluster has no accelerator `A100`", "it has `h100`, `t4`, `v100`"),
        ("gpu:8\n", "the cluster has no accelerator `A100`", "it names none; where it has some, write `gpu:8`"),
        ("gpu:a100_40gb:8\ngpu:a100_80gb:8\n", "may be any of `a100_40gb`, `a100_80gb`", "write one of them"),
    ],
)
def test_an_accelerator_that_is_not_there_is_refused_with_those_that_are(gres: str, error: str, hint: str) -> None:
    with pytest.raises(UsageError, match=error) as refused:
        backend_of(FakeSlurm(sinfo=gres)).adapted(GPUS)
    assert str(refused.value.hint).startswith(hint)


def test_the_cluster_is_not_asked_where_no_accelerator_has_a_name() -> None:
    fake = FakeSlurm()
    cores, any_gpu = NodeResources(cores=1.0), NodeResources(accelerators=8, accelerator="gpu")
    assert backend_of(fake).adapted(spec(node=cores)).node == cores
    assert backend_of(fake).adapted(spec(node=any_gpu)).node == NodeResources(accelerators=8)
    assert fake.asked("sinfo") == []


def test_the_queue_has_the_jobs_of_all_users_and_the_run_directories_of_ours() -> None:
    """One that another program submitted is not looked into, though it may write anywhere."""
    lines = [
        "7|N/A|RUNNING|alice|vision|1000|8|cpu=8,mem=1G,node=2,gres/gpu=2,gres/gpu:h100=2|n[1-2]"
        "|trainworks:lm-1:0123456789ab|lm|/shared/alice/runs/lm-1/logs/supervisor.log|None",
        "9|N/A|PENDING|bob|(null)|2500|4|cpu=4||(null)|bash|/shared/bob/slurm-9.out|JobHeldUser",
    ]
    fake = FakeSlurm(squeue="\n".join(lines) + "\n")
    ours, other = backend_of(fake).queue()
    assert (ours.name, ours.owner, ours.team, ours.nodes) == ("lm-1", "alice", "vision", ("n1", "n2"))
    assert (ours.cores, ours.accelerators, ours.run_dir) == (8.0, 2, Path("/shared/alice/runs/lm-1"))
    assert (other.state, other.held, other.submitted_at, other.team) == (JobState.QUEUED, True, 2500.0, "")
    assert (other.run_dir, other.nodes, other.cores) == (None, (), 0.0)
    assert "--states=all" in fake.asked("squeue")[0]
