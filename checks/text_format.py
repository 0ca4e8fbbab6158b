"""Whether questions and answers in text rows are written as the model will be asked.

What it finds. Rows of text that hold a question and its answer under names of their own, such as
`### Instruction:` or `USER:`, or with the markers of a chat template written twice, for a model
that has a chat template.

Why it matters. mlx-lm trains on rows of `text` as they stand, and renders only `messages`, or
`prompt` and `completion`, with the template. `mlx_lm.generate`, `mlx_lm.chat` and servers ask with
the template: there, what was learned comes through in part, and the answer often does not end.

How it is measured. In each row the last question and answer are told apart by the names before
them, and the question is rendered with the model's template. The rows are in its format where the
text before the answer ends as the rendered question does. It is said where hardly any row is.

When it is wrong. Where the model is asked in the rows' own format as well, without the template,
all is well. Text that is no questions and answers is not judged, nor a model without a template.
With both models at hand, `prompt-format` measures how much of what was learned is lost.

What to do. Write the rows as `messages`, or as `prompt` and `completion`, and train again; or ask
in the rows' format, without the template (`--ignore-chat-template`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlxdoctor.check import Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.chat_template import TemplateFailure
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Severity, Sign, Symptom
from mlxdoctor.measure.text.exchanges import exchange_in, is_rendered
from mlxdoctor.safety.quoting import quoted

#: Characters of a name that are shown.
_SHOWN = 60
_CALIBRATION = "0 of 7 sound runs on rows of text, 0 of 2 text collections without exchanges"


@dataclass(frozen=True)
class Limits:
    """When text rows are exchanges in another format."""

    examined: int = limit(64, unit="rows, evenly", source="all are written by one program")
    rows: int = limit(8, unit="rows", source="fewer may be examples")
    exchanges: float = limit(
        0.9,
        unit="share of rows that are a question and its answer",
        source="1.0 of six tasks in four formats, 0.0 of rules and prose",
        false_alarms=_CALIBRATION,
    )
    rendered: float = limit(
        0.1,
        unit="share of these in the template's format, at most",
        source="designed: rows are written by one program, in one format",
        false_alarms=_CALIBRATION,
    )


@check(
    codes={
        "written-by-hand": Symptom.warning(
            "questions and answers are written as text in another format than the chat template's",
            expected="rows as messages, or text in the format that the chat template writes",
            fix="Write the rows as messages, which mlx-lm renders with the template, or ask "
            "without it (--ignore-chat-template).",
            in_a_plan=Severity.ERROR,
        )
    },
    limits=Limits(),
)
def text_format(dataset: Dataset, tokenizer: Tokenizer, limits: Limits) -> Iterator[Sign]:
    """Compare the rows' format with the template's."""
    train = dataset.splits.get("train")
    if train is None or train.format != "text":
        raise NotApplicable("the rows are written with the chat template, not as text")
    if tokenizer.chat_template is None and not tokenizer.renders_itself:
        raise NotApplicable("the model has no chat template")
    step = max(len(train.rows) // limits.examined, 1)
    texts = [row.get(dataset.features.text) for row in train.rows[::step]][: limits.examined]
    found = [exchange_in(text) for text in texts if isinstance(text, str)]
    exchanges = [one for one in found if one is not None]
    if len(exchanges) < max(limits.exchanges * len(texts), limits.rows):
        return
    same = 0
    for one in exchanges:
        try:
            asked = [{"role": "user", "content": one.asked}]
            same += is_rendered(one, tokenizer.render(asked, add_generation_prompt=True))
        except TemplateFailure as refused:
            raise Inconclusive(f"the chat template refuses a plain question: {refused}") from None
    if same > limits.rendered * len(exchanges):
        return
    first, second = (quoted(mark, _SHOWN) for mark in exchanges[0].marks)
    yield Sign(
        "written-by-hand",
        f"The rows of {train.path.name} are questions and answers written as text, after {first} "
        f"and {second}, and the model has a chat template of its own: asked with that, it is asked "
        "otherwise than it was trained.",
        {
            "rows": len(texts),
            "exchanges": len(exchanges),
            "in_the_template": same,
            "marks": exchanges[0].marks,
        },
        where=f"{train.path.name}, line {train.line_numbers[0]}",
    )
