"""The log's losses against those of the models, made to order; real runs: test_fixture_runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Outcome
from mlxdoctor.models.losses import RowLosses, TokenLosses
from mlxdoctor.models.validation import PLAIN_FORMATS, WITHOUT_END, PlainFormat, ValidationRows
from tests.checks.log_evidence import LogWriter
from tests.conftest import check_called
from tests.given import outcome, severities
from tests.measured_rows import Losses, measured_rows

loss_agreement = check_called("loss-agreement")

BASE = Losses()
TUNED = Losses(prompt=1.0, answer=0.3, end=0.3, other=0.3, padding=0.3)
NO_END = replace(TUNED, end=8.0, other=8.0, padding=2.0)
PLAIN = PLAIN_FORMATS[6]
UNENDED, SURELY_UNENDED = {"agrees-without-end": "warning"}, {"agrees-without-end": "error"}


def level(loss: float, prompt: float = 1.0) -> Losses:
    return Losses(prompt, loss, loss, loss, loss)


Formats = Mapping[PlainFormat, tuple[RowLosses, ...]]
#: 4 prompt targets at 2.0 and 9 others at 4.0; tuned 4 at 1.0 and 9 at 0.3.
WITH_PROMPT = (8 + 36) / 13, (4 + 2.7) / 13


@dataclass
class Given:
    """A run's log, its rows and their losses; `judged` asks the check.

    Attributes:
        asked: what was measured on demand.
    """

    folder: Path
    asked: list[tuple[PlainFormat | None, int]] = field(default_factory=list)

    def config(self) -> TrainingConfig:
        path = self.folder / "adapter_config.json"
        values = {"fine_tune_type": "lora", "mask_prompt": True, "batch_size": 4}
        path.write_text(json.dumps({**values, "val_batches": -1}))
        return TrainingConfig.read(path)

    def log(self, before: float = 4.0, after: float = 0.3) -> TrainingLog:
        val = {1: before, 50: after, 100: after}
        return LogWriter(self.folder).losses([2.0, 1.0, 0.5, 0.3], val, every=25)

    def judged(
        self,
        log: TrainingLog | tuple[float, float] = (4.0, 0.3),
        base: Losses = BASE,
        tuned: Losses | None = TUNED,
        *,
        formats: Formats | None = None,
        first: tuple[RowLosses, ...] | None = None,
        rows: tuple[RowLosses, ...] | None = None,
        total: int = 40,
        has_config: bool = True,
    ) -> Outcome:
        """What is said; `first` are the rows that are measured anyway, `rows` all there are."""
        all_rows = rows or measured_rows(base, tuned)
        by_format = formats or {}

        def measure(plain: PlainFormat | None, count: int) -> tuple[RowLosses, ...]:
            self.asked.append((plain, count))
            return (all_rows if plain is None else by_format[plain])[:count]

        failure = "ValueError: no such tensor" if tuned is None else None
        losses = TokenLosses((), first or all_rows[:16], 768, load_failure=failure)
        validation = ValidationRows((), total, min(total, 40), tuple(by_format), measure)
        written = self.log(*log) if isinstance(log, tuple) else log
        config = [self.config()] if has_config else []
        return outcome(loss_agreement, written, losses, validation, *config)

    def codes(self, *arguments: Any, **named: Any) -> dict[str, str]:
        return severities(self.judged(*arguments, **named))


@pytest.fixture
def run(tmp_path: Path) -> Given:
    return Given(tmp_path)


@pytest.mark.parametrize(
    ("logged", "base", "tuned", "expected"),
    [
        ((4.0, 0.3), BASE, TUNED, {}),
        ((4.0, 0.3), BASE, level(0.319), {}),
        ((4.0, 0.3), BASE, level(0.35), {"worse-than-logged": "warning"}),
        ((4.0, 0.3), BASE, level(0.6), {"worse-than-logged": "warning"}),
        ((4.0, 0.3), BASE, level(0.64), {"worse-than-logged": "error"}),
        # A tenth of the loss is not told.
        ((4.0, 1.0), BASE, level(1.09), {}),
        ((4.0, 1.0), BASE, level(1.11), {"worse-than-logged": "warning"}),
        # Another base model; a tuned model that agrees has its base.
        ((4.2, 0.3), BASE, level(1.5), {"base-differs": "warning", "worse-than-logged": "warning"}),
        ((4.2, 0.3), BASE, level(2.5), {"base-differs": "warning", "worse-than-logged": "error"}),
        ((4.2, 0.3), BASE, TUNED, {}),
        ((4.2, 0.3), BASE, None, {"base-differs": "warning"}),
        ((3.3, 0.4), BASE, level(1.0), {"base-differs": "warning", "worse-than-logged": "warning"}),
        (WITH_PROMPT, BASE, TUNED, {"agrees-with-prompt": "warning"}),
        # The end token left out, which is certain where it became less likely.
        ((4.0, 0.3), replace(BASE, end=9.0), replace(TUNED, end=6.0), UNENDED),
        ((4.0, 0.3), replace(BASE, end=9.0), replace(TUNED, end=9.05), UNENDED),
        ((4.0, 0.3), replace(BASE, end=9.0), replace(TUNED, end=9.2), SURELY_UNENDED),
        # As where the end token is masked by its id, and padding is another token.
        (
            ((6 * 4 + 4 + 9) / 8, (6 * 0.3 + 0.3 + 0.05) / 8),
            replace(BASE, end=5.0, padding=9.0),
            replace(TUNED, end=6.0, padding=0.05),
            SURELY_UNENDED,
        ),
    ],
)
def test_losses_beside_those_of_the_log(
    run: Given, logged: tuple[float, float], base: Losses, tuned: Losses | None, expected: Any
) -> None:
    assert run.codes(logged, base, tuned) == expected


def test_where_no_mask_is_stated_either_of_the_two_agrees(run: Given) -> None:
    assert run.judged((4.01, 0.31), has_config=False).status == "passed"
    assert run.judged(WITH_PROMPT, has_config=False).status == "passed"


@pytest.mark.parametrize(
    ("logged", "tuned", "reason"),
    [
        ((4.0, 0.5), TUNED, "over other targets"),
        ((4.0, 0.3), None, "could not be loaded"),
        # Between 3.38 with the prompt and 4.0 without: half of it may be masked.
        ((3.7, 0.4), level(1.0), "between"),
    ],
)
def test_what_decides_nothing(
    run: Given, logged: tuple[float, float], tuned: Losses | None, reason: str
) -> None:
    found = run.judged(logged, tuned=tuned)
    assert (found.status, severities(found)) == ("inconclusive", {})
    assert reason in found.reason


@pytest.mark.parametrize("shift", [0, 2, 3])
def test_targets_at_another_shift(run: Given, shift: int) -> None:
    base, tuned = replace(BASE, at_shift={shift: 8.5}), replace(level(7.0), at_shift={shift: 0.1})
    found = run.judged((8.5, 0.1), base, tuned)
    assert severities(found) == {"agrees-at-another-shift": "error"}
    assert found.findings[0].measured["shift"] == shift


@pytest.mark.parametrize(("tuned", "severity"), [(1.5, "error"), (0.5, "warning")])
def test_another_prompt_format(run: Given, tuned: float, severity: str) -> None:
    formats = {
        PLAIN: measured_rows(level(6.2), TUNED),
        PLAIN_FORMATS[0]: measured_rows(level(6.4), level(0.9)),
    }
    found = run.judged((6.2, 0.3), tuned=level(tuned), formats=formats)
    assert severities(found) == {"agrees-in-another-format": severity}
    assert found.findings[0].measured["format"] == str(PLAIN)


@pytest.mark.parametrize(
    ("before", "tuned", "plain", "in_format", "expected"),
    [
        # A format must explain nearly all.
        (6.2, level(1.5), PLAIN, level(6.25), {"agrees-in-another-format"}),
        (6.2, level(1.5), PLAIN, level(6.29), {"base-differs", "worse-than-logged"}),
        (6.2, level(1.5), WITHOUT_END, level(6.2), {"agrees-without-end"}),
        # Where the base model agrees as it is, only the end may be missing.
        (4.0, level(1.5), PLAIN, BASE, {"worse-than-logged"}),
        (4.0, NO_END, WITHOUT_END, BASE, {"agrees-without-end"}),
    ],
)
def test_what_a_format_explains(
    run: Given,
    *,
    before: float,
    tuned: Losses,
    plain: PlainFormat,
    in_format: Losses,
    expected: set[str],
) -> None:
    formats = {plain: measured_rows(in_format, TUNED)}
    found = run.codes((before, 0.3), tuned=tuned, formats=formats)
    assert set(found) == expected
    assert found.get("agrees-without-end") in (None, "error" if tuned is NO_END else "warning")


def test_rows_of_text_have_no_other_format(run: Given) -> None:
    """They are trained on as they stand: that the log agrees tells nothing of how it is asked."""
    rows = tuple(replace(row, prompt_length=0) for row in measured_rows(BASE, TUNED))
    found = run.judged(rows=rows, has_config=False)
    assert set(found.unsought) == {"loss-agreement.agrees-in-another-format"}
    assert not run.judged(has_config=False).unsought


@pytest.mark.parametrize(
    ("counted", "status"), [(9, "found"), (13, "found"), (120, "inconclusive")]
)
def test_a_loss_over_other_tokens(run: Given, counted: int, status: str) -> None:
    """The rows have 9 targets each with the prompt masked, padding included, and 13 without."""
    log = LogWriter(run.folder).text(
        "Iter 1: Val loss 5.0, Val took 1.0s",
        "Iter 100: Val loss 0.3, Val took 1.0s",
        f"Iter 100: Train loss 0.3, Trained Tokens {counted * 400}, Peak mem 1.0 GB",
    )
    found = run.judged(log, tuned=level(3.0))
    assert found.status == status
    assert ("more tokens" in found.reason) is (status == "inconclusive")


@pytest.mark.parametrize(
    ("first", "tuned", "status", "asked"),
    [
        # The few rows that are measured first are off by chance.
        (0.9, 0.3, "passed", [(None, 64)]),
        (1.5, 1.5, "found", [(None, 64)]),
        # What agrees is not measured again.
        (0.3, 0.3, "passed", []),
    ],
)
def test_few_rows_are_followed_by_more(
    run: Given, first: float, tuned: float, status: str, asked: list[Any]
) -> None:
    rows = measured_rows(BASE, level(tuned), 400, spread=1.0)[::10] * 10
    few = measured_rows(BASE, level(first), 16, spread=0.2)
    assert (run.judged(first=few, rows=rows, total=400).status, run.asked) == (status, asked)


@pytest.mark.parametrize(("tuned", "expected"), [(1.6, {}), (3.5, {"worse-than-logged": "error"})])
def test_training_losses_where_nothing_was_validated(
    run: Given, tuned: float, expected: dict[str, str]
) -> None:
    log = LogWriter(run.folder).losses([3.5, 2.0, 1.6, 1.5, 1.5, 1.3, 1.3, 1.2])
    rows = measured_rows(BASE, level(tuned, prompt=tuned), 16, split="train")
    assert severities(outcome(loss_agreement, log, TokenLosses((), rows, 768))) == expected


def test_too_little_to_decide(run: Given) -> None:
    def reason(log: TrainingLog, rows: tuple[RowLosses, ...]) -> str:
        return outcome(loss_agreement, log, TokenLosses((), rows, 768)).reason

    few, log = measured_rows(BASE, TUNED, 7), run.log()
    assert "too few" in reason(log, few)
    assert "whole" in reason(log, measured_rows(BASE, TUNED, 16, is_whole=False))
    assert "not finite" in reason(log, measured_rows(BASE, level(float("nan")), 16))
    writer = LogWriter(run.folder)
    gone = writer.losses([1.0, float("nan"), float("nan")], {1: 4.0, 30: float("nan")})
    assert "no finite loss" in reason(gone, few)
    assert outcome(loss_agreement, log).status == "skipped"
    preference = writer.text(
        "Iter 10: loss 0.69, chosen_r 0.1, rejected_r 0.0, acc 0.5, margin 0.1, lr 1e-5"
    )
    assert preference.is_preference
    assert "preference training" in reason(preference, measured_rows(BASE, TUNED, 16))
