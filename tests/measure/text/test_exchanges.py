"""Questions and answers in plain text."""

import pytest

from mlxdoctor.measure.text.exchanges import exchange_in


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
