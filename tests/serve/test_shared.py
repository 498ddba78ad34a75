"""Answers that visitors share."""

from __future__ import annotations

import itertools
import threading

from trainworks.serve.site import Shared


def test_an_old_answer_serves_while_a_new_one_is_made() -> None:
    shared, begun, may_end = Shared(), threading.Event(), threading.Event()
    assert shared.get("costs", lambda: "old", age_s=0.0) == "old"

    def compute() -> str:
        begun.set()
        assert may_end.wait(60)
        return "new"

    answers: list[str] = []
    first = threading.Thread(target=lambda: answers.append(shared.get("costs", compute, age_s=0.0)))
    first.start()
    assert begun.wait(60)
    assert shared.get("costs", compute, age_s=0.0) == "old"
    may_end.set()
    first.join()
    assert answers == ["new"]


def test_visitors_wait_for_the_first_answer_and_for_a_new_stamp() -> None:
    shared, computed = Shared(), list[int]()
    barrier = threading.Barrier(4)

    def visit(stamp: int) -> None:
        barrier.wait()
        assert shared.get("jobs", lambda: computed.append(stamp) or stamp, stamp=stamp) == stamp

    for stamp in (1, 2):
        threads = [threading.Thread(target=visit, args=(stamp,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert computed == [1, 2]


def test_visitors_who_came_before_a_computation_began_share_it_though_each_saw_another_stamp() -> None:
    looks, ticks = threading.Semaphore(0), itertools.count()
    begun, may_end = threading.Event(), threading.Event()
    computed: list[int] = []

    def now() -> float:
        looks.release()
        return float(next(ticks))

    def compute(stamp: int) -> int:
        begun.set()
        assert may_end.wait(60)
        computed.append(stamp)
        return stamp

    def visit(stamp: int) -> None:
        assert shared.get("run", lambda: compute(stamp), stamp=stamp) in computed

    shared = Shared(now)
    threads = [threading.Thread(target=visit, args=(stamp,)) for stamp in range(4)]
    threads[0].start()
    assert begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    for _ in range(2 + 3):  # the first visitor came and began, three others came
        assert looks.acquire(timeout=60)
    may_end.set()
    for thread in threads:
        thread.join()
    assert len(computed) == 2 and computed[0] == 0
    visit(4)
    assert len(computed) == 3, "one who came later gets what is new since"
