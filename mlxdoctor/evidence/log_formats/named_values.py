"""Report lines made of named numbers, whoever prints them.

`Iter 10: Train loss 2.3, It/sec 1.0` of mlx-lm and its kin, `{'loss': 2.3, 'epoch': 0.5}`,
`Epoch 1/2 Batch 15/1000 Loss: 2.3 LR: 1e-5`, `[12/100] loss=2.3`, `Epoch 3 complete. Average
loss: 2.3`, `Validation loss: 2.3`: numbers with names, counted by something, in any spelling.
What could also be a sentence counts once it is there three times.

The words between the numbers decide what a line means. Each new sequence of words is understood
once, and a pattern made from it reads all the lines that look alike.

A progress bar (`1%|▊ | 10/1000 [00:32<53:42, loss=3.4]`) counts where nothing else in the log
reports a loss. Of its redraws at one step the last counts, and a step with the values of the one
before is no report.
"""

import math
import re
from array import array
from dataclasses import dataclass, field, replace
from functools import lru_cache

from mlxdoctor.evidence.logs.log_format import OTHER, LineFormat, LogSoFar, Nature, Shape, axis_of
from mlxdoctor.evidence.logs.metric_names import (
    HELD_OUT_SCORE,
    ROLES,
    SUMMARY_KEYS,
    in_english,
    is_report,
    without_mean,
)
from mlxdoctor.evidence.logs.text_stream import NUMBER, is_count, to_number
from mlxdoctor.evidence.logs.words import (
    MAX_NUMBERS,
    before_bar,
    cleaned,
    counter_word,
    pattern,
    split,
    understand,
)

#: What a line must hold to be worth taking apart.
_HINT = re.compile(
    r"loss|\bcost\b|perplexity|\bppl\b|(?:\b|_)ce\b|\bnll\b|xent|cross.?entropy|['\"]reward"
    r"|\b(?:train|val|valid|validation)\W{1,3}\d{1,3}\.\d"
    r"|\b(?:val|valid|validation|eval|evaluation|dev|test)[\s_-](?:acc|f1|bleu|rouge)"
    r"|\breward\w{0,10}(?:\sscore)?\s?[=:]\s?-?\d",
    re.IGNORECASE,
)
#: Losses in another unit than ours, and lists of them.
_OTHERS = re.compile(
    r"\bbits\b|\bbp[bt]\b|loss(?:es)?['\"]?\s?[:=]\s?\[['\"]?[\d.]{1,20}['\"]?,", re.IGNORECASE
)
#: What every answer to a prompt was rewarded with.
_LIST = re.compile(r"(\brewards['\"]?\s?[:=]\s?)(?:tensor\(|array\()?\[([-+\d.,\s'\"e]{1,2000})\]")
#: Where a report begins behind a progress bar that it is glued to.
_GLUED = re.compile(r"\d{1,3}%\|.*?\[[^\]]*\]\s*(?=Iter\w*\s+\d|\{\s*['\"])")
_BAR = re.compile(r"(?<![\d,])(\d[\d,]{0,20})/(\d[\d,]{0,20})\s{0,8}\[([^\]]*)\]?")
#: A loss, before and after.
_CHANGE = re.compile(
    rf"loss(?:\s\w{{1,20}})?\s?[:=]\s?[~≈*]{{0,3}}({NUMBER})\s?[*]{{0,2}}\s?(?:→|-+>|=>)\s?[*]{{0,2}}({NUMBER})",
    re.IGNORECASE,
)
#: A bar's description with a step of its own, which is a report by itself where it holds a loss.
_STEP = re.compile(r"\b(?:iter|iteration|step)s?\W{0,4}\d", re.IGNORECASE)
#: Where a report begins that says itself when it was made, and a validation before all.
_ITER = re.compile(r"\bIter(?:ation)?\s{1,4}\d{1,9}:")
_MLX_LM = re.compile(r"Iter \d{1,9}: (?:Train|Val) loss ")
_INITIAL = re.compile(r"^\W{0,12}[Ii]nitial\s(?=(?:[Vv]al|[Ee]val)\w{0,8}[\s_][Ll]oss\b)")
#: What may be a report behind a bar.
_REPORT = re.compile(r"Iter|iter|step|Step|epoch|Epoch|\{['\"]")
#: What a bar says of its own speed.
_SPEEDS = frozenset(("iterations_per_second", "seconds_per_iteration"))
#: A dictionary that a trainer prints: its epoch is a metric, and its lines are in order.
_DICTIONARY = re.compile(r"[^{}]*\{.*['\"]", re.DOTALL)
#: A line that says nothing but that an epoch begins.
_EPOCH = re.compile(
    r"^(?:[^:]{0,60}\b(?:INFO|DEBUG)\b)?\W{0,20}(?:(?:start(?:ing|ed)?|begin(?:ning|s)?|training|running)\s(?:of\s)?)?"
    r"epoch\s{0,3}[:#=\[]?\s{0,3}(\d{1,6})(?:\s{0,2}(?:/|of)\s{0,2}(\d{1,6}))?(?![\d.]).{0,60}$",
    re.IGNORECASE,
)

#: Sequences of words remembered; a text that is no log has as many as lines.
MAX_PLANS = 4096
#: How often a line has to be there that could be a sentence.
MIN_REPEATS = 3


@dataclass
class _Plan:
    """How to read the lines with one sequence of words.

    Attributes:
        shape: takes the numbers at the places `keep`.
        keep: the places.
        step: the place of the count of updates, or None.
        total: the places of how many there are to be, and of that by which it is multiplied.
        missing: how many more of these lines there have to be before they count.
        held: number and row of those that were there.
    """

    shape: Shape
    keep: tuple[int, ...]
    step: int | None
    total: tuple[int, ...]
    missing: int = 0
    held: list[tuple[int, list[float]]] = field(default_factory=list)


class NamedValues(LineFormat):
    """Reads lines of named numbers that no other format knows."""

    name = "named values"
    priority = 95
    understood = "lines with a step or an epoch and a loss (`step 10 | loss 2.5`), as mlx_lm.lora, \
mlx-lm-lora, mlx-vlm, mlx-tune and others print them"
    example = (
        "Epoch 1/2 Batch 1/100 Loss: 2.5 Grad norm: 0.5 LR: 1e-05 | 19.2 s/it\n"
        "Epoch 1/2 Batch 2/100 Loss: nan Grad norm: 0.5 LR: 1e-05 | 19.2 s/it\n"
    )

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._plan = lru_cache(maxsize=MAX_PLANS)(self._understand)
        self._epochs = log.shape(("epoch",), None, "row", nature=Nature.MARK)
        self._total = 0.0
        self._doubted: list[_Plan] = []

    def read(self, number: int, line: str) -> bool:
        if not line.isascii() or ("loss" not in line and "Loss" not in line):
            line = in_english(line)
        # A batch that is skipped is no report.
        if "ewards" in line and "skip" not in line.lower():
            line = _LIST.sub(_mean_of, line)
        if not _HINT.search(line) or _OTHERS.search(line):
            match = _EPOCH.match(cleaned(line)) if "poch" in line or "POCH" in line else None
            if match is not None:
                self._epochs.append(number, [float(match[1])])
            return match is not None
        begun = _ITER.search(line)
        if begun and _MLX_LM.match(line, begun.start()) and "poch" not in line:
            # What a script says before it is none of the report.
            line = line[begun.start() :]
        if not _STEP.search(line):
            line = _INITIAL.sub("Iter 0: ", line)
        has_bar, end = False, 0
        for bar in _BAR.finditer(line) if "[" in line and "%" in line else ():
            before, end = before_bar(line[end : bar.start()]), bar.end()
            named = "" if _STEP.search(before) else before
            shown = f"{named} | step {bar[1]}/{bar[2]} | {bar[3]}"
            has_bar |= self._read(number, shown, is_bar=True)
        if has_bar and not _REPORT.search(line[end:]):
            return True
        if change := _CHANGE.search(line):
            # `Training loss: 2.07 → 1.31`.
            name, (before, after) = line[: change.start(1)], change.groups()
            return self._read(number, f"{name}{before}") and self._read(number, f"{name}{after}")
        return self._read(number, _GLUED.sub("", line) if "%|" in line else line)

    def _read(self, number: int, line: str, *, is_bar: bool = False) -> bool:
        texts, numbers = split(cleaned(line))
        plan = self._plan(texts, is_bar) if 0 < len(numbers) < MAX_NUMBERS else None
        if plan is None:
            return False
        values = [to_number(digits) for digits in numbers]
        row = [value for place in plan.keep if (value := values[place]) is not None]
        step = 0.0 if plan.step is None else values[plan.step]
        if len(row) < len(plan.keep) or not is_count(step or 0.0):
            return False
        if is_bar:
            self._redraw(plan.shape, number, row)
        else:
            plan.held.append((number, row))
            plan.missing = max(plan.missing - 1, 0)
        total = math.prod(values[place] or 1.0 for place in plan.total)
        if plan.total and "epoch" in plan.shape.columns:
            plan.shape.of_epoch = values[plan.total[0]] or 0.0
        if plan.total and total != self._total:
            self._total = total
            self.notes.announce(number, total)
        if not plan.missing and not is_bar:
            for held in plan.held:
                plan.shape.append(*held)
            # A lone line on validation shows no log.
            self.count += len(plan.held) if plan.shape.nature is not Nature.BESIDE else 0
            plan.held.clear()
            if like := pattern(line, texts, plan.keep, {p: numbers[p] for p in plan.total[:1]}):
                self.learn(like, plan.shape)
        return True

    def finish(self) -> None:
        """Where nothing else in the log is a loss, named ones count that are there but once."""
        none = (Nature.BESIDE, Nature.MARK)
        reports = [shape for shape in self.log.shapes if shape.nature not in none]
        if all(shape.role == OTHER for shape in reports):
            for plan in self._doubted:
                for held in plan.held:
                    plan.shape.append(*held)
        if not reports:
            # Where an epoch begins, a training does.
            self.notes.run_marks += self._epochs.lines[:1]

    def _redraw(self, shape: Shape, number: int, row: list[float]) -> None:
        """Add a bar's row, in place of the last one where that is of the same step."""
        last = shape.values[-len(row) :].tolist()
        pairs = enumerate(zip(last, row, strict=bool(last)))
        changed = {place for place, (before, now) in pairs if before != now}
        # It may name the next epoch while it still shows the last of this one.
        counters = {
            shape.step,
            *(place for place, name in enumerate(shape.columns) if name == "epoch"),
        }
        is_other = bool(changed - counters)
        if not last or (shape.step in changed and is_other):
            shape.append(number, row)
            self.count += 1
        elif is_other:
            shape.values[-len(row) :] = array("d", row)

    def _understand(self, texts: tuple[str, ...], is_bar: bool) -> _Plan | None:
        """How lines with these texts are read; None where they are no reports."""
        words = understand(texts)
        step = words.counters.get("step", words.counters.get("batch"))
        epoch = words.counters.get("epoch")
        if any("SKIPPED" in text for text in texts):
            # A line on a batch that was left out.
            words = replace(
                words, names=tuple(name and f"skipped_batch_{name}" for name in words.names)
            )
        columns = words.columns
        if SUMMARY_KEYS.intersection(filter(None, columns)):
            return None
        if "micro" in columns:
            # Of one of the batches that an update is accumulated from.
            columns = tuple("micro_loss" if name == "train_loss" else name for name in columns)
        if is_bar:
            columns = tuple(None if name in _SPEEDS else name for name in columns)
        known = {"train_loss", "val_loss", "micro_loss", "val_ppl", "val_perplexity"}
        losses = known.intersection(filter(None, columns))
        losses |= {name for name in columns if name and HELD_OUT_SCORE.fullmatch(name)}
        # What a dictionary says is a report, whatever counts it.
        first = min((place for place, column in enumerate(columns) if column), default=0)
        # A logger may number the line of its own source before it.
        is_plain = _DICTIONARY.match("0".join(texts[: first + 1])) is not None
        is_counted = step is not None or is_plain
        # A policy may be told by what its answers earn alone.
        is_told = is_counted or any(
            name and without_mean(name) in ROLES["reward"] for name in columns
        )
        if not losses and not (is_told and is_report(filter(None, columns))):
            return None
        clock = step if is_counted else epoch
        nature = Nature.FALLBACK if is_bar else Nature.PLAIN
        if not is_counted:
            nature = Nature.FALLBACK if epoch is None else Nature.EPOCH
            if epoch is None and "train_loss" not in losses and not is_told:
                nature = Nature.BESIDE
        keep = tuple(
            place
            for place, column in enumerate(columns)
            if column is not None or place in (step, epoch)
        )
        is_doubtful = (
            words.is_sentence
            or (clock is None and nature is not Nature.BESIDE)
            or (clock is not None and clock > first)
        )
        axis = "epoch" if clock is not None and clock == epoch else "step"
        counter = counter_word(texts[clock]) or "step" if clock is not None else None
        shape = self.log.shape(
            tuple("epoch" if place == epoch else columns[place] for place in keep),
            None if clock is None else keep.index(clock),
            "epoch" if axis == "epoch" else axis_of(counter),
            nature=nature,
        )
        total = _total(words.counters, words.totals)
        is_certain = is_bar or is_plain or not is_doubtful
        plan = _Plan(shape, keep, step, total, 0 if is_certain else MIN_REPEATS)
        self._doubted += [] if is_certain or words.is_sentence else [plan]
        return plan


def _mean_of(listed: re.Match[str]) -> str:
    """A list of numbers behind its name as their mean; as it stands where they are none."""
    values = [to_number(part.strip(" '\"")) for part in listed[2].split(",")]
    known = [value for value in values if value is not None]
    return f"{listed[1]}{sum(known) / len(known):.6g}" if known else listed[0]


def _total(counters: dict[str, int], totals: dict[int, int]) -> tuple[int, ...]:
    """The place of the number of updates to be, and of that of the epochs that it is for each."""
    step, epoch = counters.get("step", counters.get("batch")), counters.get("epoch")
    if step is None or step not in totals:
        return ()
    places = [totals[step]]
    if epoch is not None and epoch in totals and (counters.get("batch") == step or epoch < step):
        places.append(totals[epoch])
    return tuple(places)
