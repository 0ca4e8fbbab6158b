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
