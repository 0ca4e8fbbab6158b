"""The prompt format of text rows against the chat template that the model is asked with.

What it finds. A chat model that was trained on questions and answers written as plain text,
under names of their own such as `### Instruction:`, and that learned them in that form only: in
its chat template, in which `mlx_lm.generate`, `mlx_lm.chat` and servers ask it, it has not.

Why it matters. The loss falls, the file loads, and the answers are the base model's, or a mixture.
Rows of `text` are trained on as they are: mlx-lm renders only `messages` and `prompt` with the
template.

How it is measured. The last question and answer of each text row are told apart by the names
before them. Base and tuned model read the same answers twice: as they stand in the rows, and
after the chat template's prompt with the same question. What was learned is how far the loss
fell, in nats a token; sign tests over 16 rows say whether it did, and whether less in the template.

When it is wrong. Where you ask the model in the rows' own format as well, nothing is lost. Rows
that are no questions and answers, and models without a chat template, are not judged.

What to do. Write the rows as `messages`, or as `prompt` and `completion`, and train again; or ask
in the rows' format, without the template (`--ignore-chat-template`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Cost, Inconclusive, check, limit
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom
from mlxdoctor.measure.text.statistics import sign_test
from mlxdoctor.measure.written_exchanges import WrittenExchanges
from mlxdoctor.safety.quoting import quoted


@dataclass(frozen=True)
class Limits:
    """When answers were learned in one form only."""

    rows: int = limit(8, unit="rows", source="fewer cannot reach p < 0.01 in a sign test")
    significance: float = limit(0.01, unit="p-value, sign test over rows", source="convention")
    learned: float = limit(
        0.2, unit="nats by which the loss fell in the rows' form", source="there is some to lose"
    )
    carried: float = limit(
        0.5,
        unit="of what was learned in the rows' form, in the template",
        source="designed: half is lost",
        false_alarms="not measured yet",
    )
    mostly: float = limit(
        0.85,
        unit="of what was learned in the rows' form, in the template, for a warning",
        source="0.76 where the answers were worse than those of five sound runs, 0.94 where they "
        "were as good",
        false_alarms="not measured yet",
    )
    lost: float = limit(
        0.3,
        unit="nats of what was learned in the rows' form, missing in the template, for an error",
        source="a perplexity up by a third; 2.4 to 3.3 in three runs of a small model, 0.14 in one "
        "of a real one",
        false_alarms="not measured yet",
    )
    worse: float = limit(
        0.3,
        unit="nats by which the template's loss lies above the rows' form's, for an error",
        source="a perplexity up by a third",
        false_alarms="not measured yet",
    )


@check(
    codes={
        "learned-in-another-format": Symptom.error(
            "answers were learned in the rows' own format, not in the chat template",
            expected="the chat template in training and in use",
            fix="Write the rows as messages, which mlx-lm renders with the template, or ask "
            "without it (--ignore-chat-template).",
        ),
        "learned-less-in-the-template": Symptom.warning(
            "less was learned in the chat template than in the rows' own format",
            expected="the chat template in training and in use",
            fix="Write the rows as messages, which mlx-lm renders with the template, or ask "
            "without it (--ignore-chat-template).",
        ),
    },
    cost=Cost.FORWARD,
    limits=Limits(),
    rerun_symptom=True,
)
def prompt_format(exchanges: WrittenExchanges, limits: Limits) -> Iterator[Sign | Seen]:
    """Compare what was learned in the rows' form with what is left of it in the template."""
    base, tuned = np.array(exchanges.base), np.array(exchanges.tuned)
    finite = np.isfinite(base).all(axis=1) & np.isfinite(tuned).all(axis=1)
    base, tuned = base[finite], tuned[finite]
    if len(base) < limits.rows:
        raise Inconclusive(f"{len(base)} rows are too few; {limits.rows} are needed")
    written, asked = (base - tuned).T
    means = [float(one) for one in (*base.mean(axis=0), *tuned.mean(axis=0))]
    measured: dict[str, Measurement] = {
        "rows": len(base),
        "base_as_written": round(means[0], 3),
        "base_in_template": round(means[1], 3),
        "tuned_as_written": round(means[2], 3),
        "tuned_in_template": round(means[3], 3),
        "p_value": sign_test(written - asked),
        "marks": tuple(quoted(mark) for mark in exchanges.marks),
    }
    said = (
        f"On {len(base)} answers of the rows the loss fell from {means[0]:.2f} to {means[2]:.2f} "
        f"as they are written there, after {quoted(exchanges.marks[1])}, and from "
        f"{means[1]:.2f} to {means[3]:.2f} after the chat template's prompt"
    )
    learned = float(written.mean())
    is_learned = learned > limits.learned and sign_test(written) < limits.significance
    is_less = sign_test(written - asked) < limits.significance
    if not is_learned or not is_less or float(asked.mean()) >= limits.mostly * learned:
        yield Seen(f"{said}.", measured)
        return
    if float(asked.mean()) >= limits.carried * learned:
        is_much = learned - float(asked.mean()) > limits.lost
        yield Sign(
            "learned-less-in-the-template",
            f"{said}: asked with its template, the model shows a part of what it learned.",
            measured,
            severity=Severity.ERROR if is_much else None,
        )
        return
    is_worse = means[3] - means[2] > limits.worse
    yield Sign(
        "learned-in-another-format",
        f"{said}: asked with its template, the model shows little of what it learned.",
        measured,
        severity=None if is_worse else Severity.WARNING,
    )
