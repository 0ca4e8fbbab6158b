"""Work is shared out to processes, and none of them stops the others."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from fixtures.lab.evidence import given, keep, read_kept, read_outcomes
from fixtures.lab.harness import made_by, older_pages, over_processes, write_page
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.training_log import TrainingLog
from tests.conftest import HEALTHY

DO = "tests.ward.test_work:do"


def do(name: str) -> str:
    if name == "raises":
        raise ValueError(name)
    if name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "sleeps":
        time.sleep(600)
    return f"{name} on {os.environ.get('PLACE')}"


@pytest.mark.slow(4)
def test_what_raises_or_dies_has_failed_and_the_others_are_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ["raises", "dies", "a", "b", "c"]
    places = [{"PLACE": "0"}, {"PLACE": "1"}]
    assert over_processes(DO, names, 2, tasks=2, environments=places) == 2
    said = capsys.readouterr().out
    assert "FAILED dies: its process ended with -9" in said
    assert "ValueError: raises" in said
    assert all(f"{name} on " in said for name in "abc")
    assert "5/5" in said
    assert "PLACE" not in os.environ


@pytest.mark.slow(4)
def test_time_that_is_up_ends_what_is_under_way(capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    assert over_processes(DO, ["a", "sleeps", "b"], 1, deadline=begun + 4) == 0
    assert time.monotonic() - begun < 30
    said = capsys.readouterr().out
    assert "1/3 a on None" in said
    assert "time is up: 2 of 3 not done" in said


def test_alone_means_without_what_the_names_in_it_lead_to(tmp_path: Path) -> None:
    with given(HEALTHY, "log") as log, given(HEALTHY, "adapter") as adapter:
        assert log.get(TrainingLog) is not None
        assert log.get(Adapter) is None
        assert log.get(TrainingConfig) is None
        assert adapter.get(TrainingLog) is None
        assert adapter.get(Adapter) is not None
        assert adapter.get(TrainingConfig) is not None
        for run in (log, adapter):
            assert run.files.base is None
            assert run.get(Dataset) is None
        # Nothing of it stays beside the run.
    assert not [one for one in HEALTHY.parent.iterdir() if one.name.startswith(".")]
    shutil.copy(next(HEALTHY.glob("*.log")), tmp_path)
    with given(tmp_path, "adapter") as none:
        assert none is None


def test_outcomes_are_read_as_they_were_kept(tmp_path: Path) -> None:
    path = tmp_path / "outcomes" / "run.static.json.gz"
    assert "(static)" in keep(HEALTHY, "static", path)
    outcomes, alarms = read_outcomes(path)
    kept = read_kept(path)["outcomes"]
    assert [one.check for one in outcomes] == [one["check"] for one in kept]
    made = [finding.code for one in outcomes for finding in one.findings]
    assert made == [finding["code"] for one in kept for finding in one["findings"]]
    assert any(seen.learned for one in outcomes for seen in one.seen)
    assert not alarms["last above first"]


def test_a_page_that_is_older_than_its_code_is_named(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    code = tmp_path / "code" / "one.py"
    code.write_text("x = 1\n")
    page = tmp_path / "reports" / "page.md"
    write_page(page, ["# A page", "Its figures."], ["code"])
    text = page.read_text().replace(page.read_text().splitlines()[-1], made_by(["code"], tmp_path))
    page.write_text(text)
    assert list(older_pages(tmp_path)) == []
    code.write_text("x = 2\n")
    assert list(older_pages(tmp_path)) == [(page, "code")]
    code.unlink()
    assert list(older_pages(tmp_path)) == [(page, "code")]
