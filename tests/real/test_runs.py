"""The real split: a whole list, halves with nothing in common, and the rows of its tasks."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.lab.real import tasks
from fixtures.lab.real.faults import FAULTS
from fixtures.lab.real.rows import answer_of, shuffled
from fixtures.lab.real.runs import HALVES, Half, all_runs, bases_needed, named, tasks_of
from fixtures.lab.real.study import cause_of, label_of, learned
from fixtures.lab.real.tasks import ROWS, TASKS, Task, digest, split, write_task
from fixtures.lab.real.texts import records, sources
from fixtures.lab.real.texts.sources import chat, completion
from fixtures.lab.reproduction import WRONG, drawn
from mlxdoctor.causes import load_causes

RUNS = all_runs()
RNG = random.Random(0)


def rows() -> dict[str, list[dict[str, str]]]:
    ones = [{"prompt": f"What is {n}?", "completion": f"It is {n}."} for n in range(40)]
    return {"train": ones, "valid": ones[:8], "test": ones[:8]}


@pytest.mark.parametrize("half", HALVES)
def test_each_half_has_enough_runs_of_enough_causes(half: str) -> None:
    runs = [run for run in RUNS if run.half == half]
    assert sum(run.fault is None for run in runs) >= 60
    assert sum(run.fault is not None for run in runs) >= 60
    assert len({run.cause for run in runs} - {None}) >= 22
    assert {run.fault for run in runs} - {None} == FAULTS.keys()
    assert {run.log for run in runs} == {"table", "classic", "jsonl"}


def test_names_are_unlike_and_every_cause_and_base_exists() -> None:
    assert max(Counter(run.name for run in RUNS).values()) == 1
    known = set(load_causes().causes)
    assert {run.cause for run in RUNS} - {None} <= known
    assert named(RUNS[-1].name) == RUNS[-1]
    from fixtures.lab.real.base import KINDS

    broken = {f"broken-{kind}" for kind in FAULTS["converted-wrongly"].levels}
    assert set(bases_needed(RUNS)) == KINDS.keys() | broken


def test_no_task_is_in_both_halves() -> None:
    assert not set(tasks_of("dev")) & set(tasks_of("test"))
    for run in RUNS:
        assert TASKS[run.task].half == run.half
        fault = FAULTS.get(run.fault or "")
        assert fault is None or TASKS[run.task].format in fault.formats
        if TASKS[run.task].format == "text":
            assert "mask_prompt" not in run.settings


def test_answers_that_were_moved_are_those_of_other_rows() -> None:
    before = rows()
    moved = shuffled(before, (1.0, False), RNG)
    pairs = zip(moved["train"], before["train"], strict=True)
    assert all(answer_of(one) != answer_of(other) for one, other in pairs)
    assert sorted(map(answer_of, moved["train"])) == sorted(map(answer_of, before["train"]))
    assert moved["valid"] == before["valid"]
    some = shuffled(before, (0.5, True), RNG)
    assert sum(a != b for a, b in zip(some["train"], before["train"], strict=True)) == 20
    assert some["valid"] != before["valid"]
    assert some["test"] == before["test"]


def test_what_a_run_counts_as() -> None:
    base = {"loss": 3.0, "similarity": 0.3, "stops": 0.5}
    sound = {"loss": 1.5, "similarity": 0.5, "stops": 1.0}
    plain = [{**sound, "loss": 1.5 + step / 100} for step in range(4)]

    def truth(measured: dict[str, float | None], **others: object) -> dict[str, object]:
        kept = {"cause": "x", "harms": "model", "refused": False}
        return {**kept, **others, "measured": measured, "base": base}

    assert learned(sound, base)
    assert not learned({**sound, "loss": 2.99}, base)
    assert not learned({**sound, "loss": None}, base)
    assert label_of(truth(sound, cause=None), plain) == "healthy"
    assert label_of(truth(base, cause=None), plain) == "not sound"
    assert label_of(truth(base), plain) == "faulty"
    assert label_of(truth(sound), plain) == "equivalent"
    assert label_of(truth(base), plain[:1]) is None
    assert label_of(truth(sound, harms="report"), []) == "faulty"
    assert label_of(truth({**sound, "loss": None}, refused=True), []) == "faulty"


def test_a_limit_that_broke_the_run_counts_as_what_broke_it() -> None:
    runs = {run.fault: run for run in all_runs()}
    broken, whole = {"measured": {"loss": None}}, {"measured": {"loss": 2.0}}
    assert cause_of(runs["cut"], whole) == "answers-truncated"
    assert cause_of(runs["cut"], broken) == "no-supervised-tokens"
    assert cause_of(runs["rate-high"], broken) == "learning-rate-too-high"
    assert cause_of(runs[None], whole) is None


CAUSES = load_causes().causes


@pytest.mark.parametrize("half", HALVES)
def test_twenty_runs_of_as_many_causes_that_an_experiment_can_show(half: Half) -> None:
    runs = drawn(half, 20)
    assert runs == drawn(half, 20)
    assert len(runs) == len({one.cause for one in runs}) == 20
    assert {one.half for one in runs} == {half}
    for one in runs:
        assert not CAUSES[one.cause].no_experiment
    assert drawn(half, 12) == runs[:12]


def test_two_wrong_causes_are_asked_for_of_each() -> None:
    for one in (run for half in HALVES for run in drawn(half, 1000)):
        wrong = WRONG[one.cause]
        assert len(set(wrong)) == 2
        assert one.cause not in wrong
        assert CAUSES.keys() >= set(wrong)


Debian = Callable[[str, str], None]


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Debian:
    """Writes a file of a package; every package is the same folder."""
    monkeypatch.setattr(sources, "debian", lambda _: tmp_path)

    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")

    return write


def test_both_halves_have_every_format_and_both_kinds_of_answers() -> None:
    for half in ("dev", "test"):
        own = [task for task in TASKS.values() if task.half == half]
        assert len(own) >= 4
        assert {task.format for task in own} == {"chat", "completions", "text"}
        assert {task.entropy for task in own} == {"low", "high"}


def test_rows_are_split_without_overlap_and_always_alike() -> None:
    rows = [completion(f"question {number % 900}", str(number)) for number in range(1000)]
    parts = split(rows, "name")
    assert [len(part) for part in parts.values()] == list(ROWS)
    asked = [row["prompt"] for part in parts.values() for row in part]
    assert len(set(asked)) == len(asked)
    assert split(rows, "name") == parts
    assert split(rows, "another") != parts


def test_a_task_is_written_as_mlx_lm_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        chat(f"Is {number} even?", "yes", "And odd?", "no", system="Say.") for number in range(9)
    ]
    task = Task("parity", "dev", "chat", "low", "numbers", lambda: rows)
    monkeypatch.setattr(tasks, "TASKS", {"parity": task})
    write_task("parity", tmp_path)
    lines = (tmp_path / "train.jsonl").read_text(encoding="utf-8").splitlines()
    roles = [message["role"] for message in json.loads(lines[0])["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    first = digest(tmp_path)
    write_task("parity", tmp_path)
    assert digest(tmp_path) == first


def test_an_entry_of_a_changelog_is_asked_for_as_fields(debian: Debian) -> None:
    entry = (
        "dpkg (1.2) unstable; urgency=low\n\n  * Don't crash. Closes: #12345, #678\n"
        "    Thanks to A B <a@b.org>.\n\n -- C D <c@d.org>  Mon, 01 Jun 2020 10:00:00 +0200\n"
    )
    for package in records.CHANGELOG_PACKAGES:
        debian(f"usr/share/doc/{package}/changelog", entry)
    row = records.releases()[0]
    assert json.loads(str(row["completion"])) == {
        "package": "dpkg",
        "version": "1.2",
        "urgency": "low",
        "by": "C D",
        "day": "2020-06-01",
        "closes": [12345, 678],
    }
    assert "@" not in str(row["prompt"])
