"""Tables of what is not ordinary in a column of a log: a series, a pattern in it, what it means.

A table lies beside the check that asks it; `checks/series_facts.toml` says what an entry may hold.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from mlxdoctor.engines.series import describe
from mlxdoctor.evidence.training_log import Series
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought
from mlxdoctor.template import names_in

#: First reports in which a sound run's gradient may be of any size.
SETTLING = 2

Bounds = Mapping[str, float]
Figures = Mapping[str, Measurement]


@dataclass(frozen=True)
class Pattern:
    """One entry of a table."""

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

    @property
    def is_general(self) -> bool:
        """Whether it is about every column that nothing else looks at."""
        return self.series == ("*",)


@dataclass(frozen=True)
class SeriesTable:
    """The entries of a table, and what its columns measure, in the words of a sentence."""

    patterns: tuple[Pattern, ...]
    words: Mapping[str, str]

    @classmethod
    def read(cls, name: str) -> SeriesTable:
        """Read a table that lies beside the checks.

        Args:
            name: of the file, without its folder: "series_facts.toml".
        """
        text = files("mlxdoctor.checks").joinpath(name).read_text("utf-8")
        document = tomllib.loads(text)
        words = document.pop("words", {})
        return cls(tuple(_pattern(code, entry) for code, entry in document.items()), words)

    @property
    def symptoms(self) -> Mapping[str, Symptom]:
        """Code -> what it stands for, as a check declares it."""
        return {pattern.code: pattern.symptom for pattern in self.patterns}

    def signs(
        self, columns: Mapping[str, Series], unit: str, looked_at: frozenset[str] = frozenset()
    ) -> Iterator[Sign | Unsought]:
        """Hold columns against the table.

        Args:
            columns: of a log, by name.
            unit: what the log counts: "iteration".
            looked_at: columns that the general patterns leave to other checks.
        """
        described = {name: figures(series) for name, series in columns.items() if len(series)}
        named = {name for pattern in self.patterns for name in pattern.series} | looked_at
        for pattern in self.patterns:
            names = [name for name in pattern.series if name in described]
            if pattern.is_general:
                names = sorted(described.keys() - named)
            elif not names:
                yield Unsought((pattern.code,), f"the log has no {self._words(pattern.series[0])}")
            signs = (self._sign(pattern, name, described, unit) for name in names)
            if (sign := next(filter(None, signs), None)) is not None:
                yield sign

    def _sign(
        self, pattern: Pattern, name: str, described: Mapping[str, Figures], unit: str
    ) -> Sign | None:
        own = described[name]
        if not any(_reach(own, least) for least in pattern.least):
            return None
        if not _reach(own, pattern.most, above=False):
            return None
        if not all(_reach(described.get(other, {}), to) for other, to in pattern.given.items()):
            return None
        if any(_reach(described.get(other, {}), to) for other, to in pattern.unless.items()):
            return None
        severity = pattern.symptom.severity
        for level, bounds in ((Severity.WARNING, pattern.warning), (Severity.ERROR, pattern.error)):
            if bounds and _reach(own, bounds):
                severity = level
        values = {
            f"{other}_{figure}": value
            for other in pattern.given
            for figure, value in described[other].items()
        }
        values |= {**own, "series": self._words(name), "unit": unit}
        onset = own.get(pattern.onset)
        return Sign(
            pattern.code,
            {key: values[key] for key in sorted(names_in(pattern.symptom.says)) if key in values},
            where=name if pattern.is_general else None,
            onset=int(onset) if isinstance(onset, int) else None,
            severity=severity,
        )

    def _words(self, name: str) -> str:
        return str(self.words.get(name, name.replace("_", " ")))


def _pattern(code: str, entry: Mapping[str, Any]) -> Pattern:
    symptom = Symptom(
        entry["meaning"],
        Severity(entry["severity"]),
        entry["expected"],
        entry.get("fix", ""),
        entry["says"],
    )
    least = entry["least"]
    return Pattern(
        code,
        tuple(entry["series"]),
        symptom,
        least=tuple(least) if isinstance(least, list) else (least,),
        most=entry.get("most", {}),
        given=entry.get("given", {}),
        unless=entry.get("unless", {}),
        warning=entry.get("warning", {}),
        error=entry.get("error", {}),
        onset=entry.get("onset", ""),
    )


def _reach(own: Figures, bounds: Bounds, *, above: bool = True) -> bool:
    """Whether all these figures are there, and at least, or at most, what the bounds say."""
    for name, bound in bounds.items():
        value = own.get(name)
        if not isinstance(value, int | float) or not (value >= bound if above else value <= bound):
            return False
    return True


def figures(series: Series) -> dict[str, Measurement]:
    """All figures of a series by name, those of its parts with the part's name before them."""
    facts = describe(series.iterations, series.values)
    named = dict(_flat(facts))
    named["first_iteration"] = int(series.iterations[0])
    named["last_iteration"] = int(series.iterations[-1])
    named["is_single"] = facts.count == 1
    named["end_share"] = facts.zeros.at_end / facts.count
    values = series.finite.values
    if not len(values):
        return named
    half = len(values) // 2
    if half and values[half] > 0:
        named["growth"] = float(values[-1] / values[half])
    change, noise = facts.end - facts.start, max(facts.noise, 1e-9)
    named |= {"gained": change, "gained_noises": change / noise}
    named |= {"dropped": -change, "dropped_noises": -change / noise}
    if facts.start > 0.0:
        named["grown"] = change / facts.start
    fall, rise = facts.start - facts.minimum, facts.end - facts.minimum
    if fall > 0.0:
        named |= {"fall_to_minimum": fall, "rise": rise, "regained": rise / fall}
        named["rise_noises"] = rise / noise
    if facts.last > 0:
        # How near the last value is to the lowest.
        named["held"] = facts.lowest / facts.last
    # A sound run's gradients begin high.
    if len(values) > SETTLING and facts.median > 0:
        named["late_peak"] = float(values[SETTLING:].max() / facts.median)
    if len(above := values[values > 0]):
        # Printed with four decimals, a rate that decays is 0.0001 and then 0.
        is_coarse = above.max() < 1e-3 and np.allclose(above, np.round(above, 4), rtol=1e-9)
        named["abrupt"] = 0.0 if is_coarse else float(above[-1] / above.max())
    return named


def _flat(part: Any, prefix: str = "") -> Iterator[tuple[str, Measurement]]:
    names = [field.name for field in fields(part)]
    names += [name for name, of in vars(type(part)).items() if isinstance(of, property)]
    for name in names:
        value = getattr(part, name)
        if is_dataclass(value):
            yield from _flat(value, f"{prefix}{name}_")
        elif value is not None:
            yield prefix + name, value
