"""Losses that are no numbers, or stand for none."""

import pytest

from tests.checks.log_evidence import LogWriter, finding
from tests.conftest import check_called
from tests.given import outcome as judge
from tests.given import severities

loss_finite = check_called("loss-finite")

NAN = float("nan")


def test_nan_after_good_reports(logs: LogWriter) -> None:
    one = finding(
        judge(loss_finite, logs.losses([2.0, 1.5, NAN, NAN], {1: 2.1})), "non-finite-after-fall"
    )
    assert one.onset == 30
    assert one.measured["before"] == 1.5
    assert "from iteration 30 on" in one.message


@pytest.mark.parametrize(
    ("losses", "val", "symptoms"),
    [
        ([2.0, 5.0, 9.0, NAN, NAN], {1: 1.9}, {"non-finite-after-rise": "error"}),
        ([9.0, NAN], {1: 1.9}, {"non-finite-after-rise": "error"}),
        ([2.4, NAN], {1: 1.9}, {"non-finite-after-fall": "error"}),
        ([2.0, 1.6, 1.4, 1.5, NAN], {}, {"non-finite-after-fall": "error"}),
        ([2.0, 1.6, 1.4, 2.4, NAN], {}, {"non-finite-after-rise": "error"}),
        ([2.0, NAN, 1.9, NAN], {}, {"non-finite-now-and-then": "error"}),
        ([2.0, float("inf")], {}, {"non-finite": "error"}),
        ([NAN, NAN], {}, {"non-finite": "error"}),
        ([NAN, NAN], {1: 1.9}, {"non-finite": "error"}),
        ([NAN, NAN], {1: NAN}, {"non-finite-before-training": "error"}),
        ([2.0, 1.5], {1: NAN, 20: NAN}, {"validation-non-finite": "warning"}),
        ([2.0, 1.5], {1: 2.1, 20: NAN}, {"validation-broken": "warning"}),
        ([1.0, 0.0, 0.0], {}, {"exact-zero": "error"}),
        # What lies on both sides of zero is not zero for want of a target.
        ([1.0, 0.0, -0.5], {}, {}),
        ([0.0, 0.0], {}, {"exact-zero": "error"}),
        # What crept down to 0 was rounded.
        ([0.5, 0.1, 0.01, 0.0], {}, {}),
        ([0.5, 0.001], {}, {}),
    ],
)
def test_losses_that_are_no_numbers(
    logs: LogWriter, losses: list[float], val: dict[int, float], symptoms: dict[str, str]
) -> None:
    assert severities(judge(loss_finite, logs.losses(losses, val))) == symptoms


@pytest.mark.parametrize(
    ("line", "signs"),
    [
        ("Iter {}: Train loss 0.000, Total rewards mean 0.000", {"exact-zero": "warning"}),
        # In GRPO it is 0 by construction; rewards tell whether there is anything to learn.
        ("Iter {}: Train loss 0.000, Total rewards mean 0.250", {}),
        # Validations are judged without training losses.
        ("Iter {}: Val loss nan, Val took 0.000s", {"validation-non-finite": "warning"}),
    ],
)
def test_other_lines(logs: LogWriter, line: str, signs: dict[str, str]) -> None:
    assert severities(judge(loss_finite, logs.text(line.format(10), line.format(20)))) == signs


def test_missing_evidence(logs: LogWriter) -> None:
    only_failure = logs.text("Trainable parameters: 0.048% (4.473M/9241.706M)")
    assert judge(loss_finite, only_failure).status.value == "inconclusive"


def test_a_start_announced_again_is_none_where_the_iterations_go_on(logs: LogWriter) -> None:
    log = logs.text(
        *("Starting training loop", "Step: 0, Loss: nan, Tokens/s: 37.10"),
        *("Step: 20, Loss: nan, Tokens/s: 900.86", "Epoch 1 | Train Loss: nan | Time: 12.32s"),
        *("Starting training loop", "Step: 40, Loss: nan, Tokens/s: 1274.81"),
    )
    assert finding(judge(loss_finite, log), "non-finite").onset == 0
