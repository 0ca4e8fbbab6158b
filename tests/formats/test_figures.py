from __future__ import annotations

import copy
import struct
import warnings
from typing import Any

import pytest

from mlxdoctor.formats import figures
from tests.formats import sample
from tests.formats.test_escape import HOSTILE

MAX_BYTES = 60_000
NAN = float("nan")


def size(picture: bytes) -> tuple[int, int]:
    """Width and height in pixels, from the PNG header."""
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


def pictures_of(data: dict[str, Any]) -> dict[str, bytes]:
    return figures.draw(sample.made(sample.unhealthy() | {"figures": data}))


def drawn(name: str, **changes: Any) -> bytes:
    data = copy.deepcopy(sample.unhealthy()["figures"])
    data[name] |= changes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return pictures_of({name: data[name]})[name]


@pytest.mark.slow
def test_each_figure_with_data_is_a_small_picture() -> None:
    pictures = pictures_of(sample.unhealthy()["figures"])
    assert list(pictures) == ["loss", "drift", "checkpoints", "tokens", "labels"]
    for picture in pictures.values():
        width, height = size(picture)
        assert 300 < width < 1_000
        assert 100 < height < 1_000
        assert len(picture) < MAX_BYTES


def test_a_figure_without_data_is_not_drawn() -> None:
    assert pictures_of({}) == {}


@pytest.mark.slow
def test_pictures_are_the_same_each_time_and_name_no_version() -> None:
    first = pictures_of(sample.unhealthy()["figures"])
    figures.drawn_once.cache_clear()
    again = pictures_of(sample.unhealthy()["figures"])
    assert figures.drawn_once.cache_info().hits == 0
    assert first == again
    assert all(b"Software" not in picture for picture in first.values())


@pytest.mark.parametrize(
    "train",
    [
        None,
        {"iterations": [], "values": []},
        {"iterations": [10], "values": [2.0]},
        {"iterations": [10, 20], "values": [NAN, NAN]},
        {"iterations": [10, 20, 30], "values": [2.0, float("inf"), NAN]},
        {"iterations": [10, 20], "values": [0.0, 0.0]},
        {"iterations": [10, 20], "values": [1e-3, 1e6]},
        {"iterations": list(range(200_000)), "values": [2.0, 3.0, 9.0, NAN] * 50_000},
    ],
)
@pytest.mark.parametrize("floors", [True, False])
def test_any_loss_can_be_drawn(train: dict[str, Any] | None, floors: bool) -> None:
    listed = sample.unhealthy()["figures"]["loss"]["floors"] if floors else []
    size(drawn("loss", train=train, val=None, floors=listed))


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        [[0.0, 0.0], [0.0, 0.0]],
        [[NAN, NAN], [NAN, NAN]],
        [[1e-6, 1.0], [0.0, NAN]],
        [[5.0, 5.0], [5.0, 5.0]],
        [[float("inf"), 1.0], [2.0, 3.0]],
    ],
)
def test_any_drift_can_be_drawn(values: list[list[float]]) -> None:
    size(drawn("drift", rows=["layer 0", "layer 1"], columns=["a", "b"], values=values))


@pytest.mark.slow
def test_a_deep_model_still_fits() -> None:
    rows = [f"layer {index}" for index in range(200)]
    width, height = size(drawn("drift", rows=rows, columns=["q"], values=[[1.0]] * 200))
    assert height < 1_100
    assert width < 1_000


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_tokens_are_drawn_as_text(text: str) -> None:
    tokens = [{"text": text, "region": "answer", "target": True}]
    size(drawn("labels", tokens=tokens, split=text))
    size(drawn("tokens", tokens=[text], base=None, tuned=[1.0]))
    size(drawn("loss", axis=text, floors=[{"label": text, "value": 3.0}]))


@pytest.mark.slow
def test_a_long_row_is_shortened_in_the_middle() -> None:
    token = {"text": "word", "region": "answer", "target": True}
    _, height = size(drawn("labels", tokens=[token] * 5_000))
    assert height < 1_000


def test_no_tokens_at_all_can_be_drawn() -> None:
    size(drawn("labels", tokens=[]))
    size(drawn("tokens", tokens=[], base=[], tuned=[]))
