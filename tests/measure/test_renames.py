import pytest

from mlxdoctor.measure.text.renames import how_to_rename


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"instruction": "a", "input": "b", "output": "c"},
            "rename instruction -> prompt and output -> completion in every row, with the text of "
            "input added to it where there is some; or set prompt_feature: instruction, "
            "completion_feature: output",
        ),
        (
            {"question": "a", "answer": "b"},
            "rename question -> prompt and answer -> completion in every row; or set "
            "prompt_feature: question, completion_feature: answer",
        ),
        (
            {"prompt": "a", "response": "b"},
            "rename response -> completion in every row; or set completion_feature: response",
        ),
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
            "rename conversations -> messages in every row, from -> role and value -> content in "
            "every message, and the roles gpt -> assistant, human -> user",
        ),
        (
            {"dialog": [{"role": "user", "content": "a"}]},
            "rename dialog -> messages in every row, or set chat_feature: dialog",
        ),
        ({"content": "a"}, "rename content -> text in every row, or set text_feature: content"),
        (
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            "rename chosen -> completion in every row; or set completion_feature: chosen; "
            "mlx_lm.lora leaves rejected out, and a trainer of DPO or ORPO learns from both",
        ),
        ({"id": 1, "label": 0}, None),
        ({"conversations": "a"}, None),
    ],
)
def test_what_is_said_of_a_row(row: dict[str, object], said: str | None) -> None:
    assert how_to_rename(row) == said
