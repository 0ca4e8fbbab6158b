from typing import Any

import pytest

from mlxdoctor.twin.reach import Reach
from tests.conftest import check_called
from tests.given import outcome, severities

reach = check_called("reach")


def said(tuned: float, **more: Any) -> Any:
    """A base of 5 nats, of which the twin takes 3."""
    given = {
        "split": "validation",
        "rows": 40,
        "untouched": 5.0,
        "reached": 2.0,
        "noise": 0.05,
        "updates": 30,
        "rate": 1e-4,
        "tuned_on_trained": tuned,
        "reached_on_trained": 2.0,
    }
    return outcome(reach, Reach(sources=(), tuned=tuned, **{**given, **more}))


def cured(setting: str, before: str, after: str = "a constant rate") -> dict[str, Any]:
    """A twin that learns little as configured, and as usual with one setting changed."""
    return {"own": 4.9, "setting": setting, "before": before, "after": after, "cured": 2.1}


#: All of the run's updates.
LONG: dict[str, Any] = {"reached": 0.1, "reached_on_trained": 0.1, "updates": 400}
NOT_LEARNED = {"not-what-was-learned": "error", "settings-learn": "info"}


@pytest.mark.parametrize(
    ("tuned", "more", "expected"),
    [
        (1.0, {}, {"reached": "info"}),
        # Rows that the twin was not trained on, without a validation split.
        (1.0, {"split": "training", "is_unseen": True}, {"holds-beyond": "info"}),
        (1.0, {"split": "training"}, {}),
        (1.0, {"split": "training", "is_unseen": True, "reached_on_trained": 1.6}, {}),
        (1.0, {"split": "training", "is_unseen": True, "untouched": 3.9}, {}),
        # A fifth of what the twin gained is 2.6, a third 3.0.
        (2.59, {"own": 2.6}, {}),
        (2.7, {"own": 2.7}, {"far-above": "warning"}),
        (3.1, {"own": 3.0}, {"far-above": "error"}),
        (3.1, {"own": None}, {"far-above": "error"}),
        (float("nan"), {"own": 2.0}, {"not-what-was-learned": "error"}),
        # All of the run's own updates reach 1: a twentieth of what they gain is 1.2, a third 2.33.
        (1.19, {"whole": 1.0}, {"reached": "info"}),
        (1.21, {"whole": 1.0}, {"not-what-was-learned": "warning"}),
        (2.4, {"whole": 1.0}, {"not-what-was-learned": "error"}),
        # A part of its updates leaves a small part of its loss.
        (1.4, {"whole": 0.1, "whole_updates": 200}, NOT_LEARNED),
        (1.21, {"whole": 1.0, "noise": 0.06}, {"reached": "info"}),
        # A twin that is at a third of the loss is not far below it.
        (0.8, {"reached": 0.25, "reached_on_trained": 0.25}, {}),
        (0.8, {"reached": 0.15, "reached_on_trained": 0.15}, {"far-above": "error"}),
        # What gives the answers of held-out rows lacks nothing, whatever its loss is.
        (2.4, {"whole": 1.0, "right": 0.95}, {}),
        (3.1, {"own": 3.0, "right": 0.95}, {}),
        (3.1, {"own": 3.0, "right": 0.85}, {"far-above": "error"}),
        # As configured the twin learns: the trainer or the file is at fault.
        (3.1, {"own": 2.5}, {"not-what-was-learned": "error"}),
        (4.9, {"own": 3.0}, {"not-what-was-learned": "error"}),
        # So it does with as many updates as the run made.
        (
            3.1,
            {"own": 2.5, "whole": 1.0},
            {"not-what-was-learned": "error", "settings-learn": "info"},
        ),
        # The log is that of these files: neither is at fault.
        (3.1, {"own": 2.5, "is_replayed": True}, {"far-above": "error"}),
        (3.1, cured("learning_rate", "1e-08", "0.0001"), {"rate-too-low": "error"}),
        (3.1, cured("learning_rate", "0.01", "0.0001"), {"rate-too-high": "error"}),
        (2.7, cured("learning_rate", "0.01", "0.0001"), {"rate-too-high": "warning"}),
        (3.1, cured("optimizer", "sgd", "adam"), {"setting-holds-back": "error"}),
        (3.1, cured("lr_schedule", "linear"), {"schedule-holds-back": "error"}),
        (3.1, cured("max_seq_length", "30"), {"limit-too-short": "error"}),
        # Little of what the twin gained, and over twice its loss.
        (0.8, LONG | {"own": 0.78}, {"far-above": "error"}),
        (0.8, LONG | cured("lora_parameters.keys", "q"), {"setting-holds-back": "error"}),
        (0.8, LONG | {"own": 0.1, "whole": 0.1}, NOT_LEARNED),
        (0.39, LONG | {"own": 0.39}, {}),
        # Of a plan a few updates were made, of many.
        (0.8, {"reached": 0.1, "reached_on_trained": 0.1, "planned": 1000}, {}),
    ],
)
def test_a_run_beside_its_twin(tuned: float, more: dict[str, Any], expected: Any) -> None:
    found = said(tuned, **more)
    assert severities(found) == expected
    assert bool(found.seen) is (set(expected.values()) <= {"info"})


def test_what_decides_nothing() -> None:
    # By chance: nothing was seen, either.
    noisy = said(3.1, own=4.9, noise=0.3)
    assert "too few" in noisy.reason
    assert not noisy.seen
    assert "teach slowly" in said(5.0, reached=4.8).reason
    assert "teach slowly" in said(4.9, reached=4.8).reason


def test_what_was_learned_all_the_same() -> None:
    # Held-out rows are forgotten where those trained on are known by heart.
    by_heart = said(3.1, own=2.0, tuned_on_trained=0.1)
    assert not severities(by_heart)
    assert "On the rows trained on the loss is 0.10" in by_heart.seen[0].message
    # Worse than the base on others: they do not tell, and nothing was earned.
    assert "by heart" in said(5.2, own=2.0, tuned_on_trained=0.1).reason
    assert severities(said(3.1, own=2.0, tuned_on_trained=0.1, split="training"))
    # Better than the twin, which learned nothing, and no better than the base.
    assert "teach slowly" in said(5.05, reached=5.1).reason
    # Rows that teach slowly, of which the run learned more than the twin; or the twin nothing.
    for reached in (4.8, 5.1):
        slow = said(4.7, reached=reached)
        assert slow.seen[0].learned
        assert severities(slow) == {"reached": "info"}
