"""Whether the stored values can be those of trained factors.

What it finds. A whose values all have one sign; factors with a handful of different values;
modules that have exactly the same factors; magnitudes of DoRA below zero, all alike, or of
another size than the rows of the base model.

Why it matters. Such values come from a conversion, a rounding or a merge that went wrong, and not
from training: norms and names are in order, and the model answers with noise.

How it is measured. A is drawn evenly around zero, and every B is reached by gradients of its own:
training leaves about as many values below zero as above, nearly all of them different, and no two
modules alike. The first few thousand bytes of each factor are looked at; factors that begin alike
are compared as a whole. A magnitude starts as the norm of a row of weights, which is above zero.
Those of a module together have the norm of its weight, with which they are compared where the base
is at hand.

When it is wrong. A model that uses one module in several places has its factors several times; both
factors are then the same, which is a warning only. A trainer of one's own may draw the same A for
every module.

What to do. Look for what wrote the file: use a save of the trainer itself, and convert or merge it
anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import Cost, NotApplicable, check, limit
from mlxdoctor.evidence.adapter import Adapter, LoraModule
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.tensor import TensorRef
from mlxdoctor.finding import Severity, Sign, Symptom, some_of
from mlxdoctor.safety.errors import InputError

#: Bytes of each factor that are looked at.
_FIRST_BYTES = 4096
_ANOTHER_SAVE = "use a save of the trainer itself, and convert or merge it anew"


@dataclass(frozen=True)
class Limits:
    """When values are not those of training."""

    values: int = limit(
        64, unit="values that are looked at", source="of fewer, some may be alike by chance"
    )
    one_sided: float = limit(
        0.05,
        unit="share of the rarer sign among the first values of A, median over modules",
        source="a draw around zero has half of either",
        false_alarms="0 of 100 sound adapters (reports/bypasses.md)",
    )
    few: int = limit(
        8,
        unit="different values among the first of a factor, median over modules",
        source="roundings to 1 and 2 bits leave 2 and 3; 4 bits in blocks a hundred",
        false_alarms="0 of 100 sound adapters, 10 of them in half precision",
    )
    apart: float = limit(
        2.0,
        unit="times, either way: norm of the magnitudes over that of the weight, median over "
        "modules",
        source="they start at 1; training moves the median magnitude by 1 to 8 percent",
        false_alarms="0 of 100 sound adapters, those with DoRA among them",
    )
    negative: float = limit(
        0.5,
        unit="share of a module's magnitudes below zero, median over modules",
        source="norms are not negative, and training moves them by a few percent",
    )


@check(
    codes={
        "one-sided": Symptom.error(
            "all values of A have the same sign, which no start and no training leaves",
            expected="values on either side of zero",
            fix=_ANOTHER_SAVE,
        ),
        "few-values": Symptom.error(
            "the factors consist of a handful of values: they were rounded away",
            expected="factors in float32, float16 or bfloat16, nearly all values different",
            fix="save the adapter in bfloat16; an adapter is small, and is not quantised",
        ),
        "same-factors": Symptom.error(
            "several modules have exactly the same B, which no training leaves",
            expected="factors of its own for every module",
            fix=_ANOTHER_SAVE,
        ),
        "negative-magnitudes": Symptom.error(
            "magnitudes of DoRA are below zero, and norms are not",
            expected="the norms of the rows of the weights, a little moved",
            fix=_ANOTHER_SAVE,
        ),
        "other-magnitudes": Symptom.error(
            "magnitudes of DoRA are not those of this base model's weights",
            expected="the norms of the rows of the weights, a little moved",
            fix="use a save of the trainer itself, on the base model that it was trained on",
        ),
    },
    cost=Cost.WEIGHTS,
    limits=Limits(),
)
def adapter_values(adapter: Adapter, base: BaseModel | None, limits: Limits) -> Iterator[Sign]:
    """Look at the first values of every factor, and at all magnitudes."""
    if not adapter.modules:
        raise NotApplicable("the adapter holds no pair of LoRA factors")
    every = [(one, _first(one.a), _first(one.b)) for one in adapter.modules]
    # What is not finite is told elsewhere, and says nothing of how it was saved.
    firsts = [(one, a, b) for one, a, b in every if _is_finite(a) and _is_finite(b)]
    yield from _one_sided([a for _, a, _ in firsts], limits)
    yield from _few([(a, b) for _, a, b in firsts], limits)
    yield from _same(firsts, len(every), limits)
    yield from _magnitudes(adapter.modules, base, limits)


def _first(tensor: TensorRef) -> NDArray[Any]:
    with np.errstate(invalid="ignore"):
        return next(tensor.blocks(_FIRST_BYTES), np.zeros(0, np.float32))


def _is_finite(values: NDArray[Any]) -> bool:
    # A signalling NaN warns when it is looked at; that it is there is a finding of another check.
    with np.errstate(invalid="ignore"):
        return bool(np.isfinite(values).all())


def _one_sided(firsts: Sequence[NDArray[Any]], limits: Limits) -> Iterator[Sign]:
    shares = []
    for one in firsts:
        below, above = int((one < 0).sum()), int((one > 0).sum())
        if below + above >= limits.values:
            shares.append(min(below, above) / (below + above))
    if shares and (share := median(shares)) < limits.one_sided:
        yield Sign(
            "one-sided",
            f"Nearly all values of A have the same sign (median of {len(shares)} modules: "
            f"{share:.1%} have the other): A starts evenly around zero.",
            {"share": share, "modules": len(shares)},
            expected="about as many values below zero as above",
        )


def _few(firsts: Sequence[tuple[NDArray[Any], NDArray[Any]]], limits: Limits) -> Iterator[Sign]:
    for letter, at in (("A", 0), ("B", 1)):
        counts = [
            len(np.unique(pair[at]))
            for pair in firsts
            # One value throughout, and a B that is still zero, are told elsewhere.
            if np.count_nonzero(pair[at]) >= limits.values and not np.all(pair[at] == pair[at][0])
        ]
        if counts and (count := median(counts)) <= limits.few:
            yield Sign(
                "few-values",
                f"{letter} consists of {count:g} different values (median of {len(counts)} "
                "modules): it was rounded to next to nothing.",
                {"different": count, "modules": len(counts)},
            )
            return


def _same(
    firsts: Sequence[tuple[LoraModule, NDArray[Any], NDArray[Any]]], modules: int, limits: Limits
) -> Iterator[Sign]:
    same_b = _alike([(one, one.b, b) for one, _, b in firsts], limits)
    same_a = _alike([(one, one.a, a) for one, a, _ in firsts], limits)
    both = {one for one in same_b if one in same_a}
    if names := sorted(same_b - both):
        yield Sign(
            "same-factors",
            f"{len(names)} of {modules} modules share their B with another one, number by "
            "number: each has gradients of its own.",
            {"alike": len(names), "modules": modules, "factor": "B"},
            where=some_of(names),
        )
    for rest, what in ((both, "both factors"), (same_a - both, "their A")):
        if rest:
            yield Sign(
                "same-factors",
                f"{len(rest)} of {modules} modules share {what} with another one, number by "
                "number, which a trainer leaves only where it drew them alike or they are one.",
                {"alike": len(rest), "modules": modules, "factor": what},
                where=some_of(sorted(rest)),
                severity=Severity.WARNING,
            )


def _alike(
    firsts: Sequence[tuple[LoraModule, TensorRef, NDArray[Any]]], limits: Limits
) -> set[str]:
    """Modules whose factor another one has as well."""
    groups: dict[tuple[object, ...], list[tuple[str, TensorRef]]] = defaultdict(list)
    for module, tensor, first in firsts:
        told = np.count_nonzero(first) >= limits.values and not np.all(first == first[0])
        if told:
            groups[tensor.shape, tensor.dtype, first.tobytes()].append((module.name, tensor))
    found: set[str] = set()
    for group in groups.values():
        by_value: dict[bytes, list[str]] = defaultdict(list)
        for name, tensor in group if len(group) > 1 else ():
            by_value[tensor.load().tobytes()].append(name)
        found.update(name for names in by_value.values() if len(names) > 1 for name in names)
    return found


def _magnitudes(
    modules: Sequence[LoraModule], base: BaseModel | None, limits: Limits
) -> Iterator[Sign]:
    found = [
        (one.name, one.magnitude.load().astype(np.float64).ravel())
        for one in modules
        if one.magnitude is not None and one.magnitude.is_float and one.magnitude.size
    ]
    # What is not finite is told elsewhere.
    found = [(name, values) for name, values in found if np.isfinite(values).all()]
    shares = [float((values < 0).mean()) for _, values in found]
    if shares and (share := median(shares)) >= limits.negative:
        yield Sign(
            "negative-magnitudes",
            f"{share:.0%} of the magnitudes are below zero (median of {len(shares)} modules): they "
            "start as norms, and turn the sign of every output.",
            {"share": share, "modules": len(shares)},
        )
        return
    alike = [name for name, one in found if len(one) >= limits.values and np.all(one == one[0])]
    if alike and 2 * len(alike) > len(found):
        yield Sign(
            "other-magnitudes",
            f"The magnitudes of {len(alike)} of {len(found)} modules are all the same number: they "
            "start as the norms of the rows of the weights, which differ.",
            {"alike": len(alike), "modules": len(found)},
            where=some_of(alike),
        )
        return
    if base is not None:
        yield from _against_the_weights(found, base, limits)


def _against_the_weights(
    found: Sequence[tuple[str, NDArray[np.float64]]], base: BaseModel, limits: Limits
) -> Iterator[Sign]:
    ratios = []
    for name, values in found:
        try:
            norm = base.weight_norm(name) if base.module_for(name) is not None else 0.0
        except InputError:
            norm = 0.0
        if norm > 0 and isfinite(norm):
            ratios.append(float(np.linalg.norm(values)) / norm)
    # As far below as above: 0 is furthest of all.
    apart = [max(one, 1 / one) if one > 0 else inf for one in ratios]
    if apart and median(apart) >= limits.apart:
        ratio = median(ratios)
        yield Sign(
            "other-magnitudes",
            f"The magnitudes are {ratio:.3g} times as large as the norms of the base model's "
            f"weights (median of {len(ratios)} modules), where they start.",
            {"ratio": ratio, "modules": len(ratios)},
            expected="about 1",
        )
