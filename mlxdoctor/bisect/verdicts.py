"""Which saves are broken, as their files and the log show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from mlxdoctor.bisect.history import FollowedHistory, Quantity, SaveState, layer_sizes
from mlxdoctor.bisect.log_at_saves import LoggedCourse
from mlxdoctor.check import limit


class Standing(StrEnum):
    """What a save is worth."""

    GOOD = "good"
    BROKEN = "broken"
    UNTRAINED = "untrained"


class Symptom(StrEnum):
    """Why a save is broken, or what is odd about it."""

    UNREADABLE = "unreadable"
    NON_FINITE = "non-finite"
    ERASED = "erased"
    ZERO = "zero-b"
    EXPLODED = "exploded"
    JUMPED = "jumped"
    BLOWN_UP = "blown-up-in-the-log"
    PAST_BEST = "past-its-best-in-the-log"
    LARGE = "large"
    DEAD_LAYER = "dead-layer"
    OTHER_TENSORS = "other-tensors"
    IDENTICAL = "identical"


#: Symptoms that are facts: no measurement of the model's behaviour takes them back.
FACTS = frozenset(
    {Symptom.UNREADABLE, Symptom.NON_FINITE, Symptom.ERASED, Symptom.ZERO, Symptom.EXPLODED}
)
#: Symptoms that are told but break nothing by themselves.
ODDITIES = frozenset({Symptom.LARGE, Symptom.DEAD_LAYER, Symptom.OTHER_TENSORS, Symptom.IDENTICAL})


@dataclass(frozen=True)
class SizeLimits:
    """When the size of an update breaks the model."""

    relative: float = limit(
        3.0,
        unit="‖ΔW‖/‖W‖, median over modules",
        source="30 runs of four base models that end above it, at 4.8 to 960: the likeness of "
        "their answers to the right ones is 0.05 to 0.44; sound runs reach 0.8 to 0.9",
        false_alarms="0 of 126 sound runs of four base models, which reach 1.3",
    )
    large: float = limit(
        1.8,
        unit="‖ΔW‖/‖W‖, median over modules",
        source="the limit of weight-drift: runs at 1.8 to 2.9 are impaired, some not for good",
        false_alarms="0 of 126 sound runs of four base models",
    )
    nominal: float = limit(
        4.0,
        unit="‖ΔW‖/sqrt(min(in, out)), median over modules",
        source="the limit of weight-drift without a base model; sound runs reach 0.9",
        false_alarms="0 of 126 sound runs of four base models",
    )
    growth: float = limit(
        3.0,
        unit="growth of the update between two saves over the ratio of their iterations",
        source="the limit of checkpoint-history; sound runs of four base models reach 1.33",
        false_alarms="0 of 126 sound runs",
    )
    growth_size: float = limit(
        1.0, unit="the size after that growth", source="a small update may grow fast without harm"
    )
    dead: float = limit(
        1e-3,
        unit="the layer's update over the median layer's",
        source="sound runs have 0.68 or more in every layer, and a layer without a gradient 0",
        false_alarms="0 of 126 sound runs",
    )
    layers: int = limit(3, unit="layers", source="the median of fewer means little")


@dataclass(frozen=True)
class Remark:
    """One symptom of a save: which, and a clause with its figures."""

    symptom: Symptom
    text: str


@dataclass(frozen=True)
class SaveVerdict:
    """What the files and the log say of one save.

    Attributes:
        save: the save.
        standing: what it is worth.
        remarks: what was found, the worst first.
        same_as: the place of the earlier save whose file is the same, byte for byte.
    """

    save: SaveState
    standing: Standing
    remarks: tuple[Remark, ...] = ()
    same_as: int | None = None

    @property
    def is_certain(self) -> bool:
        """Whether a fact about the file breaks it, whatever the model may answer."""
        return any(one.symptom in FACTS for one in self.remarks)


def judge(
    followed: FollowedHistory, logged: LoggedCourse | None, limits: SizeLimits
) -> tuple[SaveVerdict, ...]:
    """Judge every save.

    Args:
        followed: the saves in figures.
        logged: what the log says at each of them.
        limits: for the sizes.
    """
    verdicts: list[SaveVerdict] = []
    seen: dict[str, int] = {}
    names = next((one.tensors for one in followed.saves if one.tensors), frozenset())
    for place, save in enumerate(followed.saves):
        if save.problem:
            remarks = [Remark(Symptom.UNREADABLE, f"its file {save.problem}")]
            verdicts.append(SaveVerdict(save, Standing.BROKEN, tuple(remarks)))
            continue
        found = [*_facts(save, followed.saves[:place])]
        if not found:
            found += _sizes(save, verdicts, followed.quantity, limits)
        if logged is not None and logged.lost[place] and not _has(found, Symptom.ZERO):
            found.append(Remark(Symptom.BLOWN_UP, _in_the_log(logged, place)))
        elif logged is not None and logged.risen[place] and not found:
            text = f"saved after the validation loss had risen from its minimum at {logged.best}"
            found.append(Remark(Symptom.PAST_BEST, text))
        found += _dead_layers(save, limits)
        if save.tensors != names:
            text = f"it holds other tensors than {followed.saves[0].checkpoint.path.name}"
            found.append(Remark(Symptom.OTHER_TENSORS, text))
        same = seen.setdefault(save.checkpoint.sha256, place)
        if same != place:
            text = f"byte for byte the same file as {followed.saves[same].checkpoint.path.name}"
            found.append(Remark(Symptom.IDENTICAL, text))
        verdicts.append(
            SaveVerdict(save, _standing(found), tuple(found), same if same != place else None)
        )
    return tuple(verdicts)


def _has(found: Sequence[Remark], symptom: Symptom) -> bool:
    return any(one.symptom is symptom for one in found)


def _standing(found: Sequence[Remark]) -> Standing:
    symptoms = {one.symptom for one in found} - ODDITIES
    if not symptoms:
        return Standing.GOOD
    return Standing.UNTRAINED if symptoms == {Symptom.ZERO} else Standing.BROKEN


def _facts(save: SaveState, before: Sequence[SaveState]) -> list[Remark]:
    if save.nonfinite:
        text = f"{save.nonfinite:,} of its values are NaN or infinite"
        return [Remark(Symptom.NON_FINITE, text)]
    zero = {one.name for one in save.modules if one.is_zero}
    trained = {one.name for other in before for one in other.modules if not one.is_zero}
    if lost := zero & trained:
        text = f"{len(lost)} of {len(save.modules)} modules lost what they had learned: B is 0"
        return [Remark(Symptom.ERASED, text)]
    if save.is_zero:
        return [Remark(Symptom.ZERO, "every B is exactly zero: it is the base model still")]
    return []


def _sizes(
    save: SaveState, before: Sequence[SaveVerdict], quantity: Quantity, limits: SizeLimits
) -> list[Remark]:
    size = save.size
    if not isfinite(size):
        return []
    if quantity == "relative" and size >= limits.relative:
        return [Remark(Symptom.EXPLODED, f"update {size:.3g} times as large as the weights")]
    if quantity == "nominal" and size >= limits.nominal:
        text = f"update about {size:.3g} times as large as weights of these shapes usually are"
        return [Remark(Symptom.EXPLODED, text)]
    found = []
    if quantity == "relative" and size >= limits.large:
        found.append(Remark(Symptom.LARGE, f"update {size:.3g} times as large as the weights"))
    # A final file has no iteration of its own, and what is broken is no measure for the next.
    usual = [one for one in before if one.standing is Standing.GOOD and one.save.size > 0]
    iteration = save.checkpoint.iteration
    if not usual or iteration is None:
        return found
    last = usual[-1].save
    growth = size / last.size
    ratio = iteration / max(last.checkpoint.iteration or 1, 1)
    if growth / ratio >= limits.growth and size >= limits.growth_size:
        text = f"update {growth:.3g} times as large as at {last.checkpoint.label}"
        found.append(Remark(Symptom.JUMPED, text))
    return found


def _dead_layers(save: SaveState, limits: SizeLimits) -> list[Remark]:
    sizes = layer_sizes(save)
    if save.is_zero or len(sizes) < limits.layers or not all(map(isfinite, sizes.values())):
        return []
    # The upper half, so that layers that are dead in number do not hide each other.
    usual = sorted(sizes.values())[-(len(sizes) // 4 + 1)]
    dead = [layer for layer, size in sizes.items() if size < limits.dead * usual]
    if not dead:
        return []
    listed = ", ".join(map(str, dead[:4])) + (", …" if len(dead) > 4 else "")
    noun = "layer" if len(dead) == 1 else "layers"
    return [Remark(Symptom.DEAD_LAYER, f"{noun} {listed} of {len(sizes)} did not learn at all")]


def _in_the_log(logged: LoggedCourse, place: int) -> str:
    loss = logged.losses[place]
    if loss is None or not isfinite(loss):
        return "saved while the log's loss was not finite"
    return f"saved while the log's loss was {loss:.3g}"
