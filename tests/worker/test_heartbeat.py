"""Marks and answers cross from one process to another."""

from __future__ import annotations

import multiprocessing

from trainworks.worker.health.heartbeat import Beat, Heartbeat, HeartbeatBoard, Phase


def beat(path, local_rank):
    heartbeat = Heartbeat((path, local_rank))
    heartbeat.mark(Phase.DATA, 7)
    heartbeat.mark(Phase.COMPUTE, 7)
    heartbeat.answer({"waits_for": "all_reduce"})


def test_a_mark_of_another_process_is_seen_on_its_page_alone():
    board = HeartbeatBoard(3)
    process = multiprocessing.get_context("spawn").Process(target=beat, args=(board.path, 1))
    process.start()
    process.join()
    assert [board.read(rank) for rank in range(3)] == [Beat(), Beat(2, Phase.COMPUTE, 7), Beat()]
    assert [board.answer(rank) for rank in range(3)] == [None, {"waits_for": "all_reduce"}, None]


def test_a_cleared_board_has_forgotten_everything():
    board = HeartbeatBoard(1)
    beat(board.path, 0)
    board.clear()
    assert (board.read(0), board.answer(0)) == (Beat(), None)


def test_an_answer_that_is_too_long_is_left_out():
    board = HeartbeatBoard(1)
    Heartbeat((board.path, 0)).answer({"text": "x" * 5000})
    assert board.answer(0) is None


def test_marks_without_a_board_harm_nobody():
    heartbeat = Heartbeat()
    heartbeat.mark(Phase.OPTIMIZER, 3)
    assert heartbeat.last == Beat(1, Phase.OPTIMIZER, 3)
