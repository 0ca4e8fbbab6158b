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
from mlxdoctor.cli import main

BY_NAME = {one.name: one for one in MISHAPS}
#: Name -> what the first screen has to say, in its order.
SAYS = {
    "keys-question": ("Rename question -> prompt and answer -> completion",),
    "keys-alpaca": ("Rename instruction -> prompt and output -> completion",),
    "template": ("instruct version", '{"text": ...}'),
    "rows-three": ("Set batch_size to 3 or less, or add rows",),
    "batch-validation": ("Add rows to valid.jsonl until it has 4", "batch_size to 2 or less"),
    "layers-default": ("Set num_layers to 4 or less, or to -1",),
    "rate-high": ("learning rate is too high", "learning_rate: 0.02 -> 0.00027"),
    "rate-low": ("learning rate is too low", "learning_rate: 1e-07 -> 0.00027"),
    "iterations-few": ("20 of the 200 rows", "iters: 5 -> 50", "one pass over the rows"),
    "iterations-many": ("overfitted", "only 4 rows", "iters: 150 -> 25"),
    "adapter-path-empty": ("without the adapter", "mlx_lm.lora --test --adapter-path"),
    "base-other": ("another base model", "Use the adapter with the base model"),
    "resume-rank": ("Set lora_parameters.rank to 16",),
    "mask-text": ("Set mask_prompt to false",),
    "truncation": ("cuts the answers off", "max_seq_length: 24 -> 61"),
    "folder-above": ("name one of them: folder-above/sound",),
    "folder-below": ("learning rate is too high", "learning_rate: 0.02 -> 0.00027"),
    "folder-data": ("training data", "name it with --log"),
    "folder-empty": ("holds nothing", "name an adapter folder, a training log"),
    "adapter-older": ("not the one that this run saved", "Use 0000100_adapters.safetensors"),
    "line-ends": ("learning rate is too high", "Divide the learning rate by ten"),
    "notebook": ("learning rate is too high", "Divide the learning rate by ten"),
    "wandb": ("learning rate is too high", "Divide the learning rate by ten"),
}
#: What only models can tell.
WITH_MODELS = {"adapter-path-forgotten", "tee"}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("played"), MAKERS, plays_back=True)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("mishaps"), MAKERS)


def test_every_mishap_is_asked_for_its_words() -> None:
    assert SAYS.keys() | WITH_MODELS == BY_NAME.keys()


@pytest.mark.parametrize("name", SAYS)
def test_the_first_screen_says_what_happened_and_what_to_do(
    played: Lab, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played.project(name)
    monkeypatch.chdir(played.root)
    main(["diagnose", *shlex.split(BY_NAME[name].commands[0]), "--no-generate"])
    printed = capsys.readouterr()
    text = " ".join((printed.out + printed.err).split())
    places = [text.find(words) for words in SAYS[name]]
    assert -1 not in places, text
    assert places == sorted(places), text


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["keys-alpaca", "rows-three", "batch-validation", "mask-text", "folder-data", "folder-empty"],
)
def test_made_anew_it_is_named_and_says_the_same(lab: Lab, name: str) -> None:
    shown = screens(lab, BY_NAME[name])
    assert is_named(BY_NAME[name].names, report(lab, BY_NAME[name]), shown)
    text = " ".join(shown[0].text.split())
    assert all(words in text for words in SAYS[name])


def test_the_recordings_show_no_path_of_the_machine() -> None:
    logs = [one.read_text() for one in RECORDED.rglob("*.log")]
    assert logs
    found = {place for text in logs for place in re.findall(r"/(?:tmp|work|root)\b\S*", text)}
    assert found == set()


def test_the_page_shows_every_mishap() -> None:
    headings = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
    assert headings == [one.name for one in MISHAPS]


def test_the_page_shows_no_path_of_the_machine() -> None:
    text = PAGE.read_text()
    assert str(FIXTURES.parent) not in text
    assert "/tmp/" not in text
