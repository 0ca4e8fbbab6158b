"""Questions and answers in plain text."""

import pytest

from mlxdoctor.evidence.exchanges import exchange_in, exchanges_of


@pytest.mark.parametrize(
    "text",
    [
        "### Instruction:\nWhat floats?\n\n### Response:\nIce floats.",
        "Question: What floats?\nAnswer: Ice floats.",
        "Q: What floats?\nA: Ice floats.",
        "<human>: ...\n<bot>: ...\n<human>: What floats?\n<bot>: Ice floats.",
        "[INST] What floats? [/INST] Ice floats.",
        "<s>[INST] Hello [/INST] Hi </s>[INST] What floats? [/INST] Ice floats. </s>",
        "<|user|>\nWhat floats?<|end|>\n<|assistant|>\nIce floats.<|end|>",
        "[|user|]What floats?[|endofturn|]\n[|assistant|]Ice floats.[|endofturn|]\n",
        "<|im_start|><|im_start|>user\nWhat floats?<|im_end|>\n<|im_start|><|im_start|>assistant\n"
        "Ice floats.<|im_end|>",
        "<|start_header_id|>user<|end_header_id|>\n\nWhat floats?<|eot_id|>\n"
        "<|start_header_id|>assistant<|end_header_id|>\n\nIce floats.<|eot_id|>",
        "<start_of_turn>user\nWhat floats?<end_of_turn>\n<start_of_turn>model\nIce floats.",
        "**Question:** What floats?\n**Answer:** Ice floats.",
    ],
)
def test_an_exchange(text: str) -> None:
    found = exchange_in(text)
    assert found.asked.removeprefix(":").strip() == "What floats?"
    assert found.answered.removeprefix(":").strip() == "Ice floats."
    assert text.startswith(found.before)
    assert "Ice" not in found.before


@pytest.mark.parametrize(
    "text",
    [
        "The easy method is to ship a configuration: a file.\n\nThe hard method is to build it.",
        "On: mace\n\nMy plan does not propose to fill your lobby.\n    -Edmund Burke",
        "Note: read this.\nWarning: and this.",
        "Answer: nothing was asked.",
        "Question: What floats?\nAnswer:",
        "",
    ],
)
def test_no_exchange(text: str) -> None:
    assert exchange_in(text) is None


@pytest.mark.parametrize(
    ("texts", "asked", "before", "answered"),
    [
        (["Two plates. => chef", "A cake. => baker"], "Two plates.", "Two plates. =>", "chef"),
        (["IN> Two?\nOUT> plates", "IN> A?\nOUT> cake"], "Two?", "IN> Two?\nOUT>", "plates"),
        (["MAIL: Two\nROUTE: b</s>"] * 3, "Two", "MAIL: Two\nROUTE:", "b"),
        (["Q: Two?\nA: plates", "Q: A?\nA: cake"], "Two?", "Q: Two?\nA:", "plates"),
    ],
)
def test_marks_that_texts_have_in_common(texts, asked, before, answered) -> None:
    read = exchanges_of(texts)
    found = read(texts[0])
    assert (found.asked, found.before, found.answered) == (asked, before, answered)


@pytest.mark.parametrize(
    "texts",
    [
        [],
        ["Once there was a fox.", "It sang."],
        ["Wind: east\nAir: dry\nAdvice: swim"] * 4,
        ["Two plates. => chef", "A cake.", "A story of its own.", "Another."],
        ["a -> b -> c"] * 4,
        ["STATION Corv\nWind: east\nAdvice: swim"] * 4,
    ],
)
def test_texts_without_marks_in_common(texts) -> None:
    assert exchanges_of(texts) is None
