from pathlib import Path

from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.prompts import prompts_for
from tests.checks.data_evidence import BASE, chat, write_data


def test_of_a_few_answers_each_is_asked_for_as_often(tmp_path: Path) -> None:
    rows = [chat(f"What is {i}?", "rare" if i > 96 else "usual") for i in range(100)]
    dataset = write_data(tmp_path, train=rows[:2], valid=rows)
    asked = prompts_for(dataset, Tokenizer.read(BASE), held_out=8)
    assert [one.expected for one in asked[:6]] == ["usual", "rare"] * 3
    many = write_data(tmp_path, train=rows[:2], valid=[chat(f"{i}?", f"{i}.") for i in range(100)])
    asked = prompts_for(many, Tokenizer.read(BASE), held_out=8)
    assert [one.expected for one in asked[:3]] == ["0.", "1.", "2."]
