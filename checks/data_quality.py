"""Whether the rows can teach what they are meant to.

What it finds. Too few rows, rows that repeat or contradict each other, pairs of one answer, prompts
that hold their answers or what a template left, and answers that are no longer what somebody wrote
or that belong to other prompts.

Why it matters. The loss falls as it does on sound rows, and the model answers in just that way.
Copies are learned by heart, and a validation set that was trained on says that they were learned
well. Of two answers that exclude each other one is taught wrong.

How it is measured. From the rows alone. Rows are compared exactly. Short answers to one prompt
contradict each other if they share little of what is rare in them and are numbers, or answer other
prompts as well. Answers are cut if many stop at the greatest length, without a final sign or
within a word. In sentences the same neighbours ("of the") meet again in other rows, 1.4 times and
more as often as when the words of each answer are dealt out anew. Words that few rows
have tie an answer to its prompt: a row is misplaced if both its prompt and its answer fit other
rows far better, which do not fit themselves; dealing the answers out at random shows whether the
rows can tell.

When it is wrong. Long answers, and more than ten to a prompt, are taken for variety. Labels, chat
without a subject and translations tell nothing about misplaced answers, nor do answers shuffled
among rows about one subject. Words in no order on purpose are called out of order.
Copies are an error where they are more than half of the rows and training went over the different
ones many times.

What to do. Read a few of the rows that are named, and make them again from the original without
the step that spoils them. Remove duplicates before splitting, and join prompts and answers by a
key, never by their place in two lists.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mlxdoctor.check import NotApplicable, check
from mlxdoctor.engines.text import TextFacts, describe, evenly
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import FEW_ROWS, Dataset, Pair, Split, answer_places
from mlxdoctor.evidence.other_runs import PlannedRun
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.judge.curve import ends_low, ends_together
from mlxdoctor.measure.logged_levels import rows_gone_over
from mlxdoctor.measure.text.leftovers import left_in
from mlxdoctor.measure.text.pairing import contradictions, pairing
from mlxdoctor.measure.text.statistics import wilson
from mlxdoctor.models.generations import RecordedGenerations
from mlxdoctor.safety.quoting import quoted

_ROWS = "distinct rows with one answer each"
_WRITTEN = "answers as somebody wrote them"

#: A share of rows below which it is a note, or nothing: a few repeats do no harm.
NOTED = 0.05
#: Share of rows that repeat an earlier one, for a note, a warning and an error: every row twice is
#: a second pass. And passes over the different rows, for an error: 9 runs on copies made 10 and
#: more, each worse than on different rows; 92 sound runs of three base models 5 at most.
COPIED, COPIES_PASSES = (NOTED, 0.5, 0.5), 8.0
#: Share of validation rows that are training rows, for a note and a warning (0 of 9 real tasks):
#: the figure is no good then, and the model may be.
LEAKED = (0.0, 0.1)
#: Share of rows that a more frequent answer to their prompt contradicts, likewise: 0.38 and more in
#: 9 runs with contradictory rows, 0.17 of two annotators who disagree on every third row (0 of 92
#: sound runs, 0 of 379 sound public data sets). And different prompts for an error: a coin is one
#: with two answers.
CONTRADICTED, CONTRADICTED_PROMPTS = (NOTED, 0.25, 0.25), 10
#: Share of rows with one answer, whatever it is: then (almost) nothing else is learned. And with
#: one answer of several words, where the others differ: a third of SQuAD 2.0 has no answer; 0.9 in
#: a run of which nothing was said (0 of 9 real tasks).
ONE_ANSWER, ONE_SENTENCE = 0.95, 0.75
#: Share of pairs of one text, for a warning and an error: a few copies do no harm, and of half of
#: them the run is without effect.
ALIKE = (0.02, 0.02, 0.5)
#: Times the lowest validation, up to which it has not risen: two of them differ by noise.
NEAR_LOWEST = 1.05
#: Passes over few rows: 9 runs on 6 to 24 rows make 50 and more, 92 sound runs fewer than 20.
FEW_PASSES = 20.0
#: Rows with a prompt and an answer: with fewer, few rows share a subject.
PAIRED_ROWS = 50
#: Characters, or words, and different answers below which answers of one length are labels.
CUT_LENGTH, CUT_WORDS, CUT_ANSWERS = 20, 3, 20
#: Share of the answers of the greatest length whose last word is none, or that lack a final sign
#: where the shorter ones have it: others were made of one length.
MID_WORD, UNFINISHED = 0.2, 0.8
#: Share of answers of the greatest length, and for an error: 0.88 to 1.00 where an export cuts
#: answers, 0.04 at most in 9 sound tasks.
CUT, MANY_CUT = 0.1, 0.5
#: Words that hold sentences together, of all words: 0.23 to 0.39 in seven collections of
#: sentences, 0.00 in JSON, code and labels.
FUNCTION_WORDS = 0.12
#: Words that several answers have, and neighbours that meet again by chance, and the share of all
#: neighbours that may do so: else the answers can't tell.
SHARED_WORDS, DEALT, MOST_DEALT = 25, 40, 0.75
#: Times the neighbours that meet again by chance: 1.38 to 2.2 in six collections of sentences,
#: 0.99 to 1.07 in the same, shuffled. None of 46 sound runs on real text has less.
IN_ORDER = 1.15
#: Share of rows found misplaced when all are: of 98 samples of sound data above 0.4, none has over
#: 0.02 of its rows called misplaced; two below have 0.3.
TELLING = 0.5
#: Share of misplaced rows, the lower end of its 95% interval: 0.09 and more in 18 runs with
#: shuffled or contradictory answers (0 of 1240 samples of 365 sound public data sets, of which 273
#: can tell).
MISPLACED = 0.05
#: Mean rank of the own answer among all: 0.42 to 0.62 where answers were shuffled, higher where
#: they belong; in none of 1240 samples of sound data below.
RANK = 0.65


@check(
    codes={
        "fewer-than-a-batch": Symptom.error(
            "the training split has fewer rows than a batch",
            says="The training split has {rows:* row}, fewer than a batch of {batch_size}: mlx-lm "
            "does not start.",
            expected="at least {batch_size} rows",
            fix="add rows, or set batch_size to {rows} or less",
        ),
        "few-rows": Symptom.warning(
            "the training split is very small",
            says="The training split has only {rows:* row}[, seen {times:.0f} times each]: so few "
            "are soon learned by heart.",
            expected="at least {needed} rows",
            fix="add rows of the same kind, and keep some of them for validation",
        ),
        "duplicates": Symptom.info(
            "training rows repeat each other",
            says="{rows} of {all_rows} training rows repeat an earlier row: {different} are "
            "different[, and training went over these {times:.0f} times].",
            expected=_ROWS,
            fix="keep each row once",
        ),
        "leaked-validation": Symptom.warning(
            "validation rows are among the training rows",
            says="{rows} of {all_rows} validation rows are also training rows: the validation "
            "loss measures memory.",
            expected=_ROWS,
            fix="remove them from valid.jsonl, and split by prompt",
        ),
        "contradictory-answers": Symptom.info(
            "short answers to the same prompt contradict each other",
            says="{rows} of {all_rows} training rows contradict another row, which gives a "
            "different answer to the same prompt.",
            expected=_ROWS,
            fix="keep one answer for each prompt, unless variety is intended",
            in_a_plan=Severity.ERROR,
        ),
        "one-answer": Symptom.warning(
            "almost every row has the same answer",
            says="{rows} of {all_rows} training rows have the same answer, {answer}.",
            expected=_ROWS,
            fix="check that the answers were written to the right column",
        ),
        "cut-answers": Symptom.error(
            "answers are cut at one length",
            says="{rows} of {all_rows} answers stop at exactly {length} characters, the greatest "
            "length, {unfinished:.0%} of them without a final sign, such as {answer}.",
            expected=_WRITTEN,
            fix="write the rows again without the limit on the length of a text",
        ),
        "leftovers": Symptom.warning(
            "rows hold what a step before the training left in them",
            says="{rows} of {examined} {of} {what}. An example: {example}.",
            expected="text as people write it: the chat template adds the rest",
            fix="{fix}",
        ),
        "alike-pairs": Symptom.warning(
            "chosen and rejected answers are the same text",
            says="In {rows} of {all_rows} pairs the chosen and the rejected answer are the same "
            "text.",
            expected="two different answers in every pair",
            fix="leave these pairs out, and look for the line of the script that writes both "
            "answers from one",
        ),
        "words-out-of-order": Symptom.error(
            "the words of the answers stand in no order",
            says="The words of the answers are in no order. {again:,} pairs of neighbouring words "
            "occur again in another row; after each answer's words are shuffled, {by_chance:,.0f} "
            "do ({examined} rows).",
            expected=_WRITTEN,
            fix="look for a step that sorts or shuffles words, and make the rows again without it",
        ),
        "misplaced-answers": Symptom.error(
            "answers belong to the prompts of other rows",
            says="Of {examined} training rows examined, {rows} ({share:.0%}) hold the answer to "
            "another prompt. The answer to their own prompt stands in another row: the answer to "
            "line {line} is in line {answer_line}.",
            expected="answers that share names, numbers and subjects with their own prompts",
            fix="join prompts and answers by a key, not by their place in two lists, and train "
            "again",
        ),
    },
)
def data_quality(
    dataset: Dataset,
    config: TrainingConfig | None,
    log: TrainingLog | None,
    planned: PlannedRun | None,
    recorded: RecordedGenerations | None,
) -> Iterator[Sign | Seen | Unsought]:
    train, valid = dataset.splits.get("train"), dataset.splits.get("valid")
    if train is None or not train.rows:
        raise NotApplicable("there are no training rows")
    gone_over = rows_gone_over(config, log)
    yield from _number_of_rows(train, gone_over, config, log, planned)
    pairs = train.pairs
    first: dict[tuple[Pair, str], int] = {}
    wholes = enumerate(_wholes(train))
    repeats = [row for row, pair in wholes if first.setdefault(pair, row) != row]
    passes = gone_over / len(first)
    is_sure = len(repeats) > len(first) and passes >= COPIES_PASSES
    times = passes if passes >= 2 else None
    figures = {"different": len(first), "passes": round(passes, 1), "times": times}
    leaked: list[int] = []
    if valid is not None:
        leaked = [row for row, pair in enumerate(_wholes(valid)) if pair in first]
        yield from _graded("leaked-validation", valid, leaked, LEAKED)
    # Of rows that are none of them, validations tell whether the copies did harm.
    is_harmless = valid is not None and len(leaked) < LEAKED[1] * len(valid.rows)
    is_harmless = is_harmless and log is not None and ends_low(log.main) and ends_together(log.main)
    steps = (NOTED, math.inf, math.inf) if is_harmless else COPIED
    yield from _graded("duplicates", train, repeats, steps, figures, is_sure=is_sure)
    if train.format == "unknown":
        of_answers = ("cut-answers", "words-out-of-order", "misplaced-answers")
        yield Unsought(of_answers, "the rows are in no format of one prompt and one answer")
        return
    facts = describe([pair.answer for pair in pairs])
    if train.format != "text":
        if train.format == "pairs":
            yield from _alike(train, pairs)
        else:
            # Of several pairs for one prompt each may choose another answer.
            yield from _contradictions(train, pairs)
        yield from _one_answer(train, pairs, facts)
        yield from _cut(train, pairs, facts)
    expected = [each.expected for each in recorded.items if each.expected] if recorded else []
    yield from _leftovers(train, expected)
    yield from _order(train, facts)
    yield from _misplaced(train, pairs)


def _wholes(split: Split) -> list[tuple[Pair, str]]:
    """What rows are compared by: prompt and answer, and of pairs the rejected answer as well."""
    others = (str(row.get("rejected")) for row in split.rows)
    return list(zip(split.pairs, others, strict=True))


def _alike(split: Split, pairs: Sequence[Pair]) -> Iterator[Sign]:
    rejected = ({**row, split.features.chosen: row.get("rejected")} for row in split.rows)
    others = enumerate(map(split.pair, rejected))
    same = [row for row, other in others if pairs[row].answer.strip() == other.answer.strip()]
    yield from _graded("alike-pairs", split, same, ALIKE)


def _graded(
    symptom: str,
    split: Split,
    rows: Sequence[int],
    steps: Sequence[float],
    measured: Mapping[str, Measurement] = {},
    *,
    is_sure: bool = True,
    quotes: bool = False,
) -> Iterator[Sign]:
    """A sign about rows: a note, a warning and, where it is sure, an error from a share on.

    With `quotes` the first row's answer is shown.
    """
    share = len(rows) / max(1, len(split.rows))
    reached = [severity for severity, step in zip(Severity, steps, strict=False) if share >= step]
    if not rows or not reached:
        return
    lines = tuple(split.line_numbers[row] for row in rows[:5])
    figures: dict[str, Measurement] = {
        "rows": len(rows),
        "all_rows": len(split.rows),
        "share": share,
        "first_lines": lines,
        **measured,
    }
    if quotes:
        figures["answer"] = quoted(split.pairs[rows[0]].answer)
    is_doubtful = reached[-1] is Severity.ERROR and not is_sure
    severity = Severity.WARNING if is_doubtful else reached[-1]
    yield Sign(symptom, figures, f"{split.path.name}, line {lines[0]}", severity=severity)


def _number_of_rows(
    split: Split,
    gone_over: int,
    config: TrainingConfig | None,
    log: TrainingLog | None,
    planned: PlannedRun | None,
) -> Iterator[Sign]:
    count, where = len(split.rows), split.path.name
    batch_size = config.batch_size if config is not None else None
    if batch_size is not None and count < batch_size:
        started = log is not None and log.main.get("train_loss") is not None
        severity = Severity.WARNING if started else None
        measured = {"rows": count, "batch_size": batch_size}
        yield Sign("fewer-than-a-batch", measured, where, severity=severity)
        return
    passes = gone_over / count
    # So many passes ask for twice as many rows.
    needed = FEW_ROWS if count < FEW_ROWS or passes < FEW_PASSES else 2 * FEW_ROWS
    if count < needed:
        is_handful = count < FEW_ROWS and passes >= FEW_PASSES
        severity = Severity.ERROR if planned and is_handful else None
        # Of a run that was made the losses tell whether that many passes were too many.
        losses = log.main.finite("val_loss").values if log is not None else np.array([])
        if len(losses) > 1 and losses[-1] <= min(NEAR_LOWEST * losses.min(), losses[0]):
            severity = Severity.INFO
        times = passes if passes >= 1 else None
        figures = {"rows": count, "needed": needed, "passes": round(passes, 1), "times": times}
        yield Sign("few-rows", figures, where, severity=severity)


def _contradictions(split: Split, pairs: Sequence[Pair]) -> Iterator[Sign]:
    symptom, wrong = "contradictory-answers", contradictions(pairs)
    is_exclusive = wrong.exclusive / len(pairs) >= CONTRADICTED[-1]
    is_sure = is_exclusive and wrong.prompts >= CONTRADICTED_PROMPTS
    counts = {"exclusive": wrong.exclusive, "prompts": wrong.prompts}
    yield from _graded(symptom, split, wrong.outvoted, CONTRADICTED, counts, is_sure=is_sure)


def _one_answer(split: Split, pairs: Sequence[Pair], facts: TextFacts) -> Iterator[Sign]:
    conversations = sum(len(answer_places(split.conversation(row))) > 1 for row in split.rows)
    # They may all close with one word of farewell.
    if len({pair.prompt for pair in pairs}) == 1 or 2 * conversations > len(pairs):
        return
    rows = [row for row, pair in enumerate(pairs) if pair.answer.strip() == facts.top_text]
    others = len(pairs) - len(rows)
    # Labels may be as unequal as the world is; a sentence among many is no label.
    is_sentence = len(facts.top_text.split()) > 1 and 2 * (facts.distinct - 1) >= others > 0
    least = ONE_SENTENCE if is_sentence else ONE_ANSWER
    answer = {"answer": quoted(facts.top_text) if facts.top_text else "an empty one"}
    steps = (math.inf, least, least)
    yield from _graded("one-answer", split, rows, steps, answer, is_sure=is_sentence)


def _cut(split: Split, pairs: Sequence[Pair], facts: TextFacts) -> Iterator[Sign]:
    cut = facts.cut
    is_unfinished = min(cut.unfinished, cut.shorter_finished) >= UNFINISHED
    looks_cut = cut.mid_word >= MID_WORD or is_unfinished
    looks_cut = looks_cut and (cut.words >= CUT_WORDS or cut.length >= CUT_LENGTH)
    if cut.share < CUT or not looks_cut or facts.distinct < CUT_ANSWERS:
        return
    rows = [row for row, pair in enumerate(pairs) if len(pair.answer) == cut.length]
    measured = {"length": cut.length, "unfinished": cut.unfinished}
    steps = (math.inf, 0.0, MANY_CUT)
    yield from _graded("cut-answers", split, rows, steps, measured, quotes=True)


def _leftovers(split: Split, expected: Sequence[str]) -> Iterator[Sign]:
    """What `leftovers.toml` lists, in a sample of the rows."""
    examined = evenly(len(split.rows))
    for spoilt in left_in(split, examined):
        # What most expected answers have belongs there.
        meant = sum(spoilt.leftover.pattern.search(answer) is not None for answer in expected)
        if spoilt.leftover.of == "answers" and 2 * meant > len(expected):
            continue
        of, lines = spoilt.leftover.of, tuple(split.line_numbers[row] for row in spoilt.rows[:5])
        figures: dict[str, Measurement] = {
            "rows": len(spoilt.rows),
            "examined": len(examined),
            "of": "answers" if of == "texts" and split.format != "text" else of,
            "kind": spoilt.leftover.code,
            "what": spoilt.leftover.what,
            "example": quoted(spoilt.example),
            "fix": spoilt.leftover.fix,
            "first_lines": lines,
        }
        where = f"{split.path.name}, line {lines[0]}"
        yield Sign("leftovers", figures, where, severity=spoilt.severity)


def _order(split: Split, facts: TextFacts) -> Iterator[Sign | Seen | Unsought]:
    order = facts.order
    can_tell = DEALT <= order.dealt <= MOST_DEALT * (order.words - order.texts)
    is_text = order.function_words >= FUNCTION_WORDS
    if not is_text or order.shared < SHARED_WORDS or not can_tell:
        why = "too few different words stand side by side"
        small = "the answers are no sentences of a language whose small words are known here"
        yield Unsought(("words-out-of-order",), why if is_text else small)
        return
    counts = {"again": order.again, "by_chance": order.dealt, "examined": order.texts}
    measured = {**counts, "ratio": order.ratio}
    if order.ratio > IN_ORDER:
        yield Seen(
            "{again:,} neighbouring words of the answers meet again in another row, {ratio:.1f} "
            "times as many as by chance.",
            measured,
        )
    else:
        yield Sign("words-out-of-order", measured, where=split.path.name)


def _misplaced(split: Split, pairs: Sequence[Pair]) -> Iterator[Sign | Unsought]:
    rows = [row for row, pair in enumerate(pairs) if pair.prompt.strip() and pair.answer.strip()]
    if len(rows) < PAIRED_ROWS:
        # Plain text has no answers that could be misplaced.
        if rows or split.format != "text":
            why = f"{len(rows)} rows with a prompt and an answer; {PAIRED_ROWS} are needed"
            yield Unsought(("misplaced-answers",), why)
        return
    prompts, answers = [pairs[row].prompt for row in rows], [pairs[row].answer for row in rows]
    measured = pairing(prompts, answers, TELLING)
    if measured.telling < TELLING:
        why = (
            "prompts and answers share too few rare words: with all answers dealt out at random, "
            f"{measured.telling:.0%} of the rows would be noticed; {TELLING:.0%} are needed"
        )
        yield Unsought(("misplaced-answers",), why)
        return
    interval = wilson(len(measured.misplaced), measured.examined)
    # Answers about the right subject may be worse than another row's without being misplaced.
    ranks = [misplaced.rank for misplaced in measured.misplaced]
    if interval.low < MISPLACED or float(np.mean(ranks)) > RANK:
        return
    first = min(measured.misplaced, key=lambda misplaced: misplaced.row)
    figures = {
        "examined": measured.examined,
        "share": interval.share,
        "share_at_least": interval.low,
        "line": split.line_numbers[rows[first.row]],
        "answer_line": split.line_numbers[rows[first.answer_at]],
    }
    affected = sorted(rows[misplaced.row] for misplaced in measured.misplaced)
    yield from _graded("misplaced-answers", split, affected, (0.0, 0.0, 0.0), figures)
