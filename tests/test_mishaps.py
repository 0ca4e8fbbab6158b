"""The mishaps that fixtures/lab/mishaps makes, and their first screens.

Played back from what was recorded, without running a model; the quickest are made anew as well.
"""

import re
import shlex

import pytest

from fixtures.lab.mishaps.__main__ import PAGE
from fixtures.lab.mishaps.catalogue import MAKERS, MISHAPS
from fixtures.lab.mishaps.project import Lab
from fixtures.lab.mishaps.recordings import FIXTURES, RECORDED
from fixtures.lab.mishaps.screens import is_named, report, screens
from tests.conftest import Call

BY_NAME = {one.name: one for one in MISHAPS}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("played"), MAKERS, plays_back=True)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("mishaps"), MAKERS)


@pytest.mark.parametrize("name", [one.name for one in MISHAPS if one.says])
def test_the_first_screen_says_what_happened_and_what_to_do(
    played: Lab, name: str, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    played.project(name)
    monkeypatch.chdir(played.root)
    (command, *_) = BY_NAME[name].commands or (name,)
    _, out, err = call("diagnose", *shlex.split(command), "--stdout", "text", "--no-generate")
    text = " ".join((out + err).split())
    places = [text.find(words) for words in BY_NAME[name].says]
    assert -1 not in places, text
    assert places == sorted(places), text


@pytest.mark.sweep(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["keys-alpaca", "rows-three", "batch-validation", "mask-text", "folder-data", "folder-empty"],
)
def test_made_anew_it_is_named_and_says_the_same(lab: Lab, name: str) -> None:
    shown = screens(lab, BY_NAME[name])
    assert is_named(BY_NAME[name].names, report(lab, BY_NAME[name]), shown)
    text = " ".join(shown[0].text.split())
    assert all(words in text for words in BY_NAME[name].says)


def test_the_recordings_and_the_page_show_no_path_of_the_machine() -> None:
    logs = [one.read_text() for one in RECORDED.rglob("*.log")]
    assert logs
    texts = [*logs, PAGE.read_text()]
    found = {place for text in texts for place in re.findall(r"/(?:tmp|work|root)\b\S*", text)}
    assert found == set()
    assert str(FIXTURES.parent) not in texts[-1]


def test_the_page_shows_every_mishap() -> None:
    headings = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
    assert headings == [one.name for one in MISHAPS]
