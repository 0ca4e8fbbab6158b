"""The splits beside each other and beside the log, on rows made to order."""

import pytest

from mlxdoctor.finding import Outcome
from mlxdoctor.models.losses import TokenLosses
from tests.checks.log_evidence import LogWriter
from tests.conftest import check_called
from tests.given import outcome, severities
from tests.measured_rows import Losses, measured_rows

split_losses = check_called("split-losses")


#: Held-out rows are known as well as those trained on.
KNOWN = {"held-out-known": "info"}


def model(loss: float) -> Losses:
    return Losses(loss, loss, loss, loss, loss)


def judged(
    logs: LogWriter,
    *,
    test: float = 1.0,
    base_test: float = 4.0,
    train: float = 0.95,
    reports: tuple[float, ...] = (3.0, 2.0, 1.0, 0.9, 0.9),
    rows: int = 16,
) -> Outcome:
    """Of a run whose validation loss is 1.0, by its log too."""
    measured = {
        "train": measured_rows(model(4.0), model(train), rows, split="train", spread=0.05),
        "valid": measured_rows(model(4.0), model(1.0), rows, spread=0.05),
        "test": measured_rows(model(base_test), model(test), rows, split="test", spread=0.05),
    }
    known = (*measured["train"], *measured["valid"])
    losses = TokenLosses((), known, vocab_size=100, test=measured["test"])
    return outcome(split_losses, losses, logs.losses(reports, {1: 4.0, 20: 2.0, 50: 1.0}))


@pytest.mark.parametrize(
    ("test", "base_test", "found"),
    [
        (1.2, 4.0, KNOWN),
        (1.95, 4.0, KNOWN),
        (2.2, 4.0, {"test-differs": "warning", **KNOWN}),
        # Rows that are harder by kind are so for the base model, too.
        (2.2, 4.7, KNOWN),
    ],
)
def test_beside_the_test_rows(
    logs: LogWriter, test: float, base_test: float, found: dict[str, str]
) -> None:
    assert severities(judged(logs, test=test, base_test=base_test)) == found


#: Next to nothing, as of one batch.
BY_HEART = (0.9, 0.1, 0.02, 0.02, 0.02)


@pytest.mark.parametrize(
    ("train", "reports", "found"),
    [
        (0.95, BY_HEART, {"rows-unseen": "error", **KNOWN}),
        # Learned by heart, and known so.
        (0.02, BY_HEART, {}),
        (0.65, BY_HEART, {}),
        # A trainer that divides its loss by four.
        (1.0, (1.0, 0.5, 0.25, 0.25, 0.25), KNOWN),
        (0.95, (3.0, 1.0, 0.4, 0.4, 0.4), KNOWN),
    ],
)
def test_beside_the_log(
    logs: LogWriter, train: float, reports: tuple[float, ...], found: dict[str, str]
) -> None:
    assert severities(judged(logs, train=train, reports=reports)) == found
    assert judged(logs, train=train, reports=reports, rows=7).status == "inconclusive"


@pytest.mark.parametrize(
    ("train", "valid", "found"),
    [
        # Three kinds, of which the last is known.
        ((0.08, 4.9, 5.1), (0.07, 4.7, 4.9), {"kinds-lost": "error"}),
        # Rows of the training alone are known by heart, and no kind of them.
        ((0.08, 4.9, 5.1), (4.8, 4.7, 4.9), {}),
        # Some rows are harder than others.
        ((0.08, 0.4, 1.6), (0.07, 0.5, 1.4), KNOWN),
        ((0.08, 0.09, 0.08), (0.07, 0.09, 0.08), KNOWN),
    ],
)
def test_kinds_of_rows(
    logs: LogWriter,
    train: tuple[float, ...],
    valid: tuple[float, ...],
    found: dict[str, str],
) -> None:
    rows = [
        row
        for split, losses in (("train", train), ("valid", valid))
        for loss in losses
        for row in measured_rows(model(6.5), model(loss), 8, split=split, spread=0.01)
    ]
    log = logs.losses((2.0, 0.8, 1.8, 0.3, 0.1), {1: 6.0, 20: 0.3, 50: 0.1})
    assert (
        severities(outcome(split_losses, TokenLosses((), tuple(rows), vocab_size=100), log))
        == found
    )
