"""A base or a tokenizer that is at fault: evaluated beside the one named with `--base`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlxdoctor.evidence.run_files import resolve
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.experiments import direct
from mlxdoctor.experiments.shared.held_out import split_loss
from mlxdoctor.experiments.shared.laboratory import Laboratory
from mlxdoctor.experiments.shared.rules import Limits, Ruling, undecided
from mlxdoctor.models.load import load_tokenizer, load_weights
from mlxdoctor.run import Run

#: A log that begins this many times higher than the base's own loss is not of this base: batches
#: and masks make less of a difference.
ELSEWHERE = 1.5
#: Whose weights and whose tokenizer: the run's own, or those of the base that was given.
Pairing = tuple[str, str]
OWN: Pairing = ("own", "own")


@dataclass(frozen=True)
class Suspect:
    """What is suspected.

    Attributes:
        what: "base" or "tokenizer".
        cure: the pairing in which only that is replaced.
        other: the pairing in which only the rest is.
    """

    what: str
    cure: Pairing
    other: Pairing


BASE = Suspect("base", ("given", "own"), ("own", "given"))
TOKENIZER = Suspect("tokenizer", ("own", "given"), ("given", "own"))


@direct("base-model-broken", "the base evaluated before any training")
def another_base(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Whether the run's base is no better than a guess, where another one's weights are."""
    return _evaluated(lab, run, folder, BASE)


@direct("tokenizer-mismatch", "the base evaluated with its tokenizer")
def another_tokenizer(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Whether the run's base reads noise with its tokenizer, and not with another one."""
    return _evaluated(lab, run, folder, TOKENIZER)


def _evaluated(lab: Laboratory, run: Run, folder: Path, suspect: Suspect) -> Ruling:
    named = lab.recipe.config.model
    own = resolve(named, run.files.roots, model=True) if named is not None else None
    given = lab.recipe.base
    if own is None:
        return undecided(
            f"the base that the run names ({named or 'none'}) is not here, so that the one named "
            "with --base can't be compared with it",
            "the base that the run was trained on, where its configuration names it",
        )
    losses: dict[Pairing, float] = {}
    paths = {"own": own.resolve(), "given": given}
    pairs = [OWN]
    if own.resolve() != given:
        pairs += [suspect.cure, suspect.other]
    uniform = math.inf
    for weights, tokenizer in pairs:
        found = _loss(lab, folder, paths[weights], paths[tokenizer])
        if found is None:
            reason = "there are no validation rows to evaluate a base on"
            return undecided(reason, "validation rows (--data)")
        losses[weights, tokenizer], size = found
        uniform = min(uniform, math.log(size))
    return judged(losses, uniform, suspect, _logged_first(run))


def _logged_first(run: Run) -> float | None:
    """The validation loss that the log has before the first update, nats a token."""
    log = run.get(TrainingLog)
    series = log.main.get("val_loss") if log is not None else None
    if series is None or not len(series) or int(series.iterations[0]) > 1:
        return None
    return float(series.values[0])


def judged(
    losses: Mapping[Pairing, float],
    uniform: float,
    suspect: Suspect,
    logged: float | None = None,
) -> Ruling:
    """The verdict from losses on the validation rows, in nats a token.

    Args:
        losses: of `OWN`, and of the suspect's `cure` and `other` where another base was given.
        uniform: the loss of a uniform guess, nats.
        suspect: what may be at fault.
        logged: the validation loss in the log before the first update; None where it has none.
    """
    own, what = losses[OWN], suspect.what
    guess = f"a uniform guess would have {uniform:.3f}"
    if _predicts(own, uniform) and logged is not None and logged > ELSEWHERE * own:
        return undecided(
            f"before any training the base has a loss of {own:.3f} on the validation rows, and "
            f"the log began at {logged:.3f}: it was trained with something else than what is here",
            f"the {what} that it was trained with, named with --base",
        )
    if _predicts(own, uniform):
        return Ruling(
            "refuted",
            f"before any training the base has a loss of {own:.3f} on the validation rows, and "
            f"{guess}: it reads them",
        )
    text = f"before any training the base has a loss of {own:.3f} on the validation rows ({guess})"
    if suspect.cure not in losses:
        return undecided(text, f"another {what}, whose folder is named with --base")
    if not _predicts(losses[suspect.cure], uniform):
        return Ruling(
            "refuted", f"{text}; with the {what} named by --base it has {losses[suspect.cure]:.3f}"
        )
    if _predicts(losses[suspect.other], uniform):
        return undecided(
            f"{text}; another base and another tokenizer cure it alike, each alone",
            "a third copy of the model, downloaded again",
        )
    return Ruling(
        "confirmed",
        f"{text}; with the {what} named by --base, and nothing else changed, it has "
        f"{losses[suspect.cure]:.3f}",
        1.0,
    )


def _predicts(loss: float, uniform: float) -> bool:
    """Whether a loss is clearly better than a uniform guess."""
    return loss < uniform * (1 - Limits().better)


def _loss(
    lab: Laboratory, folder: Path, weights: Path, tokenizer: Path
) -> tuple[float, int] | None:
    """Loss on the validation rows, and the size of the vocabulary."""
    settings = lab.recipe.settings(folder, 1, lab.recipe.seed)
    model, config = load_weights(weights)
    reader = load_tokenizer(tokenizer)
    size = int(config["vocab_size"])
    loss = split_loss(
        lab, settings, model, reader, "a base evaluated before any training", vocab_size=size
    )
    return None if loss is None else (loss, size)
