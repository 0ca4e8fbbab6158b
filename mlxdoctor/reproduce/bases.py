"""A base or a tokenizer that is at fault, or another base than the adapter was trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.models.load import load_tokenizer, load_weights
from mlxdoctor.reproduce.rerun import Laboratory, split_loss
from mlxdoctor.reproduce.rules import Limits, Ruling, undecided
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


def another_base(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Whether the run's base is no better than a guess, where another one's weights are."""
    return _evaluated(lab, run, folder, BASE)


def another_tokenizer(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Whether the run's base reads noise with its tokenizer, and not with another one."""
    return _evaluated(lab, run, folder, TOKENIZER)


def _evaluated(lab: Laboratory, run: Run, folder: Path, suspect: Suspect) -> Ruling:
    own, given = lab.recipe.named_base(run), lab.recipe.base
    if own is None:
        return undecided(
            f"the base that the run names ({lab.recipe.config.model or 'none'}) is not here, so "
            "that the one named with --base can't be compared with it",
            "the base that the run was trained on, where its configuration names it",
        )
    settings = lab.recipe.settings(folder, 1, lab.recipe.seed)
    paths = {"own": own, "given": given}
    losses: dict[Pairing, float] = {}
    uniform = math.inf
    for weights, tokenizer in (OWN,) if own == given else (OWN, suspect.cure, suspect.other):
        model, config = load_weights(paths[weights])
        size = int(config["vocab_size"])
        label = "a base evaluated before any training"
        reader = load_tokenizer(paths[tokenizer])
        loss = split_loss(lab, settings, model, reader, label, vocab_size=size)
        if loss is None:
            reason = "there are no validation rows to evaluate a base on"
            return undecided(reason, "validation rows (--data)")
        losses[weights, tokenizer] = loss
        uniform = min(uniform, math.log(size))
    return judge_bases(losses, uniform, suspect, first_validation(run.get(TrainingLog)))


def first_validation(log: TrainingLog | None) -> float | None:
    """The validation loss that the log has before the first update, nats a token."""
    series = log.main.get("val_loss") if log is not None else None
    if series is None or not len(series) or int(series.iterations[0]) > 1:
        return None
    return float(series.values[0])


def judge_bases(
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

    def predicts(loss: float) -> bool:
        """Whether a loss is clearly better than a uniform guess."""
        return loss < uniform * (1 - Limits().better)

    text = (
        f"before any training the base has a loss of {own:.3f} on the validation rows (a uniform "
        f"guess would have {uniform:.3f})"
    )
    if predicts(own) and logged is not None and logged > ELSEWHERE * own:
        return undecided(
            f"{text}, and the log began at {logged:.3f}: it was trained with something else than "
            "what is here",
            f"the {what} that it was trained with, named with --base",
        )
    if predicts(own):
        return Ruling("refuted", f"{text}: it reads them")
    if suspect.cure not in losses:
        return undecided(text, f"another {what}, whose folder is named with --base")
    cured = losses[suspect.cure]
    if not predicts(cured):
        return Ruling("refuted", f"{text}; with the {what} named by --base it has {cured:.3f}")
    if predicts(losses[suspect.other]):
        return undecided(
            f"{text}; another base and another tokenizer cure it alike, each alone",
            "a third copy of the model, downloaded again",
        )
    return Ruling(
        "confirmed",
        f"{text}; with the {what} named by --base, and nothing else changed, it has {cured:.3f}",
        1.0,
    )


def fresh_shapes(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Make one step on this base with the run's configuration, and compare the shapes.

    Bases of one kind have the same shapes. Then the log tells: its first validation is of the
    base before any training, and made again on the right base it gives the same loss.
    """
    adapter, base = run.get(Adapter), run.get(BaseModel)
    if adapter is None or base is None:
        reason = "there is no adapter, or no base to compare it with"
        return undecided(reason, "the adapter, and the base it is used with (--base)")
    here = _first_loss(lab, folder, lab.recipe.base, "one step on this base")
    fresh = {one.name: (one.in_features, one.out_features) for one in Adapter.read(folder).modules}
    shared = [module for module in adapter.modules if module.name in fresh]
    other = [one for one in shared if fresh[one.name] != (one.in_features, one.out_features)]
    if not shared:
        reason = "no module of the adapter has the name of one of this base"
        return undecided(reason, "the base that the adapter was trained on (--base)")
    if other:
        module = other[0]
        rows, columns = fresh[module.name]
        return Ruling(
            "confirmed",
            "an adapter trained here with the same configuration has other shapes: "
            f"{module.name} is {rows} × {columns}, and {module.in_features} × "
            f"{module.out_features} in the run's file ({len(other)} of {len(shared)} modules "
            "differ)",
            1.0,
        )
    own, named = lab.recipe.named_base(run), None
    if own is not None and own != lab.recipe.base:
        named = _first_loss(lab, folder / "named", own, "one step on the base that the run names")
    return judge_same_shapes(first_validation(run.get(TrainingLog)), here, named)


def _first_loss(lab: Laboratory, folder: Path, base: Path, label: str) -> float | None:
    """The validation loss before the first update on a base, nats a token."""
    values = {**lab.recipe.values, "model": str(base)}
    result = lab.train(lab.recipe.settings(folder, 1, lab.recipe.seed, values), label)
    return result.validations[0].val_loss if result.validations else None


def judge_same_shapes(logged: float | None, here: float | None, named: float | None) -> Ruling:
    """The verdict where shapes tell nothing: by the validation before the first update.

    Args:
        logged: what the run's log has, nats a token; None where it has none.
        here: the same validation made on this base; None where there is none.
        named: likewise on the base that the run names; None where that is this one.
    """
    text = "an adapter trained on this base has the same shapes"
    if logged is None or here is None:
        return undecided(
            f"{text}, which bases of one kind have in common",
            "a log with the validation loss before the first update",
        )
    same = Limits().same_step
    losses = f"before the first update the log has a validation loss of {logged:.3f}"
    if abs(logged - here) > same:
        return undecided(
            f"{text}; {losses}, this base has {here:.3f}: it was another base, or other rows, or "
            "another loss",
            "the base that was trained on, whose folder is named with --base",
        )
    if named is not None and not abs(logged - named) <= same:
        return Ruling(
            "confirmed",
            f"{losses}, as the base named with --base has ({here:.3f}); the base that the run "
            f"names has {named:.3f}: the adapter was trained on the former",
            1.0,
        )
    return Ruling("refuted", f"{text}, and {losses}, as this base has ({here:.3f})")
