"""The canonical name of a metric, whatever a trainer calls it."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain

from mlxdoctor.tables import shipped

_TABLES = shipped("mlxdoctor.evidence.logs", "metric_names.toml")
#: Canonical name -> what else it is called.
CANONICAL: Mapping[str, list[str]] = _TABLES["aliases"]
#: What stands in where a row has no metric of the first name, best first.
STAND_INS: Mapping[str, list[str]] = _TABLES["stand-ins"]
#: What training on pairs or rewards measures -> what it is called, best first.
ROLES: Mapping[str, list[str]] = _TABLES["policy"]
#: A word of another language -> ours.
_ENGLISH = {word: ours for ours, words in _TABLES["words"].items() for word in words}
#: Chinese has no blanks between words; `当前` says that a figure is the present one.
_CHINESE = [word for word in _ENGLISH if not word[0].isascii() and ord(word[0]) > 0x2E80]
_SPACED = [word for word in _ENGLISH if word not in _CHINESE]
_FOREIGN = re.compile(
    rf"(?<!\w)(?:{'|'.join(map(re.escape, _SPACED))})(?!\w)"
    # A split by itself has so many rows.
    rf"|(?:当前)?({'|'.join(_CHINESE)})(?!(?<=集)\s*[:：])|当前",
    re.IGNORECASE,
)
_ALIASES = {alias: name for name, aliases in CANONICAL.items() for alias in (*aliases, name)}
#: Every name of a metric that has a canonical one, or stands in for it.
KNOWN = frozenset(chain(_ALIASES, *STAND_INS.values()))

#: Names of the column that counts updates, best first.
STEPS: tuple[str, ...] = tuple(_TABLES["steps"])

#: Keys of a trainer's closing summary, which repeats names with another meaning.
SUMMARY_KEYS = frozenset(("train_runtime", "total_flos", "train_samples_per_second"))

#: A metric a row must hold at least one of to be a report on training; and one that makes it a
#: report where something counts it.
_METRIC = re.compile(r"(?:^|_)(?:loss|rewards?|rew|kl|perplexity|ppl)(?:_|$)")
#: Scores, by their canonical names or as texts have them.
SCORES = (
    r"accuracy|acc|f1|auc|mrr|matthews_correlation|exact_match|bleu(?:(?:_|-)?\d)?|rouge-?\w{0,4}"
    r"|chrf(?:pp)?|asr|(?:success|solve|win|correct)_?rate"
)
SCORE = re.compile(rf"(?:^|_)(?:{SCORES})(?:_|$)")
#: A column that only rows that were looked at can have, and a score of them, by its own name.
HELD_OUT = r"(?:last_)?(?:eval|valid|validation|val|dev|test|held(?:_?out)?)_"
#: A benchmark may be named behind it: `val/test_score/openai/gsm8k`.
HELD_OUT_SCORE = re.compile(
    rf"{HELD_OUT}(?P<name>(?:.*_)?(?:{SCORES})|(?:test_)?score_(?!.*(?:std|min|max|loss|entropy)$)\w+)"
)

#: What may be the loss that is trained, by a name of one trainer's.
_OWN_LOSS = re.compile(
    rf"(?!{HELD_OUT}|.*(?:kl|aux|value|policy|actor|critic|pg|reg|best|last|skip))(?:\w+_)?loss(?:_\w+)?"
)
_MEAN = re.compile(r"^(?:avg|average|mean)_|_(?:avg|average|mean)$")

_SYMBOLS = str.maketrans({"μ": "mean", "µ": "mean", "σ": "std"})


def in_english(line: str) -> str:
    """A line of a log with the words for its figures in English."""

    def ours(match: re.Match[str]) -> str:
        return f"{_ENGLISH[match[1]]} " if match[1] else _ENGLISH.get(match[0].lower(), "")

    return _FOREIGN.sub(ours, line).replace("：", ":")


@lru_cache(maxsize=4096)
def snake_case(text: str) -> str:
    """`Tokens/sec` -> `tokens_sec`, `Val chosen reward` -> `val_chosen_reward`."""
    text = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", text.translate(_SYMBOLS))
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def canonical(text: str) -> str:
    """The canonical name of a metric, or its own in snake case."""
    name = snake_case(text)
    return _ALIASES.get(name, name)


def without_mean(name: str) -> str:
    """`kl_avg` -> `kl`: what it is a mean of."""
    return _MEAN.sub("", name)


def is_report(names: Iterable[str], *, counted: bool = False) -> bool:
    """Whether a row with these canonical names, counted by a step or not, reports on training."""
    return any(
        name == "grad_norm"
        or _METRIC.search(name)
        or (counted and (name == "val_seconds" or SCORE.search(name)))
        for name in names
    )


def unique(names: Iterable[str | None], own: Iterable[str]) -> tuple[str | None, ...]:
    """Canonical names without repeats: a second `train_loss` keeps its own name.

    Where none is `train_loss`, the best of its `STAND_INS` is, `avg_loss` say.
    """
    seen: set[str] = set()
    result: list[str | None] = []
    for name, raw in zip(names, own, strict=True):
        chosen = snake_case(raw) if name in seen else name
        result.append(None if chosen is None or chosen in seen else chosen)
        if result[-1] is not None:
            seen.add(result[-1])
    for name, others in STAND_INS.items():
        best = next((one for one in others if one in seen), None) if name not in seen else None
        if best is None and name not in seen:
            means = {without_mean(one): one for one in seen}
            best = next((means[one] for one in others if one in means), None)
        if best is None and name == "train_loss" and not seen & {name, "val_loss"}:
            # One loss of a name of its own.
            held_out = STAND_INS["val_loss"]
            losses = [one for one in seen if _OWN_LOSS.fullmatch(one) and one not in held_out]
            best = losses[0] if len(losses) == 1 else None
        if best is not None:
            result[result.index(best)] = name
    return tuple(result)
