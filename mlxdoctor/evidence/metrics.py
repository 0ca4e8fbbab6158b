"""Figures that the run's owner reports for the tuned model, read from evaluation files."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mlxdoctor.evidence.json_text import as_float, json_values
from mlxdoctor.evidence.kind import NoSuchThing, RunView
from mlxdoctor.evidence.source import Sniffed, Source, read_text
from mlxdoctor.safety.errors import InputError

_SCORES = r"accuracy|acc|score|f1|exact_match|em|bleu|rouge\w?|win_rate|pass_?at_?\d+|pass@\d+"
_WHICH = r"(?:_(?:before|after|base|tuned|finetuned|fine_tuned))?"
_FIGURE_KEYS = re.compile(rf"(?:^|_)(?:perplexity|ppl|loss|nll|{_SCORES}){_WHICH}$")
#: `exact match 3/24` as scripts print it.
_COUNTED = re.compile(
    r"\b(exact[ _]match|accuracy)\b\W{0,6}(\d{1,6})\s?(?:/|of|out of)\s?([1-9]\d{0,5})\b",
    re.IGNORECASE,
)
#: Files of what a script printed.
PRINTED = frozenset((".txt", ".out", ".log"))
#: Shares of answers that are right.
_OF_RIGHT = frozenset({"accuracy", "acc", "exact_match", "exact match", "em", "correct"})
#: Words in a key or beside it that name the split.
SPLITS = {"train": "train", "training": "train", "test": "test"} | dict.fromkeys(
    ("valid", "validation", "val", "dev", "eval"), "valid"
)
#: Words in a key that say the figure is the base model's, by intention.
BASE_WORDS = frozenset({"base", "baseline", "before", "untuned", "pretrained"})
#: Words in a key that say the figure is the tuned model's.
TUNED_WORDS = frozenset({"after", "tuned", "fine", "finetuned", "lora", "adapter", "trained"})
#: Words in a key's last part that say that more is better.
SCORE_WORDS = frozenset({"accuracy", "acc", "score", "f1", "match", "em", "bleu", "rouge", "rate"})


@dataclass(frozen=True)
class ReportedMetric:
    """One figure.

    Attributes:
        name: its key, with the keys above it: `valid.perplexity`.
        value: the figure; losses in nats.
        count: of how many answers it is the share that is right; None where that is not said.
        split: "train", "valid", "test", or None where the file does not say.
    """

    name: str
    value: float
    split: str | None
    source: Source
    count: int | None = None

    @property
    def loss(self) -> float:
        """The mean loss in nats that the figure stands for; NaN for anything else."""
        words = _words(self.name.rsplit(".", 1)[-1])
        if words & {"perplexity", "ppl"}:
            return math.log(self.value) if self.value > 0 else math.nan
        return self.value if words & {"loss", "nll"} or "cross_entropy" in self.name else math.nan

    @property
    def is_score(self) -> bool:
        """Whether more of it is better."""
        return bool(_words(self.name.rsplit(".", 1)[-1]) & SCORE_WORDS)

    @property
    def counts_right(self) -> bool:
        """Whether it is the share of the answers that are right."""
        return 0.0 <= self.value <= 1.0 and self.name.lower().rsplit(".", 1)[-1] in _OF_RIGHT

    @property
    def about(self) -> frozenset[str]:
        """What it measures, whichever model it was measured on: the words of its name."""
        return frozenset(_words(self.name) - BASE_WORDS - TUNED_WORDS)

    @property
    def claims_base(self) -> bool:
        """Whether its name says that the base model was meant."""
        return bool(_words(self.name) & BASE_WORDS)


@dataclass(frozen=True)
class ReportedMetrics:
    """All figures found in the evaluation files of a run, in the order of the files."""

    kind: ClassVar[str] = "reported figures"

    sources: tuple[Source, ...]
    values: tuple[ReportedMetric, ...]

    @staticmethod
    def is_held_by(file: Sniffed) -> bool:
        """Whether a JSON file holds a figure under a loss's or a perplexity's name."""
        if file.path.suffix != ".json" or {"log_history", "global_step"} & file.record.keys():
            return False
        nested = [value for value in file.record.values() if isinstance(value, dict)]
        return any(
            _FIGURE_KEYS.search(str(key).lower()) and isinstance(value, int | float)
            for one in (file.record, *nested)
            for key, value in one.items()
        )

    @staticmethod
    def is_printed_in(file: Sniffed) -> bool:
        """Whether a text, which is no training log, says how many answers were right."""
        return file.path.suffix in PRINTED and _COUNTED.search(file.head) is not None

    @classmethod
    def find(cls, run: RunView) -> "ReportedMetrics":
        if not run.files.metrics:
            # What was not reported is not the base's.
            raise NoSuchThing("no evaluation result was found")
        return cls.read(run.files.metrics)

    @classmethod
    def read(cls, paths: Sequence[Path]) -> "ReportedMetrics":
        """The figures in evaluation files: JSON objects, nested or not, JSON Lines, or texts.

        Raises:
            InputError: a file cannot be read, or none of them holds a figure.
        """
        sources = []
        values: list[ReportedMetric] = []
        for path in paths:
            text, source = read_text(path)
            sources.append(source)
            if path.suffix in PRINTED:
                values.extend(
                    ReportedMetric(name.lower(), int(right) / int(count), None, source, int(count))
                    for name, right, count in _COUNTED.findall(text)
                )
                continue
            contents, unreadable = json_values(text)
            if unreadable:
                raise InputError(path, "is not valid JSON", "it may be cut off")
            for content in (value for value in contents if isinstance(value, dict)):
                stated = [content.get(key) for key in ("split", "dataset", "data")]
                named = [Path(name).stem for name in stated if isinstance(name, str)]
                splits = (_split_of(_words(name)) for name in named)
                beside = next(filter(None, splits), _split_of(_words(path.stem) - {"eval"}))
                values.extend(
                    ReportedMetric(name, value, _split_of(_words(name)) or beside, source)
                    for name, value in _numbers(content)
                )
        if not values:
            remedy = "name a JSON file with loss or perplexity"
            raise InputError(next(iter(paths), None), "holds no figure", remedy)
        return cls(tuple(sources), tuple(values))

    @property
    def compared(self) -> tuple[tuple[ReportedMetric, ReportedMetric], ...]:
        """Each figure of the base model, with the tuned model's figure of the same name."""
        tuned = {
            (metric.about, metric.source.path): metric
            for metric in self.values
            if not metric.claims_base
        }
        return tuple(
            (metric, after)
            for metric in self.values
            if metric.claims_base
            and (after := tuned.get((metric.about, metric.source.path))) is not None
        )

    @property
    def losses(self) -> tuple[ReportedMetric, ...]:
        """The figures that stand for a finite mean loss of the tuned model."""
        return tuple(
            metric
            for metric in self.values
            if math.isfinite(metric.loss) and not metric.claims_base
        )


def _numbers(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in content.items():
        name = f"{prefix}{key}"
        if (number := as_float(value)) is not None:
            yield name, number
        elif isinstance(value, dict) and prefix.count(".") < 4:
            yield from _numbers(value, f"{name}.")


def _words(name: str) -> set[str]:
    return set(re.split(r"[_./: -]", name.lower()))


def _split_of(words: set[str]) -> str | None:
    return next((SPLITS[word] for word in sorted(words) if word in SPLITS), None)
