"""The numbers behind the report's figures, taken from the evidence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.row_encoder import Role
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import Segment, TrainingLog
from mlxdoctor.finding import Outcome
from mlxdoctor.measure.generations import Generations
from mlxdoctor.measure.losses.trend import Floats
from mlxdoctor.measure.weights.drift import module_drifts
from mlxdoctor.run import Run

#: Points a curve is drawn with at most; more would be closer than a pixel.
MAX_POINTS = 1_000
#: Tokens in the histogram of outputs.
MAX_TOKENS = 12
#: Fewer checkpoints than this show no course.
MIN_CHECKPOINTS = 3
#: Tokens in the label strip.
MAX_LABELS = 120

#: Checks whose onsets the loss figure marks.
_LOSS_CHECKS = frozenset({"loss-trend", "loss-finite", "loss-stability"})
_REGIONS = {
    Role.PROMPT: "prompt",
    Role.ANSWER: "answer",
    Role.END: "end",
    Role.OTHER: "other",
}


def figure_data(run: Run, outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """The data of every figure that the run has evidence for; None for the others."""
    tokenizer = run.get(Tokenizer)
    return {
        "loss": _loss(run, outcomes),
        "drift": _drift(run.get(Adapter), run.get(TrainingConfig), run.get(BaseModel)),
        "checkpoints": _checkpoints(run),
        "tokens": _tokens(run.get(Generations), tokenizer),
        "labels": _labels(run.get(SupervisedRows), tokenizer),
    }


def _loss(run: Run, outcomes: Iterable[Outcome]) -> dict[str, Any] | None:
    log = run.get(TrainingLog)
    if log is None:
        return None
    segment = log.main
    train, val = _curve(segment, "train_loss"), _curve(segment, "val_loss")
    if train is None and val is None:
        return None
    onsets = [
        finding.onset
        for outcome in outcomes
        if outcome.check in _LOSS_CHECKS
        for finding in outcome.findings
        if finding.onset is not None and finding.severity.rank > 0
    ]
    return {
        "train": train,
        "val": val,
        "onset": min(onsets, default=None),
        "floors": _floors(run, segment),
        "axis": segment.axis,
    }


def _floors(run: Run, segment: Segment) -> list[dict[str, Any]]:
    floors = []
    start = segment.base_val_loss
    if start is not None and math.isfinite(start):
        floors.append({"label": "the base model's own loss", "value": start})
    base, rows = run.get(BaseModel), run.get(SupervisedRows)
    if base is not None and base.vocab_size:
        label = f"uniform guess, ln({base.vocab_size:,})"
        floors.append({"label": label, "value": math.log(base.vocab_size)})
    if rows is not None and math.isfinite(entropy := rows.unigram_entropy()):
        floors.append({"label": "best constant guess", "value": entropy})
    return floors


def _curve(segment: Segment, name: str) -> dict[str, Any] | None:
    series = segment.get(name)
    if series is None:
        return None
    kept = _thinned(series.values)
    return {
        "iterations": [int(one) for one in series.iterations[kept]],
        "values": [float(one) for one in series.values[kept]],
    }


def _thinned(values: Floats) -> NDArray[np.intp]:
    """Indices of the points to draw: all, or the lowest and highest of each stretch.

    A stretch with a value that is not finite keeps the first of those too.
    """
    if len(values) <= MAX_POINTS:
        return np.arange(len(values))
    kept: set[int] = {0, len(values) - 1}
    for stretch in np.array_split(np.arange(len(values)), MAX_POINTS // 2):
        finite = np.isfinite(values[stretch])
        if finite.any():
            known = stretch[finite]
            kept |= {int(known[values[known].argmin()]), int(known[values[known].argmax()])}
        if not finite.all():
            kept.add(int(stretch[~finite][0]))
    return np.array(sorted(kept))


def _drift(
    adapter: Adapter | None, config: TrainingConfig | None, base: BaseModel | None
) -> dict[str, Any] | None:
    if adapter is None or not adapter.modules:
        return None
    drifts = module_drifts(adapter, config, base)
    if all(one.relative is not None for one in drifts):
        quantity, sizes = "‖ΔW‖ / ‖W‖", [one.relative or 0.0 for one in drifts]
    elif all(math.isfinite(one.scale) for one in drifts):
        quantity, sizes = "‖ΔW‖", [one.norm for one in drifts]
    else:
        quantity, sizes = "‖A·B‖, scale not known", [one.statistics.frobenius for one in drifts]
    norms: dict[tuple[str, str], float] = {}
    for one, size in zip(drifts, sizes, strict=True):
        row = "other" if one.module.layer is None else f"layer {one.module.layer}"
        norms[row, one.module.projection] = size
    rows = list(dict.fromkeys(row for row, _ in norms))
    columns = list(dict.fromkeys(column for _, column in norms))
    values = [[norms.get((row, column), math.nan) for column in columns] for row in rows]
    return {"rows": rows, "columns": columns, "values": values, "quantity": quantity}


def _checkpoints(run: Run) -> dict[str, Any] | None:
    history = run.get(CheckpointHistory)
    if history is None or len(history.checkpoints) < MIN_CHECKPOINTS:
        return None
    # Few runs have so many: the rest need not wait for it.
    from mlxdoctor.bisect.heat_map import heat_map
    from mlxdoctor.judge.saves import SaveLimits, Standing, examine

    followed, _, verdicts = examine(
        history,
        run.get(TrainingConfig),
        run.get(BaseModel),
        run.get(TrainingLog),
        limits=SaveLimits(),
    )
    return heat_map(followed, [one.standing is not Standing.GOOD for one in verdicts])


def _tokens(generations: Generations | None, tokenizer: Tokenizer | None) -> dict[str, Any] | None:
    if generations is None or not generations.items:
        return None
    items = generations.items
    tuned = _counted([(one.tuned_tokens, one.tuned) for one in items], tokenizer)
    base = _counted([(one.base_tokens, one.base or "") for one in items], tokenizer)
    if not tuned:
        return None
    shares, of_base = _shares(tuned), _shares(base)
    names = sorted(shares, key=lambda name: (-shares[name], name))[:MAX_TOKENS]
    return {
        "tokens": names,
        "base": [of_base.get(name, 0.0) for name in names] if generations.has_base else None,
        "tuned": [shares[name] for name in names],
        "prompts": len(items),
    }


def _counted(
    answers: Sequence[tuple[tuple[int, ...] | None, str]], tokenizer: Tokenizer | None
) -> Counter[str]:
    counts: Counter[str] = Counter()
    for tokens, text in answers:
        if tokens is not None and tokenizer is not None:
            counts.update(tokenizer.decode([token]) for token in tokens)
        else:
            counts.update(text.split())
    return counts


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()} if total else {}


def _labels(rows: SupervisedRows | None, tokenizer: Tokenizer | None) -> dict[str, Any] | None:
    if rows is None or tokenizer is None or not rows.rows:
        return None
    row = rows.rows[0]
    first = max(row.offset, 1)
    shown = min(row.length, MAX_LABELS)
    labels = [
        {
            "text": tokenizer.decode([int(row.tokens[position])]),
            "region": _REGIONS[Role(int(row.roles[position]))],
            "target": position >= first,
        }
        for position in range(shown)
    ]
    if row.padded and shown == row.length:
        text = tokenizer.decode([rows.pad_id])
        labels.append({"text": text, "region": "pad", "target": True})
    return {"split": rows.split, "row": row.index, "tokens": labels}
