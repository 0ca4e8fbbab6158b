"""What training did to the model's hold on ordinary language.

What it finds. A tuned model that predicts a dozen ordinary sentences, about which no fine-tune
is, much worse than its base does: the language itself was damaged, and not only bent to a task.

Why it matters. Answers to the run's own prompts may look passable while everything else is lost:
a rate or a scale too high, far too many passes over few rows, targets that are no language.

How it is measured. Twelve questions of everyday life and their answers, written for this purpose,
are rendered with the chat template. Both models' mean losses on the answers are compared text by
text, in nats a token, with the standard error of the difference over texts.

When it is wrong. A run that is to answer in another form altogether, in code, labels or another
language, makes plain sentences less likely without harm: a moderate rise is not reported. A base
that does not know such sentences itself, as small ones do not, can't lose them: nothing is said.

What to do. Train more gently: a lower rate or scale, fewer passes; or use an earlier checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Cost, Inconclusive, check, limit
from mlxdoctor.finding import Measurement, Seen, Sign, Symptom, Unsought
from mlxdoctor.models.general_text import GeneralText

_SAID = (
    "On {texts} ordinary sentences, which the run is not about, the tuned model's loss is "
    "{tuned_loss:.2f} nats a token, the base model's {base_loss:.2f}"
)


@dataclass(frozen=True)
class Limits:
    """When a model has lost ordinary language."""

    known: float = limit(
        0.5,
        unit="of the loss of a uniform guess",
        source="a base whose loss is above knows too little of such sentences to lose it; a real "
        "one of 135 M parameters has 0.34",
    )
    errors: float = limit(3.0, unit="standard errors over texts", source="one of 700 by chance")
    worse: float = limit(
        1.5,
        unit="nats a token by which the loss rose",
        source="each token five times less likely",
    )
    lost: float = limit(
        0.6,
        unit="of the loss of a uniform guess",
        source="further from any language than a model that was never taught this one",
    )


@check(
    codes={
        "worse": Symptom.warning(
            "ordinary sentences are predicted much worse than by the base model",
            says=f"{_SAID}.",
            expected="about the base model's loss on text that the run is not about",
            fix="Lower the learning rate or the scale, make fewer passes over the rows, or use an "
            "earlier checkpoint.",
        ),
        "lost": Symptom.error(
            "the tuned model hardly predicts ordinary language any more",
            says=f"{_SAID}; a blind guess has {{uniform_guess:.2f}}.",
            expected="about the base model's loss on text that the run is not about",
            fix="Don't use this adapter; see what else is wrong with rate, scale and labels.",
        ),
    },
    cost=Cost.FORWARD,
    limits=Limits(),
    rerun_symptom=True,
)
def general_text(text: GeneralText, limits: Limits) -> Iterator[Sign | Seen | Unsought]:
    """Compare both models' losses on general sentences."""
    base, tuned = np.array(text.base), np.array(text.tuned)
    if not (np.isfinite(base).all() and np.isfinite(tuned).all()):
        raise Inconclusive("the losses are not finite")
    uniform = math.log(max(text.vocab_size, 2))
    if base.mean() > limits.known * uniform:
        yield Unsought(("worse", "lost"), "the base model itself hardly knows ordinary sentences")
        return
    rise = tuned - base
    error = float(rise.std(ddof=1)) / math.sqrt(len(rise))
    measured: dict[str, Measurement] = {
        "texts": len(rise),
        "base_loss": round(float(base.mean()), 3),
        "tuned_loss": round(float(tuned.mean()), 3),
        "rise": round(float(rise.mean()), 3),
        "rise_error": round(error, 3),
        "uniform_guess": round(uniform, 3),
    }
    is_certain = float(rise.mean()) - limits.errors * error > 0.0
    if is_certain and tuned.mean() > limits.lost * uniform:
        yield Sign("lost", measured)
    elif is_certain and rise.mean() > limits.worse:
        yield Sign("worse", measured)
    else:
        yield Seen(f"{_SAID}.", measured)
