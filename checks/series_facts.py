"""What is not ordinary in any column of the log.

What it finds. Whatever a log reports, the same few things can be wrong with it: values that are no
numbers, values of exactly zero, the same value in every report, a lone spike, a jump for good, a
peak that grows to the end. Gradient norms that are zero, not finite or thousands of times the
usual; validations that took no time; a speed that fell to a third; memory that grows; a learning
rate of 0; the same number of tokens in every report.

Why it matters. These are facts, and they need few reports: a gradient of exactly zero trains
nothing while the loss still varies with the batches, and a run that swaps goes on many times
slower.

How it is measured. Every column is described in the same way (share and place of what is not
finite or zero, levels, the largest jump and spike); a table says which pattern in which column is
no ordinary one. Some columns are computed from others: tokens an iteration, memory as a share of
the machine's, arithmetic from tokens a second and the model's parameters.

When it is wrong. Half-precision training with a loss scaler overflows now and then by design. A
trainer that clips survives a lone huge norm. Another job on the machine slows a run down too. Rows
that are packed or padded to one width have the same number of tokens.

What to do. Look at what the finding names: the batch, the gradient, the memory, the schedule.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.engines.series import describe
from mlxdoctor.evidence.training_log import Series, TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought
from mlxdoctor.template import names_in

#: What other checks say of a column, so that a general remark would say it again.
_LOOKED_AT = frozenset({"train_loss", "val_loss", "grad_norm"})

#: First reports in which a sound run's gradient may be of any size.
SETTLING = 2

Bounds = Mapping[str, float]
Figures = Mapping[str, Measurement]


@dataclass(frozen=True)
class Fact:
    """One entry of the table; `series_facts.toml` says what its parts mean."""

    code: str
    series: tuple[str, ...]
    symptom: Symptom
    least: tuple[Bounds, ...]
    most: Bounds
    given: Mapping[str, Bounds]
    unless: Mapping[str, Bounds]
    warning: Bounds
    error: Bounds
    onset: str


@cache
def _document() -> Mapping[str, Any]:
    return tomllib.loads(files(__package__).joinpath("series_facts.toml").read_text("utf-8"))


@cache
def table() -> tuple[Fact, ...]:
    """The entries of `series_facts.toml`."""
    return tuple(
        Fact(
            code,
            tuple(entry["series"]),
            Symptom(
                entry["meaning"],
                Severity(entry["severity"]),
                entry["expected"],
                entry.get("fix", ""),
                entry["says"],
            ),
            least=tuple(least if isinstance(least := entry["least"], list) else [least]),
            most=entry.get("most", {}),
            given=entry.get("given", {}),
            unless=entry.get("unless", {}),
            warning=entry.get("warning", {}),
            error=entry.get("error", {}),
            onset=entry.get("onset", ""),
        )
        for code, entry in _document().items()
        if code != "words"
    )


@check(codes={fact.code: fact.symptom for fact in table()}, rerun_symptom=True)
def series_facts(log: TrainingLog) -> Iterator[Sign | Unsought]:
    """Describe every column of the log's main segment, and hold it against the table."""
    columns = {**log.main.series, **_computed(log)}
    if _is_rounded(columns, log):
        del columns["val_seconds"]
    if not columns:
        raise Inconclusive("the log holds no report")
    figures = {name: _figures(series) for name, series in columns.items() if len(series)}
    named = {name for fact in table() for name in fact.series} | _LOOKED_AT
    for fact in table():
        looked_at = [name for name in fact.series if name in figures]
        if fact.series == ("*",):
            looked_at = sorted(figures.keys() - named)
        for name in looked_at:
            sign = _sign(fact, name, figures, log.main.unit)
            if sign is not None:
                yield sign
                break
        if not looked_at and fact.series != ("*",):
            yield Unsought((fact.code,), f"the log has no {_words(fact.series[0])}")


def _sign(fact: Fact, name: str, figures: Mapping[str, Figures], unit: str) -> Sign | None:
    mine = figures[name]
    is_met = any(_reach(mine, least) for least in fact.least) and _reach(
        mine, fact.most, above=False
    )
    if not is_met or not all(
        _reach(figures.get(other, {}), at) for other, at in fact.given.items()
    ):
        return None
    if any(_reach(figures.get(other, {}), at) for other, at in fact.unless.items()):
        return None
    severity = fact.symptom.severity
    for level, bounds in ((Severity.WARNING, fact.warning), (Severity.ERROR, fact.error)):
        if bounds and _reach(mine, bounds):
            severity = level
    values = {**mine, "series": _words(name), "unit": unit}
    onset = mine.get(fact.onset)
    return Sign(
        fact.code,
        {key: values[key] for key in sorted(names_in(fact.symptom.says)) if key in values},
        where=name if fact.series == ("*",) else None,
        onset=int(onset) if isinstance(onset, int) else None,
        severity=severity,
    )


def _reach(figures: Figures, bounds: Bounds, *, above: bool = True) -> bool:
    """Whether all these figures are there, and at least, or at most, what the bounds say."""
    for name, bound in bounds.items():
        value = figures.get(name)
        if not isinstance(value, int | float) or not (value >= bound if above else value <= bound):
            return False
    return True


def _figures(series: Series) -> dict[str, Measurement]:
    """All figures of a series by name, those of its parts with the part's name before them."""
    facts = describe(series.iterations, series.values)
    figures = dict(_flat(facts))
    figures["last_iteration"] = int(series.iterations[-1])
    figures["is_single"] = facts.count == 1
    figures["end_share"] = facts.zeros.at_end / facts.count
    values = series.finite.values
    half, median = len(values) // 2, facts.median
    if half and values[half] > 0:
        figures["growth"] = float(values[-1] / values[half])
    # A sound run's gradients begin high.
    if len(values) > SETTLING and median > 0:
        figures["late_peak"] = float(values[SETTLING:].max() / median)
    if len(above := values[values > 0]):
        # Printed with four decimals, a rate that decays is 0.0001 and then 0.
        is_coarse = above.max() < 1e-3 and np.allclose(above, np.round(above, 4), rtol=1e-9)
        figures["abrupt"] = 0.0 if is_coarse else float(above[-1] / above.max())
    return figures


def _flat(part: Any, prefix: str = "") -> Iterator[tuple[str, Measurement]]:
    names = [field.name for field in fields(part)]
    names += [name for name, of in vars(type(part)).items() if isinstance(of, property)]
    for name in names:
        value = getattr(part, name)
        if is_dataclass(value):
            yield from _flat(value, f"{prefix}{name}_")
        elif value is not None:
            yield prefix + name, value


def _words(name: str) -> str:
    return str(_document()["words"].get(name, name.replace("_", " ")))


def _is_rounded(columns: Mapping[str, Series], log: TrainingLog) -> bool:
    """Whether the times of validations may be printed in whole seconds, so that 0 says nothing."""
    seconds, speed = columns.get("val_seconds"), columns.get("iterations_per_second")
    if seconds is None or (seconds.values % 1.0 > 0).any():
        return False
    # mlx-lm's own lines have decimals, whatever they say.
    if log.main.axis == "iteration" and "named values" in log.format:
        return False
    # A batch forward takes a third of an update.
    return speed is None or not len(speed) or float(np.median(speed.values)) > 0.2


def _computed(log: TrainingLog) -> dict[str, Series]:
    """Columns that follow from those of the log."""
    segment = log.main
    found: dict[str, Series] = {}
    tokens = segment.finite("trained_tokens")
    steps = np.diff(tokens.iterations)
    # The coloured table abbreviates (133.8k), and hides how counts differ.
    if segment.axis == "iteration" and (steps > 0).all() and "table" not in log.format:
        found["tokens_per_iteration"] = Series(
            tokens.iterations[1:], np.diff(tokens.values) / steps
        )
    skipped = segment.get("skipped") or segment.get("skipped_batch_loss")
    if skipped is not None:
        counts = skipped.finite.values
        # One trainer prints a line for each batch; others count up, or count those of each report.
        if "skipped" not in segment.series:
            counts = np.arange(1.0, len(counts) + 1)
        elif (np.diff(counts) < 0).any():
            counts = np.cumsum(counts)
        last = max(int(series.iterations[-1]) for series in segment.series.values())
        found["skipped_share"] = Series(skipped.finite.iterations, counts / max(last, 1))
    peak, machine = segment.get("peak_memory_gb"), log.header.get("machine_memory_gb")
    if peak is not None and machine is not None and float(machine) > 0:
        found["memory_share"] = Series(peak.iterations, peak.values / float(machine))
    speed, parameters = segment.get("tokens_per_second"), log.parameters_millions
    if speed is not None and parameters is not None:
        # Forward, and back through frozen weights: two operations a parameter each.
        found["gflops"] = Series(speed.iterations, 4e-3 * parameters * speed.values)
    seconds, rate = segment.get("val_seconds"), segment.finite("iterations_per_second").values
    if seconds is not None and len(rate):
        found["validation_updates"] = Series(seconds.iterations, seconds.values * np.median(rate))
    return found
