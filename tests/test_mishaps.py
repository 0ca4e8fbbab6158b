"""The quickest of the mishaps that fixtures/lab/mishaps.py makes, and their first screens."""

import re
from pathlib import Path

import pytest

from fixtures.lab import mishaps
from fixtures.lab.mishaps import MISHAPS, PAGE, Lab, is_named

BY_NAME = {one.name: one for one in MISHAPS}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("mishaps"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("keys-alpaca", "Rename instruction -> prompt and output -> completion"),
        ("rows-three", "Set batch_size to 3 or less"),
        ("batch-validation", "Add rows to valid.jsonl until it has 4"),
        ("mask-text", "mask_prompt"),
        ("folder-data", "data"),
        ("folder-empty", "holds nothing"),
    ],
)
def test_first_screen_names_it_and_says_what_to_do(lab: Lab, name: str, words: str) -> None:
    screens, report = lab.screens(BY_NAME[name]), lab.report(BY_NAME[name])
    assert is_named(BY_NAME[name].names, report, screens)
    assert words in " ".join(screens[0].text.split())


def test_the_page_shows_every_mishap() -> None:
    headings = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
    assert headings == [one.name for one in MISHAPS]


def test_the_page_shows_no_path_of_the_machine() -> None:
    text = PAGE.read_text()
    assert str(Path(mishaps.FIXTURES).parent) not in text
    assert "/tmp/" not in text
