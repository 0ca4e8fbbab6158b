"""Whose answers were recorded, and how they were asked for.

What it finds. A model that learned its rows, and does not give the answers that are expected beside
the recorded ones. Recorded answers that are the base model's or those to other prompts, that a
limit cut off, that are wrong where the model itself is right, or that the tuned model gives only
where it is asked in another way than it was trained on: without the chat template, say.

Why it matters. `mlx_lm.generate` without `--adapter-path` gives the base model's answers without an
error. A person then takes them for the fine-tune's, and repairs a training that was sound.

How it is measured. Both models answer the recorded prompts again, greedily: with the system prompt
and format of the row that has the same question, else in the base's chat template. Only prompts
that the two models answer differently are judged, and only if the recorded answer is not the
expected one, which both may give. A recorded answer is a model's if one of the two begins with the
other, or if they have three more first words in common than it has with the other model's. An
expected answer is given if the answer is the same text, names it in a sentence, or begins it up to
the limit on its tokens.

When it is wrong. Expected answers that were written down in another form than the rows' are other
answers to it. An adapter that changes little gives few prompts with different answers.

What to do. Answer again with the adapter: `mlx_lm.generate --adapter-path ...`, or
`mlx_lm.load(model, adapter_path=...)`, with the chat template.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.engines.text import in_common, is_finished
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom
from mlxdoctor.measure.text.outputs import SPECIAL_TEXT, answer_words, as_read
from mlxdoctor.measure.text.statistics import SIGNIFICANCE
from mlxdoctor.models.asked_again import Asked, AskedAgain
from mlxdoctor.models.generations import Generation, Generations, RecordedGenerations
from mlxdoctor.safety.quoting import quoted

_END = re.compile(rf"(?:{SPECIAL_TEXT.pattern})\s*\Z")
#: Fewest first words in common: fewer agree by chance. Fewest prompts that the models answer
#: differently, and fewest that show a limit on the length, or another model.
_WORDS, _TELLING, _PROMPTS = 3, 2, 8
#: Least share of the prompts that are one model's: ties in half precision change some answers.
_SHARE = 0.75
#: Share of the recorded answers that are the model's, to whichever prompt; and of the expected
#: answers that a model gives at most which was taught others: none of 12 in three faulty runs, 9 to
#: 12 of 12 in 13 sound ones that others made up.
_ALL, _HARDLY_ANY = 0.9, 0.1
#: Of the share of answers that the model gives rightly, what was recorded rightly, at most, where
#: a server spoils them: 0 to 0.42 in six runs, 0.9 and more in four drawn at 0.2 and 0.3.
_SPOILT = 0.6
#: Share of the answers that begin with the same word by chance: sampled ones often do.
_BY_CHANCE = 0.25
#: Share of the answers that only look like the expected ones: 0.83 in a run whose test was written
#: in another form; below it an answer now and then has a blank of its own.
_ALIKE = 0.25
#: Least share of the answers that break off, and of the model's answer that one has at most.
_CUT, _CUT_TO = 0.5, 0.8


@check(
    codes={
        "base-answers": Symptom.error(
            "the recorded answers are the base model's",
            says="Of {telling:* recorded answer} {base} begin as the base model's own do, word "
            "for word, and none as the tuned model's: the adapter was not loaded when they were "
            "made.",
            expected="the tuned model's answers",
            fix="Answer the prompts again with the adapter: `mlx_lm.generate --adapter-path "
            "FOLDER`, or `mlx_lm.load(model, adapter_path=FOLDER)`.",
        ),
        "spoilt": Symptom.error(
            "the recorded answers are wrong where the model itself is right",
            says="Asked {expected:* prompt} again, the tuned model gives {own_right} of the "
            "expected answers. Of {every:* recorded answer}, {right} are right. It answers "
            "{answer}, but {recorded} was recorded.",
            expected="recorded answers that are right where the model is",
            fix="Answer the prompts with `mlx_lm.generate` alone; then add what your server does, "
            "one by one: a cache that is not emptied, penalties, forbidden tokens or repeats, stop "
            "words, changed prompts.",
        ),
        "of-other-prompts": Symptom.error(
            "the recorded answers belong to other prompts of the file",
            says="{misplaced} of {prompts:* recorded answer} are the tuned model's answers to "
            "other prompts of the file, and {tuned} to their own. Prompts and answers were put "
            "together wrongly, or the cache still held an earlier prompt.",
            expected="every answer beside its own prompt",
            fix="Write prompt and answer into the file together, as each is made, and begin each "
            "with an empty cache.",
        ),
        "not-as-expected": Symptom.error(
            "the rows teach other answers than are expected",
            says="The model gives the answers of {rows_right} of {rows:* row} exactly, and {right} "
            "of {expected:* expected answer}. It answers {answer}, but {wanted} is expected. The "
            "rows teach other answers, or other questions were asked.",
            expected="rows whose answers are those that are expected of the model",
            fix="Change the rows' answers to the form of the expected ones, and train again.",
        ),
        "cut-short": Symptom.error(
            "the recorded answers were cut off",
            says="{cut} recorded answers are the tuned model's, cut off: the longest "
            "has {words:* word}, and the model's own are longer.",
            expected="answers that begin and end where the model's do",
            fix="Generate the answers again with a higher limit (`mlx_lm.generate --max-tokens`; "
            "the default is 100). Check each step that changes answers before they are written.",
        ),
        "expected-cut": Symptom.error(
            "the expected answers were cut at one length",
            says="{expected_cut} of {expected:* expected answer} are cut at {width} characters: "
            "the model's answers begin with them and go on. An exact comparison counts each of "
            "them as wrong.",
            expected="expected answers that are whole",
            fix="Write the expected answers anew from where they came, whole, and judge again.",
        ),
        "looks-alike": Symptom.error(
            "recorded and expected answers differ in nothing that can be seen",
            says="{alike} of {expected:* recorded answer} look exactly like the expected ones and "
            "are other characters: {how}. An exact comparison counts each of them as wrong.",
            expected="the same text in the same characters",
            fix="Bring both sides into one form before they are compared "
            "(`unicodedata.normalize('NFC', text)`, and single blanks).",
        ),
        "asked-otherwise": Symptom.error(
            "the recorded answers were asked for in another way than the model was trained on",
            says="Of {prompts:* recorded answer}, {alike} begin like the tuned model's answers "
            "when it is asked {way}. {tuned} begin like its answers in the format it was trained "
            "on. The model is not at fault; the way it was asked is.",
            expected="answers to prompts in the format of the training rows",
            fix="Ask with the chat template, and with the system prompt of the training rows.",
        ),
    },
)
def recorded_answers(
    asked: AskedAgain, answers: Generations | None, recorded: RecordedGenerations | None
) -> Iterator[Sign | Seen]:
    items = asked.items
    yield from _not_as_expected(items, answers)
    yield from _expected_cut(recorded)
    yield from _looks_alike(recorded)
    apart = [item for item in items if not _same(item.own.base or "", item.own.tuned)]
    if len(apart) < _TELLING:
        why = f"only {len(apart)} of {len(items)} recorded prompts are answered differently by"
        raise Inconclusive(f"{why} the two models")
    # Either model may give the expected answer.
    wanted = [answer_words(item.recorded.expected or "") for item in apart]
    given = [answer_words(item.recorded.tuned) for item in apart]
    telling = [apart[i] for i in range(len(apart)) if not wanted[i] or given[i] != wanted[i]]
    of_tuned = sum(_is_of(item, item.own.tuned, item.own.base or "") for item in apart)
    of_base = sum(_is_of(item, item.own.base or "", item.own.tuned) for item in telling)
    measured: dict[str, Measurement] = {"prompts": len(apart), "telling": len(telling)}
    measured |= {"base": of_base, "tuned": of_tuned}
    sign: Sign | None = None
    if of_tuned < _SHARE * len(apart):
        sign = _asked_wrongly(asked, of_tuned)
    is_base = len(telling) >= _TELLING and of_base >= _SHARE * len(telling) and not of_tuned
    every = recorded.distinct if recorded is not None else [each.recorded for each in items]
    spoilt = _spoilt(items, every)
    cut = [item for item in items if _is_cut(item)]
    if len(cut) >= max(_CUT * len(items), _PROMPTS):
        measured |= {"cut": len(cut)}
        measured |= {"words": max(len(answer_words(item.recorded.tuned)) for item in cut)}
        yield Sign("cut-short", measured, severity=None if _is_unmeant(cut) else Severity.WARNING)
    elif sign is not None:
        yield sign
    elif is_base:
        yield Sign("base-answers", measured)
    elif spoilt is not None:
        yield spoilt
    elif of_tuned >= _SHARE * len(apart):
        yield Seen(
            "Of {prompts:* recorded answer} {tuned} begin as the tuned model's do.", measured
        )
    elif len(telling) < _TELLING:
        why = "nearly all recorded answers are the expected ones, which either model may give"
        raise Inconclusive(why)
    else:
        raise Inconclusive("the recorded answers are neither model's: sampled, or asked otherwise")


def _not_as_expected(items: Sequence[Asked], answers: Generations | None) -> Iterator[Sign]:
    """Whether the model learned its rows, and they are not what is expected of it."""
    from scipy.stats import fisher_exact

    wanted = [each for each in items if each.recorded.expected]
    rows = [item for item in answers.items if item.expected] if answers is not None else []
    wrong = [each for each in wanted if not _gives(each.own, each.recorded.expected)]
    right, rows_right = len(wanted) - len(wrong), sum(_gives(row, row.expected) for row in rows)
    if len(wanted) < _PROMPTS or right > _HARDLY_ANY * len(wanted) or rows_right < len(rows) / 2:
        return
    counts = [[rows_right, len(rows) - rows_right], [right, len(wrong)]]
    if fisher_exact(counts, alternative="greater").pvalue < SIGNIFICANCE:
        figures: dict[str, Measurement] = {"rows": len(rows), "rows_right": rows_right}
        figures |= {"right": right, "expected": len(wanted)}
        answer, other = (_text(text) for text in (wrong[0].own.tuned, wrong[0].recorded.expected))
        yield Sign(
            "not-as-expected", {**figures, "answer": quoted(answer), "wanted": quoted(other)}
        )


def _expected_cut(recorded: RecordedGenerations | None) -> Iterator[Sign]:
    """Whether what is expected was cut at one length, and the model's answers go on from there."""
    every = [] if recorded is None else [each for each in recorded.distinct if each.expected]
    width = max((len(each.expected or "") for each in every), default=0)
    cut = [
        each
        for each in every
        if len(each.expected or "") == width < len(_text(each.tuned))
        and each.tuned.startswith(each.expected or "")
    ]
    if len(cut) >= max(_CUT * len(every), _PROMPTS):
        figures = {"expected_cut": len(cut), "expected": len(every), "width": width}
        yield Sign("expected-cut", figures)


def _looks_alike(recorded: RecordedGenerations | None) -> Iterator[Sign]:
    """Whether answers are the expected ones but for the characters that they are written with."""
    every = [] if recorded is None else [each for each in recorded.distinct if each.expected]
    texts = [(_text(each.tuned), _text(each.expected)) for each in every]
    alike = [pair for pair in texts if pair[0] != pair[1] and len(set(map(as_read, pair))) == 1]
    if len(alike) >= max(_ALIKE * len(every), _PROMPTS):
        composed = sum(len({unicodedata.normalize("NFC", text) for text in pair}) for pair in alike)
        how = "accents are characters of their own (Unicode NFD) on one side"
        how = how if 2 * composed <= 3 * len(alike) else "blanks or invisible characters are others"
        yield Sign("looks-alike", {"alike": len(alike), "expected": len(every), "how": how})


def _spoilt(items: Sequence[Asked], every: Sequence[Generation]) -> Sign | None:
    """Whether the model itself answers as expected, and what was recorded does not.

    Args:
        every: all recorded answers, of which only some were asked for again.
    """
    from scipy.stats import fisher_exact

    wanted = [each for each in items if each.recorded.expected]
    own = [each for each in wanted if _gives(each.own, each.recorded.expected)]
    known = [each for each in every if each.expected]
    wrong = [each for each in known if _is_wrong(each)]
    right = len(known) - len(wrong)
    if len(wanted) < _PROMPTS or len(own) < _SHARE * len(wanted) or not wrong:
        return None
    share = len(own) / len(wanted)
    counts = [[len(own), len(wanted) - len(own)], [right, len(wrong)]]
    is_chance = fisher_exact(counts, alternative="greater").pvalue >= SIGNIFICANCE
    shown = [each for each in wanted if _is_wrong(each.recorded)]
    if right > _SPOILT * share * len(known) or is_chance or not shown:
        return None
    first = next((each for each in shown if each in own), shown[0])
    texts = {"answer": first.own.tuned, "recorded": first.recorded.tuned}
    figures = {"expected": len(wanted), "own_right": len(own), "right": right, "every": len(known)}
    return Sign("spoilt", {**figures, **{key: quoted(_text(one)) for key, one in texts.items()}})


def _is_wrong(item: Generation) -> bool:
    """Whether an answer is neither the expected one nor its beginning, which has its own sign."""
    wanted = _text(item.expected)
    return not (_gives(item, item.expected) or wanted.startswith(_text(item.tuned) or " "))


def _gives(item: Generation, expected: str | None) -> bool:
    """Whether an answer is the expected one, names it, or begins it up to its limit."""
    own, wanted = _text(item.tuned), _text(expected)
    is_cut = bool(item.max_tokens) and len(item.tuned_tokens or ()) >= (item.max_tokens or 0)
    rest = own.replace(wanted, "", 1) if wanted else own
    is_named = rest != own and any(map(str.isalpha, rest))
    return own == wanted or is_named or (is_cut and wanted.startswith(own))


def _text(answer: str | None) -> str:
    return _END.sub("", answer or "").strip()


def _asked_wrongly(asked: AskedAgain, of_tuned: int) -> Sign | None:
    """Answers of the tuned model to other prompts of the file, or to prompts in another format."""
    items, most = asked.items, len(asked.items)
    measured: dict[str, Measurement] = {"prompts": most, "tuned": of_tuned}
    misplaced = sum(_is_elsewhere(item, asked) for item in items)
    ways = {
        way: sum(
            _is_of(item, item.otherwise[way], item.own.tuned)
            for item in items
            if way in item.otherwise
        )
        for way in items[0].otherwise
    }
    way = max(ways, key=lambda way: ways[way], default="")
    otherwise = None
    if way and ways[way] >= max(_SHARE * most, _TELLING + of_tuned):
        otherwise = Sign("asked-otherwise", {**measured, "alike": ways[way], "way": way})
    # Of a few labels many are those of other prompts, too.
    if otherwise is not None and ways[way] >= misplaced + of_tuned:
        return otherwise
    if misplaced >= max(_SHARE * (most - 1), _TELLING + of_tuned):
        return Sign("of-other-prompts", {**measured, "misplaced": misplaced})
    is_many = most >= _PROMPTS and misplaced > _BY_CHANCE * most
    if is_many and misplaced + of_tuned >= _ALL * most:
        # Labels that are drawn may be those of other prompts.
        severity = Severity.WARNING
        return Sign("of-other-prompts", {**measured, "misplaced": misplaced}, severity=severity)
    return otherwise


def _is_elsewhere(item: Asked, asked: AskedAgain) -> bool:
    """Whether a recorded answer is the tuned model's to another prompt, and not to its own."""
    recorded = item.recorded.tuned
    others = (*(other.own.tuned for other in asked.items if other is not item), *asked.further)
    return not _same(recorded, item.own.tuned) and any(_same(recorded, own) for own in others)


def _is_cut(item: Asked) -> bool:
    """Whether the tuned model's own answer goes on, in mid-sentence, or goes through a word."""
    recorded, own = item.recorded.tuned.strip(), item.own.tuned.strip()
    before, found, after = _text(own).partition(recorded) if recorded else ("", "", "")
    if found and (before[-1:].isalnum() or after[:1].isalnum()):
        return True
    is_shorter = len(answer_words(recorded)) <= _CUT_TO * len(answer_words(own))
    is_begun = bool(found) and not before and is_shorter
    # A limit ends an answer anywhere; a wrong end token where a line or a sentence ends.
    goes_on = after.startswith("\n") and (item.recorded.expected or "").strip().startswith(own)
    return is_begun and (goes_on or is_finished(own) > is_finished(recorded))


def _is_unmeant(cut: Sequence[Asked]) -> bool:
    """Whether answers lack their beginning, or whole ones are expected: a limit may be meant."""
    begun = [each.own.tuned.strip().startswith(each.recorded.tuned.strip()) for each in cut]
    wanted = [bool(each.recorded.expected) for each in cut]
    return 2 * sum(begun) < len(cut) or 2 * sum(wanted) > len(cut)


def _is_of(item: Asked, own: str, other: str) -> bool:
    """Whether a recorded answer is a model's own rather than the other model's."""
    words = answer_words(item.recorded.tuned)
    to_own, to_other = (in_common(words, answer_words(text)) for text in (own, other))
    return _same(item.recorded.tuned, own) or to_own >= to_other + _WORDS


def _same(first: str, second: str) -> bool:
    """Whether the longer text begins with the shorter, whose last word may be cut off."""
    shorter, longer = sorted((answer_words(first), answer_words(second)), key=len)
    if not longer:
        # Neither has a word: one sign over and over, or nothing.
        return first.strip()[:1] == second.strip()[:1]
    if len(shorter) < _WORDS:
        return shorter == longer
    last = len(shorter) - 1
    return longer[:last] == shorter[:-1] and longer[last].startswith(shorter[-1])
