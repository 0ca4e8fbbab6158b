"""Tables of what is not ordinary in a column of a log: a series, a pattern in it, what it means.

A table lies beside the check that asks it; `checks/series_facts.toml` says what an entry may hold.
The watch holds each new report against the same entries.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.engines.series import SeriesFacts
from mlxdoctor.evidence.training_log import Series
from mlxdoctor.finding import ADVISED, Measurement, Severity, Sign, Symptom, Unsought
from mlxdoctor.tables import record, shipped
from mlxdoctor.template import names_in

#: First reports in which a sound run's gradient may be of any size.
SETTLING = 2
#: Reports before and after a leap that are held against each other.
STAYS = 3
#: Keys of an entry that are of its symptom, or for people.
_NO_BOUNDS = {"meaning", "severity", "says", "expected", "fix", "source", "false_alarms"}

Bounds = Mapping[str, float]
Figures = Mapping[str, Measurement]


@dataclass(frozen=True)
class AlarmRule:
    """When a sign is an alarm in a training that still runs.

    Attributes:
        newest: what the newest value must be for the column to be looked at: "not-finite", "zero",
            "same" as the one before, or "high" or "low" among the last.
        onset: the figure that says at which iteration it began.
    """

    kind: str
    newest: str
    least: tuple[Bounds, ...]
    onset: str


@dataclass(frozen=True)
class Pattern:
    """One entry of a table; `checks/series_facts.toml` explains the attributes."""

    code: str
    series: tuple[str, ...]
    symptom: Symptom
    least: tuple[Bounds, ...]
    most: Bounds = field(default_factory=dict)
    given: Mapping[str, Bounds] = field(default_factory=dict)
    unless: Mapping[str, Iterable[Bounds]] = field(default_factory=dict)
    warning: tuple[Bounds, ...] = ()
    error: tuple[Bounds, ...] = ()
    onset: str = ""
    alarm: AlarmRule | None = None

    @property
    def is_general(self) -> bool:
        """Whether it is about every column that nothing else looks at."""
        return self.series == ("*",)

    @property
    def shown(self) -> frozenset[str]:
        """The names of the values that its sentences show."""
        symptom = self.symptom
        return names_in(symptom.says) | names_in(symptom.expected) | names_in(symptom.fix)


class Columns:
    """Columns of a log, each described when its figures are first asked for.

    Args:
        more: figures of a column beside those of its values.
    """

    def __init__(self, series: Mapping[str, Series], more: Callable[[str], Figures]) -> None:
        self._series = {name: column for name, column in series.items() if len(column)}
        self._more = more
        self._figures: dict[str, Figures] = {}

    @property
    def names(self) -> frozenset[str]:
        """The columns that have a value."""
        return frozenset(self._series)

    def figures(self, name: str) -> Figures:
        """The figures of a column; none where the log lacks it."""
        if name not in self._series:
            return {}
        if name not in self._figures:
            # Quotients and differences of values near the largest number there is may overflow.
            with np.errstate(over="ignore", invalid="ignore"):
                self._figures[name] = {**figures(self._series[name]), **self._more(name)}
        return self._figures[name]


@dataclass(frozen=True)
class SeriesTable:
    """The entries of a table.

    Attributes:
        symptoms: code -> what it stands for; of all entries, not of those with a pattern alone.
        words: what a column measures, in the words of a sentence.
    """

    patterns: tuple[Pattern, ...]
    symptoms: Mapping[str, Symptom]
    words: Mapping[str, str]

    @classmethod
    def read(cls, name: str) -> Self:
        """Read a table that lies beside the checks: "series_facts.toml"."""
        document = dict(shipped("mlxdoctor.checks", name))
        words = document.pop("words", {})
        symptoms: dict[str, Symptom] = {}
        patterns = []
        for code, entry in document.items():
            texts = {key: entry.get(key, "") for key in ("expected", "fix", "says")}
            symptoms[code] = Symptom(entry["meaning"], Severity(entry["severity"]), **texts)
            if "series" in entry:
                patterns.append(_pattern(name, code, entry, symptoms[code]))
        return cls(tuple(patterns), symptoms, words)

    def signs(
        self, columns: Columns, unit: str, looked_at: frozenset[str] = frozenset()
    ) -> Iterator[Sign | Unsought]:
        """Hold columns against the table.

        Args:
            unit: what the log counts: "iteration".
            looked_at: columns that the general patterns leave to other checks.
        """
        named = {name for pattern in self.patterns for name in pattern.series} | looked_at
        for pattern in self.patterns:
            names = [name for name in pattern.series if name in columns.names]
            if pattern.is_general:
                names = sorted(columns.names - named)
            elif not names:
                why = f"the log has no {self._words(pattern.series[0])}"
                yield Unsought((pattern.code,), why)
            signs = (self.sign(pattern, name, columns, unit) for name in names)
            if (sign := next(filter(None, signs), None)) is not None:
                yield sign

    def sign(self, pattern: Pattern, name: str, columns: Columns, unit: str) -> Sign | None:
        """The sign of one pattern in one column; None where it does not hold."""
        own = columns.figures(name)
        onset = own.get(pattern.onset)
        if not reaches_any(own, pattern.least) or not _reaches(own, pattern.most, above=False):
            return None
        if not all(_reaches(columns.figures(other), to) for other, to in pattern.given.items()):
            return None
        for other, bounds in pattern.unless.items():
            excuse = columns.figures(other)
            # What was last reported before it began excuses nothing.
            since = {"last_iteration": onset} if isinstance(onset, int) else {}
            if excuse and reaches_any(excuse, ({**since, **each} for each in bounds)):
                return None
        severity = pattern.symptom.severity
        severity = Severity.WARNING if reaches_any(own, pattern.warning) else severity
        severity = Severity.ERROR if reaches_any(own, pattern.error) else severity
        values = {**own, "series": self._words(name), "unit": unit, "onset": onset}
        shown = pattern.shown | {figure for figure in own if figure.startswith(ADVISED)}
        for other in columns.names - {name}:
            if any(figure.startswith(f"{other}_") for figure in shown - values.keys()):
                theirs = columns.figures(other).items()
                values |= {f"{other}_{figure}": value for figure, value in theirs}
        return Sign(
            pattern.code,
            {key: values[key] for key in sorted(shown - {"onset"}) if key in values},
            where=name if pattern.is_general else None,
            onset=int(onset) if isinstance(onset, int) else None,
            severity=severity,
        )

    def _words(self, name: str) -> str:
        return str(self.words.get(name, name.replace("_", " ")))


def _pattern(file: str, code: str, entry: Mapping[str, Any], symptom: Symptom) -> Pattern:
    table = {key: value for key, value in entry.items() if key not in _NO_BOUNDS}
    if "alarm" in table:
        stated = {"onset": entry.get("onset", ""), **table["alarm"]}
        table["alarm"] = record(AlarmRule, file, code, stated)
    return record(Pattern, file, code, table, code=code, symptom=symptom)


def reaches_any(own: Figures, alternatives: Iterable[Bounds]) -> bool:
    """Whether the figures are at least what one of several sets of bounds says."""
    return any(_reaches(own, bounds) for bounds in alternatives)


def _reaches(own: Figures, bounds: Bounds, *, above: bool = True) -> bool:
    """Whether all these figures are there, and at least, or at most, what the bounds say."""
    return all(
        isinstance(value := own.get(name), int | float)
        and (value >= bound if above else value <= bound)
        for name, bound in bounds.items()
    )


def figures(series: Series) -> dict[str, Measurement]:
    """All figures of a series by name, those of its parts with the part's name before them."""
    facts = series.facts
    named = dict(_flat(facts))
    first, last = int(series.iterations[0]), int(series.iterations[-1])
    named |= {"first_iteration": first, "last_iteration": last, "span": last - first}
    named["is_single"] = facts.count == 1
    named["end_share"] = facts.zeros.at_end / facts.count
    named["ending"] = facts.non_finite.at_end or None
    values = series.finite.values
    if facts.decimals is None:
        return named
    if facts.median > 0.0:
        # How large a part of a value its last printed digit is.
        named["coarse"] = 10.0**-facts.decimals / facts.median
    if facts.is_constant:
        named["constant"] = facts.first
    named |= _recurring(values, facts) | _leap(values, series.finite.iterations, facts.end)
    if facts.repeats is not None:
        named["repeats_from"] = int(series.iterations[facts.repeats.period])
    if facts.jump is not None:
        named["jump_reports"] = int((series.iterations >= facts.jump.iteration).sum())
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
    # Where the highest value stands, from 0 to 1.
    named["peak_place"] = int(np.argmax(values)) / max(len(values) - 1, 1)
    if facts.first > 0.0:
        named["over_first"] = facts.highest / facts.first
        named["kept_of_first"] = facts.last / facts.first
    # A sound run's gradients begin high.
    if len(values) > SETTLING and facts.median > 0:
        named["late_peak"] = float(values[SETTLING:].max() / facts.median)
    if len(above := values[values > 0]):
        # Printed with four decimals, a rate that decays is 0.0001 and then 0. One value alone may
        # be printed as 1e-06.
        is_coarse = any(
            above.max() < 10.0 ** (1 - digits)
            and np.allclose(above, np.round(above, digits), rtol=1e-9)
            for digits in ((4, 6, 8) if np.ptp(above) > 0.0 else (4,))
        )
        named |= {"is_coarse": is_coarse, "abrupt": float(above[-1] / above.max())}
    return named


def _recurring(values: NDArray[np.float64], facts: SeriesFacts) -> dict[str, Measurement]:
    """How many values are different, and how much more often two are alike than by chance.

    Two values that differ by chance agree with a probability of about
    resolution / (2 sqrt(pi) noise), as in `engines.series.repeats`.
    """
    # A loss near zero is printed as 0 again and again.
    values = values[values != 0.0] if np.any(values) else values
    # `np.unique` loads `numpy.ma`.
    ends = np.flatnonzero(np.append(np.diff(np.sort(values)) != 0.0, True))
    counts = np.diff(ends, prepend=-1)
    named: dict[str, Measurement] = {"distinct": len(counts)}
    if len(values) > 1 and facts.noise > 0.0:
        alike = float((counts * (counts - 1)).sum()) / (len(values) * (len(values) - 1))
        top = float(np.median(np.abs(values)))
        # The inverse of the probability, which may be too small for a number.
        once_in = 2.0 * math.sqrt(math.pi) * facts.noise * 10.0 ** (facts.decimals or 0)
        # A loss in bfloat16 has 128 values an octave, however many digits are printed.
        with np.errstate(over="ignore"):
            short = values.astype(np.float32)
        if (short == values).all() and not (short.view(np.uint32) & 0xFFFF).any():
            once_in = min(once_in, 2.0 * math.sqrt(math.pi) * facts.noise * 128.0 / top)
        named |= {"recurring": 1.0 - len(counts) / len(values), "recurs_times": alike * once_in}
    return named


def _leap(values: NDArray[np.float64], at: NDArray[np.int64], end: float) -> dict[str, Measurement]:
    """Where values go up at once, and how far above those before the last ones are."""
    if len(values) <= STAYS:
        return {}
    windows = np.lib.stride_tricks.sliding_window_view
    after = windows(values, STAYS).min(axis=1)[1:]
    before = windows(np.pad(values, (STAYS - 1, 0), mode="edge"), STAYS).max(axis=1)[: len(after)]
    place = int(np.argmax(after - before))
    return {
        "leap": float(after[place] - before[place]),
        "leap_times": float(after[place] / before[place]) if before[place] > 0.0 else None,
        "leap_left": float(end - before[place]),
        "leap_from": float(values[place]),
        "leap_to": float(values[place + 1]),
        "leap_at": int(at[place + 1]),
    }


def _flat(part: Any, prefix: str = "") -> Iterator[tuple[str, Measurement]]:
    names = [field.name for field in fields(part)]
    names += [name for name, of in vars(type(part)).items() if isinstance(of, property)]
    for name in names:
        value = getattr(part, name)
        if is_dataclass(value):
            yield from _flat(value, f"{prefix}{name}_")
        elif value is not None:
            yield prefix + name, value
