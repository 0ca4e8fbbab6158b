import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

import psutil
import pytest

from mlxdoctor.gate.examine import Examined
from mlxdoctor.gate.workers import Workers, cluster, examine_all, here, processes
from mlxdoctor.safety.errors import InputError
from tests.formats import sample
from tests.gate.given import by_name, told

DONE = Examined(sample.made(sample.healthy()), "", 0.0)


def examined(workers: Workers, items: Sequence[str]) -> dict[str, Examined]:
    """What came of every item, each exactly once."""
    found: dict[int, Examined] = {}

    def finished(number: int, one: Examined) -> None:
        assert number not in found
        found[number] = one

    examine_all(items, workers, finished)
    return {items[number]: found[number] for number in range(len(items))}


def workers_of(kind: str, seconds: float = 60.0) -> Workers:
    function = partial(by_name, seconds=seconds)
    return processes(2, function) if kind == "processes" else here(function)


def children() -> set[int]:
    return {one.pid for one in psutil.Process().children()}


@pytest.mark.slow
def test_every_kind_of_worker_gives_the_same() -> None:
    paths = [f"{'slow' if number % 3 == 0 else 'item'}-{number}" for number in range(8)]
    in_one = examined(workers_of("here"), paths)
    in_two = examined(workers_of("processes"), paths)
    for found in (in_one, in_two):
        assert [told(one)["path"] for one in found.values() if one.report] == paths
    assert len({told(one)["pid"] for one in in_one.values() if one.report}) == 1
    assert len({told(one)["pid"] for one in in_two.values() if one.report}) == 2


@pytest.mark.slow
def test_an_item_that_raises_kills_or_never_ends_is_named_and_the_rest_goes_on() -> None:
    paths = ("a", "slow-b", "killer-1", "broken", "endless", "slow-d", "killer-2", "e")
    started = time.monotonic()
    found = examined(workers_of("processes", seconds=1.0), paths)
    assert time.monotonic() - started < 120
    killed = "the work was stopped: it ended the program without a word (exit status 9)"
    problems = {path: one.problem for path, one in found.items() if one.report is None}
    assert problems == {
        "killer-1": f"killer-1: {killed}",
        "killer-2": f"killer-2: {killed}",
        "broken": "broken: its worker was lost (RuntimeError); examine it alone with "
        "`mlxdoctor diagnose`",
        "endless": "endless: examining endless was stopped: it took over 1 s; allow more with "
        "--time-limit",
    }
    assert all(told(one)["path"] == path for path, one in found.items() if one.report)
    in_one = examined(workers_of("here"), ("a", "broken", "b"))
    assert in_one["broken"].problem == problems["broken"]
    assert [path for path, one in in_one.items() if one.report] == ["a", "b"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["here", "processes"])
def test_an_interruption_keeps_what_is_done_and_leaves_no_process(kind: str) -> None:
    before = children()
    found: list[int] = []

    def finished(number: int, _: Examined) -> None:
        found.append(number)
        raise KeyboardInterrupt

    started = time.monotonic()
    items = ("a", "endless" if kind == "processes" else "b", "c")
    examine_all(items, workers_of(kind), finished)
    # Which of the two quick ones a busy machine ends first is not said.
    assert found[0] in ({0, 2} if kind == "processes" else {0})
    assert 1 not in found
    assert time.monotonic() - started < 60
    assert not children() - before


def test_few_items_are_handed_out_at_a_time() -> None:
    """Or a worker that dies would throw suspicion on a thousand."""
    running: list[Future[Examined]] = []

    def submit(item: str) -> Future[Examined]:
        running.append(Future())
        assert len(running) <= 3
        if len(running) == 3 or item == "f":
            for future in running:
                future.set_result(DONE)
        return running[-1]

    def finished(number: int, one: Examined) -> None:
        running.pop()

    examine_all("abcdef", Workers(submit, 3, lambda: None), finished)
    assert running == []


def test_what_ended_just_before_an_interruption_is_kept() -> None:
    def submit(item: str) -> Future[Examined]:
        if item == "c":
            raise KeyboardInterrupt
        future: Future[Examined] = Future()
        if item == "b":
            future.set_result(DONE)
        return future

    found: list[int] = []
    ended: list[bool] = []
    workers = Workers(submit, 4, lambda: ended.append(True))
    examine_all("abcd", workers, lambda number, _: found.append(number))
    assert (found, ended) == ([1], [True])


def test_a_cluster_without_dask_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"install it: pip install 'mlxdoctor\[cluster\]'"):
        cluster("tcp://127.0.0.1:1", by_name)


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra `cluster` is not installed")

    def refuse(*_: object, **__: object) -> None:
        raise OSError("timed out")

    monkeypatch.setattr(distributed, "Client", refuse)
    with pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1"):
        cluster("tcp://127.0.0.1:1", by_name)
