"""What is said of steps that no trainer of the other tests makes, from made-up measurements."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlxdoctor.measure.training_step.measurement import TrainingStep
from mlxdoctor.measure.training_step.values import (
    Alignment,
    Forward,
    ParameterStep,
    Preferences,
    State,
    Update,
)
from mlxdoctor.probe.probing import judge

TOKENS = np.arange(12, dtype=np.int32) + np.array([[20], [40]], np.int32)


def aligned(offset: int = 1, **changed: Any) -> Alignment:
    """Two rows of twelve tokens, each position trained on the token at that offset."""
    targets = np.roll(TOKENS, -offset, axis=1)
    targets[:, -max(offset, 1) :] = -1
    full, none = np.full(2, 12, np.int32), np.full(2, -1, np.int32)
    values: dict[str, Any] = {
        "inputs": TOKENS,
        "targets": targets,
        "weights": (targets >= 0).astype(np.float32),
        "hard": 1.0,
        "prompt_lengths": none,
        "row_lengths": full,
        "widths": full,
        "forwards": np.zeros(2, np.int32),
        "end_ids": (31, 51),
    }
    return Alignment(**values | changed)


def updated(*parameters: tuple[str, float | None, float], **changed: Any) -> Update:
    """Two steps; each parameter by name, norm of its gradient, and change."""
    made = tuple(ParameterStep(name, norm, 1.0, change) for name, norm, change in parameters)
    return Update(2, False, "Adam", 1e-4, made, (), **{"losses": (2.0, 1.5, 1.0)} | changed)


def stated(**changed: Any) -> State:
    adapters = ("q_proj", "v_proj")
    return State({"q_proj (adapter)": 10}, {"q_proj": 90}, adapters, **changed)


def policy(*pushes: float) -> Preferences:
    """Two answers with rewards of 1 and -1, and their pushes by those and by the reverse."""
    return Preferences(("rewards",), np.array([1.0, -1.0]), *np.array(pushes).reshape(2, 2))


def untrained(*rows: int) -> Any:
    targets = np.array(aligned().targets)
    targets[list(rows)] = -1
    return targets


MIXED = np.where(np.arange(12) % 2, aligned(1).targets, aligned(2).targets)

SENTENCES = [
    (
        "step-alignment.no-targets",
        {"alignment": aligned(targets=untrained(0, 1))},
        "2 of 2 rows have no trained token: no position has a gradient, of 24.",
    ),
    (
        "step-alignment.misaligned",
        {"alignment": aligned(-1)},
        "100% of 16 positions are trained on the token before it; a language model needs",
    ),
    (
        "step-alignment.misaligned",
        {"alignment": aligned(3)},
        "are trained on the token 3 places on; a language model needs the next one.",
    ),
    (
        "step-alignment.misaligned",
        {"alignment": aligned(targets=MIXED)},
        "(0% at -1, 0% at +0, 50% at +1, 50% at +2, 0% at +3).",
    ),
    (
        "step-alignment.no-targets",
        {"alignment": aligned(targets=untrained(1))},
        "1 of 2 rows have no trained token.",
    ),
    (
        "step-alignment.no-end-token",
        {"alignment": aligned(end_ids=(7,))},
        "None of 2 rows has an end token within this batch's width",
    ),
    ("step-update.no-loss", {"forward": None}, "The loss cannot be computed on this batch."),
    (
        "step-update.starts-not-finite",
        {"forward": Forward(float("nan"))},
        "The loss of this batch is not finite before any update (loss nan, no logits).",
    ),
    (
        "step-update.starts-above-uniform",
        {"forward": Forward(50.0, 5.0, "float32")},
        "The loss is 50.00 before any update: 10.0 times a uniform guess over the vocabulary",
    ),
    (
        "step-update.failed",
        {"update": updated(("a", None, 0.0), error="ValueError")},
        "A training step fails (ValueError).",
    ),
    (
        "step-update.no-gradient",
        {"update": updated(("a", 0.0, 1.0), ("b", 1.0, 1.0))},
        "1 of 2 trainable parameters get a gradient of exactly zero, such as ",
    ),
    (
        "step-update.gradient-not-finite",
        {"update": updated(("a", float("nan"), 1.0), ("b", 1.0, 1.0))},
        "The gradients of 1 of 2 trainable parameters are not finite.",
    ),
    (
        "step-update.exploding",
        {"update": updated(("a", 3e3, 1.0), ("b", 4e3, 1.0))},
        "The gradient's norm is 5e+03: a first step of that size ruins a model",
    ),
    (
        "step-update.loss-rose",
        {"update": updated(("a", 1.0, 1.0), losses=(2.0, 4.1))},
        "The loss of the same batch went from 2.000 to 4.100 in 2 steps.",
    ),
    (
        "step-preferences.wrong-way",
        {"preferences": policy(-2, 2, 2, -2)},
        "The answer with the highest of the rewards (1) is pushed by -2, the one with the lowest "
        "(-1) by +2.",
    ),
    (
        "step-preferences.not-reversed",
        {"preferences": policy(1.8, -0.2, -0.2, 1.8)},
        "A part of the push does not depend on the rewards. It is up to 0.8 times as large as the "
        "push from the rewards.",
    ),
    (
        "step-state.frozen",
        {"state": stated(half_adapters=("q_proj",))},
        "A or B is frozen in 1 of 2 adapters, such as q_proj.",
    ),
    (
        "step-update.unchanged",
        {"update": updated(("a", 1.0, 0.0), ("b", 1.0, 1.0))},
        "2 plain steps left 1 of 2 parameters that have a gradient exactly as they were, such",
    ),
    (
        "step-update.loss-rose",
        {"update": updated(("a", 1.0, 1.0), losses=(2.0, float("nan")))},
        "The loss of the same batch went from 2.000 to nan in 2 steps.",
    ),
]


@pytest.mark.parametrize(("code", "changed", "sentence"), SENTENCES)
def test_sentence(code: str, changed: dict[str, Any], sentence: str) -> None:
    sound: dict[str, Any] = {
        "state": stated(),
        "forward": Forward(2.0, 5.0, "float32"),
        "alignment": aligned(),
        "update": updated(("a", 1.0, 0.1)),
    }
    findings = judge(TrainingStep(**sound | changed)).findings
    (finding,) = [one for one in findings if one.code == code]
    assert sentence in finding.message


@pytest.mark.parametrize(
    ("own", "last", "severity"),
    [(True, 1.0, "info"), (True, 3.0, "warning"), (False, 1.0, "warning")],
)
def test_an_enormous_gradient_is_a_note_where_a_step_of_ones_own_makes_good_use_of_it(
    own: bool, last: float, severity: str
) -> None:
    update = replace(updated(("a", 1e4, 0.1), losses=(2.0, 1.5, last)), own=own)
    step = TrainingStep(
        state=stated(), forward=Forward(2.0, 5.0, "float32"), alignment=aligned(), update=update
    )
    found = {one.code: one.severity.value for one in judge(step).findings}
    assert found["step-update.exploding"] == severity
