"""Text rows with questions and answers, read as written and in the template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxdoctor.measure.written_exchanges import WrittenExchanges
from mlxdoctor.run import Run
from tests.conftest import FIXTURES, RUNS

GEOGRAPHY = FIXTURES / "data" / "geography" / "train.jsonl"


def rows_as(pattern: str, folder: Path) -> Path:
    """The first of the geography rows, written in that pattern."""
    rows = []
    for line in GEOGRAPHY.read_text().splitlines()[:20]:
        asked, answered = (one["content"] for one in json.loads(line)["messages"])
        rows.append(json.dumps({"text": pattern.format(asked, answered)}))
    (folder / "train.jsonl").write_text("\n".join(rows))
    return folder


def test_what_was_learned_in_the_template_is_less_in_another_form(tmp_path: Path) -> None:
    data = rows_as("### Instruction:\n{}\n\n### Response:\n{}", tmp_path)
    found = Run.discover([RUNS / "healthy-ordinary"], data=data).get(WrittenExchanges)
    assert found is not None
    assert found.marks == ("### Instruction:", "### Response:")
    assert len(found.base) == len(found.tuned) == 16
    written, template = (sum(pair[at] for pair in found.tuned) / 16 for at in (0, 1))
    assert template < 0.3 < written


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("{1}", "the rows are text, and no questions with answers"),
        (
            "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n",
            "the model has no chat template, or the rows are written in it",
        ),
    ],
)
def test_rows_that_have_no_form_of_their_own(pattern: str, why: str, tmp_path: Path) -> None:
    run = Run.discover([RUNS / "healthy-ordinary"], data=rows_as(pattern, tmp_path))
    assert run.get(WrittenExchanges) is None
    assert run.why_missing(WrittenExchanges) == why


def test_rows_of_messages_are_written_in_the_template() -> None:
    run = Run.discover([RUNS / "healthy-ordinary"])
    assert run.get(WrittenExchanges) is None
    assert "chat template" in run.why_missing(WrittenExchanges)
