"""The preference and reward runs of the lab: their data, their settings, and the page on them."""

import argparse
import json
from pathlib import Path

import pytest
import yaml

from fixtures.lab.policy import data
from fixtures.lab.policy.catalogue import RUNS, SETS, named
from fixtures.lab.policy.make import configuration, store
from fixtures.lab.policy.study import STUDY, subjects
from fixtures.lab.study import main
from mlxdoctor.api import diagnose
from mlxdoctor.causes import load_causes

ON_THE_TINY_BASE = [run for run in RUNS if run.is_tiny]


@pytest.fixture(autouse=True)
def made_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXDOCTOR_POLICY", str(tmp_path / "store"))


def test_each_set_has_as_many_sound_runs_as_faulty_ones() -> None:
    for runs in SETS.values():
        assert len(runs) == 24
        causes = [one.cause for one in runs if one.cause is not None]
        assert len(causes) == 12
        assert len(set(causes)) >= 6
        assert {one.mode for one in runs} == {"dpo", "orpo", "cpo", "grpo"}
    assert len({one.name for one in subjects()}) == len(RUNS)
    assert {one.cause for one in RUNS} - {None} <= load_causes().causes.keys()


@pytest.mark.parametrize("run", ON_THE_TINY_BASE, ids=lambda run: run.name)
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
    texts = []
    for name in ("base-first-faulty-dpo-swapped", "base-first-sound-dpo-short"):
        data.write(named(name), tmp_path / name)
        texts.append([(tmp_path / name / f"{one}.jsonl").read_text() for one in ("train", "valid")])
    assert texts[0][0] != texts[1][0]
    assert texts[0][1] == texts[1][1]


def test_rates_rewards_and_faults_of_the_settings() -> None:
    by_name = {one.name: configuration(one) for one in RUNS}
    faulty, sound = (by_name[f"base-first-{one}"] for one in ("faulty-dpo-rate", "sound-dpo-short"))
    assert faulty["learning_rate"] == pytest.approx(50 * sound["learning_rate"])
    assert by_name["base-first-faulty-dpo-beta"]["beta"] == 0.0
    assert by_name["base-first-faulty-grpo-constant"]["reward_functions"] == "constant"
    # A larger model is paid for its first answers.
    for base, rewards in (("smol-f32", "subject,near"), ("base", "subject,measured")):
        assert by_name[f"{base}-first-sound-grpo-subject"]["reward_functions"] == rewards


#: Reports of mlx-lm-lora 5.10.2 on a model of 135 million parameters: loss, reward of the chosen
#: and of the rejected answers; before the first update, and then some of the 24 reports.
PRINTED = {
    "first-faulty-dpo-reference": [(0.693, 0.0, 0.0)] * 13,
    "first-faulty-dpo-rate": [
        *((0.693, 0.0, 0.0), (0.0, -28.489, -93.114), (0.0, -61.141, -186.975)),
        *((0.0, -86.056, -253.7), (0.0, -90.92, -267.376), (0.0, -95.596, -272.768)),
        (0.0, -91.541, -270.932),
    ],
    "first-faulty-orpo-rate": [
        *((3.334, -0.328, -0.366), (28.903, -2.866, -2.78), (12.3, -1.224, -1.268)),
        *((9.373, -0.936, -1.186), (6.438, -0.644, -1.242), (5.732, -0.573, -1.243)),
        (5.464, -0.546, -1.219),
    ],
    "first-sound-dpo-short": [
        *((0.693, 0.0, 0.0), (0.0, -0.67, -10.427), (0.0, -1.852, -19.139)),
        *((0.0, -2.82, -23.23), (0.0, -3.479, -24.82), (0.0, -3.492, -25.36)),
        (0.0, -3.342, -25.314),
    ],
    "first-sound-dpo-facts": [
        *((0.693, 0.0, 0.0), (0.143, -0.265, -8.014), (0.004, -2.022, -15.768)),
        *((0.0, -1.035, -21.762), (0.0, -12.039, -32.348), (0.0, -16.193, -38.785)),
        (0.0, -15.304, -37.687),
    ],
    "first-sound-orpo-short": [
        *((3.327, -0.328, -0.403), (1.318, -0.131, -0.352), (0.76, -0.076, -0.412)),
        *((0.808, -0.081, -0.473), (0.184, -0.018, -0.533), (0.237, -0.024, -0.514)),
        (0.144, -0.014, -0.542),
    ],
}
#: The verdict, and what comes first; without its weights a rate is only suspect.
NAMED = {
    "first-faulty-dpo-reference": ("unhealthy", ["reference-follows-policy"]),
    "first-faulty-dpo-rate": ("suspect", ["learning-rate-too-high"]),
    "first-faulty-orpo-rate": ("suspect", ["learning-rate-too-high"]),
}


@pytest.mark.parametrize("name", PRINTED)
def test_what_the_log_and_the_rows_say(name: str) -> None:
    run = named(f"smol-f32-{name}")
    folder = store().run(run.name)
    data.write(run, folder / "data")
    config = {**configuration(run), "model": str(folder / "HuggingFaceTB" / "SmolLM2-135M")}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (before, *printed) = PRINTED[name]
    lines = [
        f"[INFO] Training mode: {run.mode.upper()}",
        f"Iter 1: Val loss {before[0]:.3f}, Val chosen reward {before[1]:.3f}, Val rejected reward "
        f"{before[2]:.3f}, Val accuracy 0.500, Val margin {before[1] - before[2]:.3f}, Val took 1s",
        *(
            f"Iter {10 * i}: loss {loss:.3f}, chosen_r {chosen:.3f}, rejected_r {rejected:.3f}, "
            f"acc {float(chosen > rejected):.3f}, margin {chosen - rejected:.3f}, it/s 1.0"
            for i, (loss, chosen, rejected) in enumerate(printed, 1)
        ),
    ]
    (folder / "train.log").write_text("\n".join(lines) + "\n")
    report = diagnose([folder], allow_model=False)
    causes = [one.cause.id for one in report.diagnosis]
    verdict, first = NAMED.get(name, ("inconclusive", []))
    assert causes[: len(first)] == first
    assert report.verdict.value == verdict
    assert "preferences-alike" not in causes


def test_what_is_diagnosed_is_scored(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from fixtures.lab.evidence import keep
    from fixtures.lab.study import score

    name = "base-first-faulty-dpo-beta"
    folder = store().run(name)
    data.write(named(name), folder / "data")
    (folder / "config.yaml").write_text(yaml.safe_dump(configuration(named(name))))
    store().truth(name).parent.mkdir(parents=True)
    truth = {"cause": named(name).cause, "measured": {"loss": None}}
    store().truth(name).write_text(json.dumps(truth))
    keep(folder, "static", store().outcomes(name, "static"))
    options = argparse.Namespace(split=None, slice=False, only=None)
    assert score(STUDY, options, tmp_path) == 0
    assert f"| base, first set | {name} |" in (tmp_path / "policy.md").read_text()
    with pytest.raises(SystemExit):
        main(STUDY, ["--help"])
    assert "fixtures.lab.policy" in capsys.readouterr().out
