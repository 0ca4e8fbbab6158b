import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.causes import Change
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Finding, Severity
from mlxdoctor.formats import terminal
from mlxdoctor.judge.remedy import fix_for, needed_values
from mlxdoctor.report import Fix
from tests.conftest import RUNS


def config(run: str = "healthy-ordinary") -> TrainingConfig:
    return TrainingConfig.read(RUNS / run / "adapter_config.json")


def fixed(
    change: Change,
    configuration: TrainingConfig | None = None,
    usual: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> Fix:
    return fix_for(change, configuration or config(), usual)


def written(folder: Path, text: str) -> TrainingConfig:
    path = folder / "adapter_config.json"
    path.write_text(text)
    return TrainingConfig.read(path)


LOWER = Change("learning_rate", "divide", 10)


def test_a_rate_is_divided_and_the_diff_shows_that_line_alone() -> None:
    fix = fixed(LOWER)
    assert (fix.before, fix.after) == ({"learning_rate": 0.0003}, {"learning_rate": 3e-05})
    lines = [line for line in fix.diff.splitlines()[2:] if line[:1] in "+-"]
    assert lines == ['-    "learning_rate": 0.0003,', '+    "learning_rate": 3e-05,']


@pytest.mark.parametrize(
    ("run", "operation", "usual", "after"),
    [
        ("rate-far-too-high-nan", "divide", (5e-5, 1.3e-3), 2.5e-4),
        ("rate-too-low", "multiply", (5e-5, 1e-3), 2.2e-4),
    ],
)
def test_a_rate_that_is_absurd_goes_into_the_usual_range(
    run: str, operation: str, usual: tuple[float, float], after: float
) -> None:
    change = Change("learning_rate", operation, 10)
    assert fixed(change, config(run), {"learning_rate": usual}).after == {"learning_rate": after}


@pytest.mark.parametrize(
    ("operation", "advised", "after"),
    [("divide", 1e-4, 1e-4), ("divide", 1.0, None), ("multiply", 1.0, 1.0)],
)
def test_what_a_finding_advises_is_taken_on_the_side_that_the_cause_asks_for(
    operation: str, advised: float, after: float | None
) -> None:
    finding = Finding("a.b", Severity.ERROR, "", {"advised_learning_rate": advised})
    fix = fix_for(Change("learning_rate", operation, 10), config(), needed_values([finding]))
    assert (fix.after["learning_rate"] if fix is not None else None) == after


@pytest.mark.parametrize("run", ["rate-far-too-high-nan", "rate-too-low", "scale-too-large"])
def test_every_advice_for_a_key_is_the_one_number_of_the_fix(run: str) -> None:
    report = diagnose([RUNS / run], allow_model=False)
    ((key, after),) = report.fix.after.items()
    name = key.rsplit(".", 1)[-1]
    advised = {finding.measured.get(f"advised_{name}") for finding in report.findings}
    assert advised - {None} == {after}
    text = terminal.render(report, width=100)
    assert f"-> {after}" in text
    assert not re.findall(rf"{name} to [-\d.e]+|rate of [-\d.e]+|divide the", text, re.IGNORECASE)


def test_a_nested_key_and_a_default_are_changed_too(tmp_path: Path) -> None:
    fix = fixed(Change("lora_parameters.scale", "set", 20.0), config("scale-too-large"))
    assert fix.before == {"lora_parameters.scale": 256.0}
    configuration = written(tmp_path, '{"iters": 100, "seed": 0, "learning_rate": 1e-4}')
    fix = fixed(Change("batch_size", "divide", 2), configuration)
    assert (fix.before, fix.after) == ({"batch_size": 4}, {"batch_size": 2})


def test_a_schedule_is_scaled_with_the_rate() -> None:
    scheduled = config("healthy-masked-warmup")
    fix = fixed(LOWER, scheduled)
    rate = scheduled.values["lr_schedule"]["arguments"][0]
    assert json.dumps(rate) in fix.diff
    assert fix.after["learning_rate"] == pytest.approx(fix.before["learning_rate"] / 10)
    assert json.dumps(float(f"{rate / 10:.6g}")) in fix.diff


@pytest.mark.parametrize(
    "change",
    [None, Change("mask_prompt", "set", False), Change("nonsense", "divide", 2)],
)
def test_where_nothing_changes_there_is_no_fix(change: Change | None) -> None:
    assert fix_for(change, config()) is None
    assert fix_for(LOWER, None) is None


def test_the_usual_rates_come_from_the_finding_that_measured_them() -> None:
    measured = {"guideline": (0.001, 0.02), "scale": 20.0}
    finding = Finding("learning-rate.above-guideline", Severity.WARNING, "High.", measured)
    assert needed_values([finding]) == {"learning_rate": (5e-5, 1e-3)}
    assert needed_values([Finding("loss-trend.diverged", Severity.ERROR, "Up.")]) == {}


@pytest.mark.parametrize(("needed", "after"), [(1142, 1152), (130, 192), (1152, 1152), (None, 512)])
def test_the_sequence_limit_becomes_what_the_rows_need(
    tmp_path: Path, needed: int | None, after: int
) -> None:
    configuration = written(tmp_path, '{"iters": 100, "max_seq_length": 128}')
    findings = [
        Finding("label-mask.answers-truncated", Severity.ERROR, "", {"needed_max_seq_length": one})
        for one in ((needed, 10) if needed else ())
    ]
    fix = fixed(Change("max_seq_length", "multiply", 4), configuration, needed_values(findings))
    assert fix.after == {"max_seq_length": after}
