"""The log's losses against those of the models, made to order; real runs: test_fixture_runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Outcome
from mlxdoctor.models.losses import RowLosses, TokenLosses
from mlxdoctor.models.validation import PLAIN_FORMATS, WITHOUT_END, PlainFormat, ValidationRows
from tests.checks.log_evidence import LogWriter
from tests.conftest import check_called
from tests.given import outcome
from tests.measured_rows import Losses, measured_rows

loss_agreement = check_called("loss-agreement")

BASE = Losses()
TUNED = Losses(prompt=1.0, answer=0.3, end=0.3, other=0.3, padding=0.3)
PLAIN = PLAIN_FORMATS[6]
WITHOUT_END_WARNING = {"agrees-without-end": "warning"}
WITHOUT_END_ERROR = {"agrees-without-end": "error"}
Give = Callable[..., Outcome]


def level(loss: float, prompt: float = 1.0) -> Losses:
    return Losses(prompt, loss, loss, loss, loss)


class Validation:
    """Validation rows that note how often they were measured."""

    def __init__(
        self,
        rows: tuple[RowLosses, ...],
        by_format: Mapping[PlainFormat, tuple[RowLosses, ...]],
        total: int,
        affordable: int,
    ) -> None:
        self.rows, self.by_format = rows, by_format
        self.asked: list[tuple[PlainFormat | None, int]] = []
        self.evidence = ValidationRows((), total, affordable, tuple(by_format), self.measure)

    def measure(self, plain: PlainFormat | None, count: int) -> tuple[RowLosses, ...]:
        self.asked.append((plain, count))
        rows = self.rows if plain is None else self.by_format[plain]
        return rows[:count]


@pytest.fixture
def config(tmp_path: Path) -> TrainingConfig:
    path = tmp_path / "adapter_config.json"
    values = {"fine_tune_type": "lora", "mask_prompt": True, "batch_size": 4, "val_batches": -1}
    path.write_text(json.dumps(values))
    return TrainingConfig.read(path)


@pytest.fixture
def log(tmp_path: Path) -> Callable[..., TrainingLog]:
    def write(before: float = 4.0, after: float = 0.3) -> TrainingLog:
        val = {1: before, 50: after, 100: after}
        return LogWriter(tmp_path).losses([2.0, 1.0, 0.5, 0.3], val, every=25)

    return write


def judged(
    log: TrainingLog,
    *others: object,
    base: Losses = BASE,
    tuned: Losses | None = TUNED,
    by_format: Mapping[PlainFormat, tuple[RowLosses, ...]] | None = None,
    at_shift: tuple[dict[int, float], dict[int, float]] = ({}, {}),
) -> Outcome:
    rows = measured_rows(base, tuned, at_shift=at_shift)
    failure = "ValueError: no such tensor" if tuned is None else None
    validation = Validation(rows, by_format or {}, 40, 40)
    losses = TokenLosses((), rows[:16], 768, load_failure=failure)
    return outcome(loss_agreement, log, losses, validation.evidence, *others)


def codes(found: Outcome) -> dict[str, str]:
    assert found.status != "crashed", found.reason
    return {one.code.removeprefix("loss-agreement."): one.severity for one in found.findings}


def test_rows_of_text_have_no_other_format(log: Callable[..., TrainingLog]) -> None:
    """They are trained on as they stand: that the log agrees tells nothing of how it is asked."""
    rows = tuple(replace(row, prompt_length=0) for row in measured_rows(BASE, TUNED))
    validation = Validation(rows, {}, 40, 40)
    found = outcome(loss_agreement, log(), TokenLosses((), rows[:16], 768), validation.evidence)
    assert set(found.unsought) == {"loss-agreement.agrees-in-another-format"}
    assert not judged(log()).unsought


def test_losses_that_agree(log: Callable[..., TrainingLog], config: TrainingConfig) -> None:
    assert judged(log(), config).status == "passed"
    # Half a percent of rounding, and where the mask is not stated, either of the two.
    assert judged(log(4.01, 0.31)).status == "passed"


#: 4 prompt targets at 2.0 and 9 others at 4.0; tuned 4 at 1.0 and 9 at 0.3.
WITH_PROMPT = (8 + 36) / 13, (4 + 2.7) / 13


@pytest.mark.parametrize(
    ("logged", "base", "tuned", "expected"),
    [
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
        (WITH_PROMPT, BASE, TUNED, {"agrees-with-prompt": "warning"}),
        # The end token left out, which is certain where it became less likely.
        ((4.0, 0.3), replace(BASE, end=9.0), replace(TUNED, end=6.0), WITHOUT_END_WARNING),
        ((4.0, 0.3), replace(BASE, end=9.0), replace(TUNED, end=9.05), WITHOUT_END_WARNING),
        ((4.0, 0.3), replace(BASE, end=9.0), replace(TUNED, end=9.2), WITHOUT_END_ERROR),
        # As where the end token is masked by its id, and padding is another token.
        (
            ((6 * 4 + 4 + 9) / 8, (6 * 0.3 + 0.3 + 0.05) / 8),
            replace(BASE, end=5.0, padding=9.0),
            replace(TUNED, end=6.0, padding=0.05),
            WITHOUT_END_ERROR,
        ),
    ],
)
def test_losses_beside_those_of_the_log(
    log: Callable[..., TrainingLog],
    config: TrainingConfig,
    *,
    logged: tuple[float, float],
    base: Losses,
    tuned: Losses | None,
    expected: dict[str, str],
) -> None:
    assert codes(judged(log(*logged), config, base=base, tuned=tuned)) == expected


def test_what_decides_nothing(log: Callable[..., TrainingLog], config: TrainingConfig) -> None:
    better = judged(log(after=0.5), config)
    assert (better.status, codes(better)) == ("inconclusive", {})
    alone = judged(log(), config, tuned=None)
    assert alone.status == "inconclusive"
    assert "could not be loaded" in alone.reason
    # Where the mask is not stated, the prompt may be in the loss.
    assert judged(log(*WITH_PROMPT)).status == "passed"


def test_some_of_the_prompt_in_the_loss(
    log: Callable[..., TrainingLog], config: TrainingConfig
) -> None:
    # Between 3.38 with the prompt and 4.0 without: half of it may be masked.
    between = judged(log(3.7, 0.4), config, tuned=level(1.0))
    assert between.status == "inconclusive"
    assert "between" in between.reason
    assert "base-differs" in codes(judged(log(3.3, 0.4), config, tuned=level(1.0)))


@pytest.mark.parametrize("shift", [0, 2, 3])
def test_targets_at_another_shift(
    log: Callable[..., TrainingLog], config: TrainingConfig, shift: int
) -> None:
    found = judged(log(8.5, 0.1), config, tuned=level(7.0), at_shift=({shift: 8.5}, {shift: 0.1}))
    assert codes(found) == {"agrees-at-another-shift": "error"}
    assert found.findings[0].measured["shift"] == shift


@pytest.mark.parametrize(("tuned", "severity"), [(1.5, "error"), (0.5, "warning")])
def test_another_prompt_format(
    log: Callable[..., TrainingLog], config: TrainingConfig, tuned: float, severity: str
) -> None:
    by_format = {
        PLAIN: measured_rows(level(6.2), TUNED),
        PLAIN_FORMATS[0]: measured_rows(level(6.4), level(0.9)),
    }
    found = judged(log(before=6.2), config, tuned=level(tuned), by_format=by_format)
    assert codes(found) == {"agrees-in-another-format": severity}
    assert found.findings[0].measured["format"] == str(PLAIN)


@pytest.mark.parametrize(("off", "hit"), [(0.05, True), (0.09, False)])
def test_a_format_must_explain_nearly_all(
    log: Callable[..., TrainingLog], config: TrainingConfig, off: float, hit: bool
) -> None:
    by_format = {PLAIN: measured_rows(level(6.2 + off), TUNED)}
    found = codes(judged(log(before=6.2), config, tuned=level(1.5), by_format=by_format))
    assert ("agrees-in-another-format" in found) is hit
    assert ("base-differs" in found) is not hit


@pytest.mark.parametrize(
    ("before", "tuned", "in_format", "expected"),
    [
        (6.2, level(1.5), level(6.2), WITHOUT_END_WARNING),
        # Where the base model agrees as it is.
        (4.0, replace(TUNED, end=8.0, other=8.0, padding=2.0), BASE, WITHOUT_END_ERROR),
    ],
)
def test_rows_without_their_end(
    log: Callable[..., TrainingLog],
    config: TrainingConfig,
    *,
    before: float,
    tuned: Losses,
    in_format: Losses,
    expected: dict[str, str],
) -> None:
    by_format = {WITHOUT_END: measured_rows(in_format, TUNED)}
    found = judged(log(before=before), config, tuned=tuned, by_format=by_format)
    assert codes(found) == expected


def test_a_format_in_which_the_base_model_agrees_already_is_not_sought(
    log: Callable[..., TrainingLog], config: TrainingConfig
) -> None:
    rows = measured_rows(BASE, level(1.5))
    validation = Validation(rows, {PLAIN: measured_rows(BASE, TUNED)}, 40, 40)
    losses = TokenLosses((), rows[:16], 768)
    found = outcome(loss_agreement, log(), losses, validation.evidence, config)
    assert codes(found) == {"worse-than-logged": "error"}
    assert [plain for plain, _ in validation.asked] == [None]


@pytest.mark.parametrize(
    ("counted", "status"), [(9, "found"), (13, "found"), (120, "inconclusive")]
)
def test_a_loss_over_other_tokens(
    tmp_path: Path, config: TrainingConfig, counted: int, status: str
) -> None:
    """The rows have 9 targets each with the prompt masked, padding included, and 13 without."""
    found = judged(
        LogWriter(tmp_path).text(
            "Iter 1: Val loss 5.0, Val took 1.0s",
            "Iter 100: Val loss 0.3, Val took 1.0s",
            f"Iter 100: Train loss 0.3, Trained Tokens {counted * 400}, Peak mem 1.0 GB",
        ),
        config,
        tuned=level(3.0),
    )
    assert found.status == status
    assert ("more tokens" in found.reason) is (status == "inconclusive")


@pytest.mark.parametrize(("tuned", "status"), [(0.9, "passed"), (1.5, "found")])
def test_few_rows_are_followed_by_more(
    log: Callable[..., TrainingLog], config: TrainingConfig, tuned: float, status: str
) -> None:
    rows = measured_rows(BASE, level(0.3), 400, spread=1.0)
    # The few rows that are measured first are off by chance.
    odd = measured_rows(BASE, level(tuned), 16)
    true = rows if status == "passed" else measured_rows(BASE, level(tuned), 400, spread=1.0)
    validation = Validation(true[::10] * 10, {}, 400, 10)
    losses = TokenLosses((), odd, 768)
    found = outcome(loss_agreement, log(), losses, validation.evidence, config)
    assert (found.status, validation.asked) == (status, [(None, 64)])


def test_what_agrees_is_not_measured_again(
    log: Callable[..., TrainingLog], config: TrainingConfig
) -> None:
    rows = measured_rows(BASE, TUNED, 16, spread=0.2)
    validation = Validation(rows, {}, 400, 10)
    found = outcome(loss_agreement, log(), TokenLosses((), rows, 768), validation.evidence, config)
    assert (found.status, validation.asked) == ("passed", [])


@pytest.mark.parametrize(("tuned", "severity"), [(1.6, None), (3.5, "error")])
def test_training_losses_where_nothing_was_validated(
    tmp_path: Path, tuned: float, severity: str | None
) -> None:
    log = LogWriter(tmp_path).losses([3.5, 2.0, 1.6, 1.5, 1.5, 1.3, 1.3, 1.2])
    rows = measured_rows(BASE, level(tuned, prompt=tuned), 16, split="train")
    found = codes(outcome(loss_agreement, log, TokenLosses((), rows, 768)))
    assert found == ({} if severity is None else {"worse-than-logged": severity})


def test_too_little_to_decide(tmp_path: Path, log: Callable[..., TrainingLog]) -> None:
    few = TokenLosses((), measured_rows(BASE, TUNED, 7), 768)
    assert outcome(loss_agreement, log(), few).status == "inconclusive"
    cut = TokenLosses((), measured_rows(BASE, TUNED, 16, is_whole=False), 768)
    assert "whole" in outcome(loss_agreement, log(), cut).reason
    broken = TokenLosses((), measured_rows(BASE, level(float("nan")), 16), 768)
    assert "not finite" in outcome(loss_agreement, log(), broken).reason
    writer = LogWriter(tmp_path)
    gone = writer.losses([1.0, float("nan"), float("nan")], {1: 4.0, 30: float("nan")})
    assert "no finite loss" in outcome(loss_agreement, gone, few).reason
    assert outcome(loss_agreement, log()).status == "skipped"


def test_preference_training_has_another_loss(tmp_path: Path) -> None:
    log = LogWriter(tmp_path).text(
        "Iter 10: loss 0.69, chosen_r 0.1, rejected_r 0.0, acc 0.5, margin 0.1, lr 1e-5"
    )
    losses = TokenLosses((), measured_rows(BASE, TUNED, 16), 768)
    assert log.is_preference
    assert outcome(loss_agreement, log, losses).status == "skipped"
