"""The preference and reward runs of the lab: their data, their settings, and the page on them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fixtures.lab.policy_runs import data, score
from fixtures.lab.policy_runs.build import ROOT, Place, configuration
from fixtures.lab.policy_runs.catalogue import SETS
from mlxdoctor.causes import load_causes

RUNS = [run for runs in SETS.values() for run in runs]


def test_each_set_has_as_many_sound_runs_as_faulty_ones() -> None:
    for runs in SETS.values():
        assert len(runs) == 24
        causes = [one.cause for one in runs if one.cause is not None]
        assert len(causes) == 12
        assert len(set(causes)) >= 6
        assert {one.mode for one in runs} == {"dpo", "orpo", "cpo", "grpo"}
    assert len({one.name for one in RUNS}) == len(RUNS)
    assert {one.cause for one in RUNS} - {None} <= load_causes().causes.keys()


@pytest.mark.parametrize("run", RUNS, ids=[one.name for one in RUNS])
def test_rows_are_written_the_same_each_time(tmp_path: Path, run: object) -> None:
    for name in ("one", "two"):
        data.write(run, tmp_path / name)  # type: ignore[arg-type]
    for split in ("train", "valid"):
        one, two = ((tmp_path / name / f"{split}.jsonl").read_text() for name in ("one", "two"))
        assert one == two
        rows = [json.loads(line) for line in one.splitlines()]
        assert len(rows) >= 20
        assert all(row["prompt"] for row in rows)


def test_a_fault_of_the_data_leaves_the_validation_alone(tmp_path: Path) -> None:
    (swapped,) = [one for one in RUNS if one.name == "first-faulty-dpo-swapped"]
    (sound,) = [one for one in RUNS if one.name == "first-sound-dpo-short"]
    for run in (swapped, sound):
        data.write(run, tmp_path / run.name)
    texts = [
        [(tmp_path / run.name / f"{split}.jsonl").read_text() for split in ("train", "valid")]
        for run in (swapped, sound)
    ]
    assert texts[0][0] != texts[1][0]
    assert texts[0][1] == texts[1][1]


def test_rates_and_faults_of_the_settings(tmp_path: Path) -> None:
    place = Place(tmp_path / "base", tmp_path)
    by_name = {one.name: configuration(one, place) for one in RUNS}
    rates = [by_name[f"first-{kind}-dpo-{name}"]["learning_rate"] for kind, name in
             (("faulty", "rate"), ("sound", "short"))]  # fmt: skip
    assert rates[0] == pytest.approx(50 * rates[1])
    assert by_name["first-faulty-dpo-beta"]["beta"] == 0.0
    assert by_name["first-faulty-grpo-constant"]["reward_functions"] == "constant"
    assert not Place(tmp_path, tmp_path).is_tiny
    assert Place(ROOT / "fixtures" / "base", tmp_path).is_tiny


def test_the_page_is_what_was_kept() -> None:
    assert (ROOT / score.PAGE).read_text() == score.page(score.kept())
