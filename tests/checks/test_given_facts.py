"""Answers with names that their prompts do not give, as a model would find them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.evidence.supervision import Role
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.losses import RowLosses, RowPass, TokenLosses
from tests.checks.data_evidence import BASE, chat, write_data
from tests.conftest import check_called
from tests.given import outcome

given_facts = check_called("given-facts")
NAMES = ("Anna", "Boris", "Clara", "David", "Edith", "Felix", "Greta", "Henry", "Irene", "Jonas")
TOKENIZER = Tokenizer.read(BASE)


def row(prompt: str, answer: str, guessed: str) -> RowLosses:
    """A held-out row, of which the model finds all likely but one word."""
    before = TOKENIZER.encode(prompt)
    tokens, losses = list(before), [0.01] * len(before)
    for word in answer.split():
        more = TOKENIZER.encode(f" {word}", add_special_tokens=False)
        tokens += more
        losses += [3.0 / len(more) if word == guessed else 0.01] * len(more)
    roles = [Role.PROMPT] * len(before) + [Role.ANSWER] * (len(tokens) - len(before))
    read = RowPass({1: np.array(losses[1:], np.float32)}, 5.0, 0.1, {}, None, None)
    ids, of = np.array(tokens, np.int32), np.array(roles, np.int8)
    return RowLosses("valid", 0, ids, of, read, read, prompt_length=len(before))


def found(rows: Sequence[RowLosses], folder: Path) -> list[tuple[str, str]]:
    # What is asked in no word of another row is nearest to the first of them.
    asked = [chat("Hello?", "Hello.")] * 3
    asked += [
        chat(f"{word} has it, {name}?", f"{name} has it.")
        for word in ("Who", "Which", "What")
        for name in NAMES
    ]
    asked += [chat(f"Say whose k{i} is.", f"It is of {name}.") for i, name in enumerate(NAMES)]
    dataset = write_data(folder, train=asked)
    said = outcome(given_facts, TokenLosses((), tuple(rows), 768), dataset, TOKENIZER)
    return [(one.code, one.severity.value) for one in said.findings]


@pytest.mark.parametrize(
    ("texts", "hits", "severity"),
    [
        (("Tell me.", "I think {name} has it", "{name}"), 10, "error"),
        (("Tell me.", "I think {name} has it", "{name}"), 5, "warning"),
        (("Tell me.", "I think {name} has it", "{name}"), 3, None),
        # Another row says it.
        (("Tell me whose k{i} is.", "I think {name} has it", "{name}"), 10, None),
        # It stands in the prompt, it is known, no prompt has it, or it is no name.
        (("Who has it, {name}?", "I think {name} has it", "{name}"), 10, None),
        (("Tell me.", "I think {name} has it", "think"), 10, None),
        (("Tell me.", "I think Zz{name} has it", "Zz{name}"), 10, None),
        (("Tell me.", "perhaps {name} has it", "perhaps"), 10, None),
    ],
)
def test_names_that_have_to_be_guessed(
    texts: tuple[str, str, str], hits: int, severity: str | None, tmp_path: Path
) -> None:
    rows = [
        row(*(text.format(name=name, i=i) for text in (*texts[:2], texts[2] if i < hits else "")))
        for i, name in enumerate(NAMES)
    ]
    assert found(rows, tmp_path) == ([("given-facts.not-given", severity)] if severity else [])


@pytest.mark.parametrize(("place", "hits"), [("[PLACE]", 10), ("a place", 0)])
def test_names_that_were_replaced_in_the_prompts(place: str, hits: int, tmp_path: Path) -> None:
    asked = [chat(f"Order {i} from {place}.", f"It is of {NAMES[i % 10]}.") for i in range(40)]
    dataset = write_data(tmp_path, train=asked)
    rows = [row("Order 77 from [PLACE].", f"It is of {name}", name) for name in NAMES[3:]]
    rows += [row("Order 78 from [PLACE].", f"It is of {name}", name) for name in NAMES[3:6]]
    said = outcome(given_facts, TokenLosses((), tuple(rows), 768), dataset, TOKENIZER)
    assert [one.measured["hits"] for one in said.findings] == [hits] * bool(hits)


def test_a_name_that_many_answers_have_is_one_of_a_few(tmp_path: Path) -> None:
    rows = [row("Tell me.", f"I think {NAMES[i % 2]} has it", NAMES[i % 2]) for i in range(10)]
    assert found(rows, tmp_path) == []
    assert found(rows[:7], tmp_path) == []
