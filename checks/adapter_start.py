"""Whether every module's A grew from the start that the run's seed drew for it.

What it finds. Modules whose factors are of another run than the rest, factors that were exchanged
between modules or layers, an A that was averaged with another run's, one whose values lie in
another order, and one that lacks a part of its columns.

Why it matters. Halves of two runs, or one layer under another's name, load without a word: names
and shapes are right. The answers are worse than training left them, often by most of what was
learned, and still better than the base model's.

How it is measured. LoRA draws every A at random and training moves it little. The seed stands in
the configuration, and MLX's draws can be computed again: A correlates with the very numbers that
it began with, by 0.8 to 1 after a usual run. Where several modules show theirs and another has no
trace of any, it comes from elsewhere. The number of the draw tells the order in which the trainer
went through the model: layer after layer, and through all layers alike; k_proj before v_proj and
q_proj before o_proj, as all architectures of mlx-lm have them, or all the other way round; and no
draw is made twice. Of an average A holds a part of its own start, and as much that is foreign.
Where no module shows its draw, six are read column by column, and as the first columns of twice
and of four times as many.

When it is wrong. Nothing is said where no module shows its draw: another trainer, another seed, or
so long a run that A has left its start behind. A run that goes on from another adapter is not
judged. A trainer of one's own that draws a few modules under another seed is taken for two runs.
An adapter whose rank was lowered on purpose, by leaving columns out, is told as one that was cut.

What to do. Use a save of the trainer itself; convert, split or merge it anew.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import exp, sqrt
from statistics import median

from mlxdoctor.check import Cost, Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Sign, Symptom, some_of
from mlxdoctor.measure.weights.drawn_starts import Layout, Start, starts

#: Values of each A that are compared, and those of one that shows no trace.
_COMPARED, _CLOSELY = 256, 1 << 15
#: Draws that are looked at: some a module, and what a model draws for itself when it is built.
_EACH, _BEFORE, _MOST = 6, 64, 4096
#: Where none shows its draw: modules and values of each that are read in other orders.
_TRIED, _FEW = 6, 64
#: How many times the rank a cut one may have had.
_TIMES = (2, 4)
#: Draws that a module takes at most: a weight and a bias that are thrown away, and A.
_TAKEN = 3
_LAYER = re.compile(r"\.(\d+)\.")
#: Modules of a block that every architecture of mlx-lm has in this order, or all in the other.
_IN_ORDER = (("k_proj", "v_proj"), ("q_proj", "o_proj"))
#: The same, where the third lies between them.
_AROUND = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Limits:
    """When A shows its draw, and when it has no trace of any."""

    shown: float = limit(
        0.5,
        unit="correlation of A with the draw that it is nearest to",
        source="0.8 to 1 after a usual run; 8 standard deviations of what chance leaves",
    )
    kept: float = limit(
        0.7,
        unit="correlation, median over the modules that show their draw",
        source="below, A has moved so far that some modules may have left their start behind",
    )
    chance: float = limit(
        5.0,
        unit="standard deviations of the correlation with numbers that have nothing to do with it",
        source="the greatest of some thousand draws is at 4",
    )
    part: float = limit(
        0.6,
        unit="times that A holds its own draw, median over modules",
        source="an average of two runs has 0.5; 0.89 to 1.15 in 30 sound runs",
    )
    alone: float = limit(
        0.9,
        unit="correlation, median over modules",
        source="above, A was scaled and not mixed: 0.7 in an average of two runs",
    )
    trace: float = limit(
        0.3, unit="correlation", source="where chance alone reaches this, too few are compared"
    )
    decay: float = limit(
        0.1, unit="share of A that weight decay alone takes", source="an average takes a half"
    )
    modules: int = limit(2, unit="modules that show their draw", source="one is no order")
    share: float = limit(0.25, unit="share of the modules", source="fewer are the exception")


@check(
    codes={
        "another-run": Symptom.error(
            "some modules' factors did not grow from the start that the others grew from",
            expected="every A close to the numbers that the run's seed drew",
            fix="use a save of the trainer itself; do not put files of two runs together",
        ),
        "exchanged": Symptom.error(
            "factors lie under other modules' names",
            expected="starts that were drawn in the order of the model's modules",
            fix="use a save of the trainer itself, and see how the tensors were renamed",
        ),
        "in-other-order": Symptom.error(
            "A's values lie in another order than they were drawn in",
            expected="A as mlx-lm has it: (inputs, rank), row by row",
            fix="transpose A where you reshaped it, or use a save of the trainer itself",
        ),
        "ranks-cut": Symptom.error(
            "A is a part of the one that was trained: directions of the update are missing",
            expected="the rank that was trained",
            fix="use a save of the trainer itself; to lower the rank, cut the update's smallest "
            "singular values",
        ),
        "averaged": Symptom.error(
            "A holds a part of what it grew from, and as much of something else",
            expected="every A close to the numbers that the run's seed drew",
            fix="merge the updates of two runs, B times A, and not their factors",
        ),
    },
    cost=Cost.WEIGHTS,
    limits=Limits(),
)
def adapter_start(adapter: Adapter, config: TrainingConfig, limits: Limits) -> Iterator[Sign]:
    """Find the draw that each A began with, and hold the modules against each other."""
    if not adapter.modules:
        raise NotApplicable("the adapter holds no pair of LoRA factors")
    if config.seed is None:
        raise NotApplicable("the configuration has no seed")
    if config.resume_adapter_file is not None:
        raise NotApplicable("the run went on from another adapter, whose start is not known")
    found = starts(adapter.modules, config.seed, _draws(adapter), _COMPARED)
    shown = _shown(found, limits)
    if not _is_shown(shown, found, limits):
        if (sign := _otherwise_laid(adapter, config.seed, limits)) is None:
            raise Inconclusive("A does not show the numbers that the seed draws")
        yield sign
        return
    yield from _another_run(adapter, config.seed, found, shown, limits)
    yield from list(_twice(adapter, shown)) or _exchanged(shown)
    # Muon's steps have one size in every direction: 0.37 of A was left of a sound run.
    if config.optimizer != "muon" and _decay(config) <= limits.decay:
        yield from _averaged(shown, limits)


def _shown(found: Sequence[Start], limits: Limits) -> list[Start]:
    return [one for one in found if abs(one.likeness) >= max(limits.shown, _chance(one, limits))]


def _is_shown(shown: Sequence[Start], found: Sequence[Start], limits: Limits) -> bool:
    return len(shown) >= max(limits.modules, limits.share * len(found))


def _otherwise_laid(adapter: Adapter, seed: int, limits: Limits) -> Sign | None:
    """That A shows its draw when it is read in another order, or as a part of a larger one."""
    shapes = Counter(one.a.shape for one in adapter.modules)
    shape = shapes.most_common(1)[0][0]
    if adapter.naming == "peft" or len(shape) != 2:
        return None
    rank = shape[1]
    alike = [one for one in adapter.modules if one.a.shape == shape]
    some = alike[:: -(-len(alike) // _TRIED)]
    for layout in (Layout.by_columns(rank), *(Layout.cut(rank, times) for times in _TIMES)):
        found = starts(some, seed, _draws(adapter), _FEW, layout)
        shown = _shown(found, limits)
        if _is_shown(shown, found, limits):
            return _of_layout(layout, rank, seed, found, shown)
    return None


def _of_layout(
    layout: Layout, rank: int, seed: int, found: Sequence[Start], shown: Sequence[Start]
) -> Sign:
    likeness = median(abs(one.likeness) for one in shown)
    measured = {"shown": len(shown), "looked_at": len(found), "seed": seed, "likeness": likeness}
    if layout.larger == 1:
        said = (
            f"A of {len(shown)} of the {len(found)} modules looked at correlates with the numbers "
            f"that seed {seed} drew for it by {likeness:.2f} (median) where it is read column by "
            "column; as it stands it does not show them. Its values lie in the wrong places."
        )
        return Sign("in-other-order", said, measured)
    whole = rank * layout.larger
    said = (
        f"A of {len(shown)} of the {len(found)} modules looked at correlates with the first {rank} "
        f"of {whole} columns that seed {seed} drew for it by {likeness:.2f} (median); a draw "
        f"of {rank} it does not show. It was trained with rank {whole}, and the rest is missing."
    )
    return Sign("ranks-cut", said, {**measured, "rank": rank, "trained_rank": whole})


def _decay(config: TrainingConfig) -> float:
    """How far weight decay alone takes A from its start: 0 for not at all, 1 for all the way."""
    usual = 0.01 if config.optimizer == "adamw" else 0.0
    rate = config.optimizer_config.get("weight_decay", usual)
    if not isinstance(rate, int | float) or not rate:
        return 0.0
    return 1.0 - exp(-abs(rate * (config.learning_rate or 0.0) * (config.iters or 0)))


def _draws(adapter: Adapter) -> int:
    return min(_EACH * len(adapter.modules) + _BEFORE, _MOST)


def _chance(one: Start, limits: Limits) -> float:
    return limits.chance / sqrt(one.values)


def _another_run(
    adapter: Adapter, seed: int, found: Sequence[Start], shown: Sequence[Start], limits: Limits
) -> Iterator[Sign]:
    likeness = median(abs(one.likeness) for one in shown)
    names = {one.module for one in found} - {one.module for one in shown}
    rest = [one for one in adapter.modules if one.name in names]
    # What was drawn after the last that is looked at has no trace either.
    last = max(one.place for one in shown) + _TAKEN * (len(rest) + 1)
    if not rest or likeness < limits.kept or last > _draws(adapter):
        return
    closely = starts(rest, seed, _draws(adapter), _CLOSELY)
    lost = [
        one.module
        for one in closely
        if abs(one.likeness) < _chance(one, limits) and _chance(one, limits) <= limits.trace
    ]
    if lost:
        yield Sign(
            "another-run",
            f"A of {len(lost)} of {len(found)} modules has no trace of the numbers that seed "
            f"{seed} draws for a factor of its size; A of {len(shown)} others correlates with "
            f"theirs by {likeness:.2f} (median).",
            {
                "without_trace": len(lost),
                "modules": len(found),
                "seed": seed,
                "with_trace": len(shown),
                "likeness": likeness,
            },
            where=some_of(lost),
        )


def _twice(adapter: Adapter, shown: Sequence[Start]) -> Iterator[Sign]:
    """Modules whose A began with the same draw. One module under two names has one B as well."""
    b_of = {one.name: one.b for one in adapter.modules}
    places: dict[int, list[str]] = defaultdict(list)
    for one in shown:
        places[one.place].append(one.module)
    same = [
        (place, names)
        for place, names in places.items()
        if len({(b_of[name].load() + 0.0).tobytes() for name in names if len(names) > 1}) > 1
    ]
    if same:
        place, names = same[0]
        count = sum(len(own) for _, own in same)
        yield Sign(
            "exchanged",
            f"A of {count} of {len(shown)} modules began with a draw that another one's began with "
            f"as well, such as {names[0]} and {names[1]} (number {place} after the seed was set), "
            "although their B differ: no draw is made twice.",
            {"alike": count, "modules": len(shown), "place": place},
            where=some_of(names),
        )


def _averaged(shown: Sequence[Start], limits: Limits) -> Iterator[Sign]:
    part = median(abs(one.part) for one in shown)
    likeness = median(abs(one.likeness) for one in shown)
    if part <= limits.part and likeness <= limits.alone:
        yield Sign(
            "averaged",
            f"A holds {part:.2f} times the numbers that the seed drew for it (median of "
            f"{len(shown)} modules), and correlates with them by {likeness:.2f}: training leaves "
            "about 1, whatever it adds, and an average with another run's factors a half.",
            {"part": part, "modules": len(shown), "likeness": likeness},
        )


def _exchanged(shown: Sequence[Start]) -> Iterator[Sign]:
    """Pairs of modules of which one kind goes up, and another down."""
    for pairs in (_of_blocks(shown), _of_layers(shown), *_alike(shown)):
        up = [(one, two) for one, two in pairs if one.place < two.place]
        down = [(one, two) for one, two in pairs if one.place > two.place]
        if up and down:
            (first, second), (third, fourth) = up[0], down[0]
            yield Sign(
                "exchanged",
                f"A of {first.module} began with the draw before that of {second.module} "
                f"(number {first.place} and {second.place} after the seed was set), but A of "
                f"{third.module} with one after that of {fourth.module} ({third.place} and "
                f"{fourth.place}): no trainer goes through a model in such an order.",
                {
                    "places": (first.place, second.place, third.place, fourth.place),
                    "pairs": len(pairs),
                    "against": min(len(up), len(down)),
                },
                where=some_of([one.module for one in (up if len(up) < len(down) else down)[0]]),
            )
            return


def _of_blocks(shown: Sequence[Start]) -> list[tuple[Start, Start]]:
    """Modules of one block that every architecture has in the same order."""
    blocks: dict[str, dict[str, Start]] = defaultdict(dict)
    for one in shown:
        block, _, name = one.module.rpartition(".")
        blocks[block][name] = one
    pairs = []
    for own in blocks.values():
        pairs += [(own[one], own[two]) for one, two in _IN_ORDER if one in own and two in own]
        if all(one in own for one in _AROUND):
            first, second, between = (own[one] for one in _AROUND)
            if min(first.place, second.place) < between.place < max(first.place, second.place):
                pairs.append((first, second))
    return pairs


def _of_layers(shown: Sequence[Start]) -> list[tuple[Start, Start]]:
    """The same module of layers that follow one another."""
    kinds: dict[str, list[tuple[int, Start]]] = defaultdict(list)
    for one in shown:
        if layer := _LAYER.search(one.module):
            kinds[_LAYER.sub("..", one.module, 1)].append((int(layer[1]), one))
    return [
        (one, two)
        for own in kinds.values()
        for (_, one), (_, two) in pairwise(sorted(own, key=lambda pair: pair[0]))
    ]


def _alike(shown: Sequence[Start]) -> Iterator[list[tuple[Start, Start]]]:
    """Two modules of a layer, in all layers, for every two."""
    layers: dict[int, dict[str, Start]] = defaultdict(dict)
    for one in shown:
        if layer := _LAYER.search(one.module):
            layers[int(layer[1])][_LAYER.sub("..", one.module, 1)] = one
    kinds = sorted({kind for own in layers.values() for kind in own})
    for first, second in combinations(kinds, 2):
        yield [
            (own[first], own[second])
            for _, own in sorted(layers.items())
            if first in own and second in own
        ]
