"""The tasks of the real split: their rows, out of small texts of our own."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.lab.real import tasks
from fixtures.lab.real.tasks import ROWS, TASKS, Task, digest, split, write_task
from fixtures.lab.real.texts import records, sources
from fixtures.lab.real.texts.sources import chat, completion

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
