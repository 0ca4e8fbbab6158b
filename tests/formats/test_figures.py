"""Pictures: any data can be drawn, the same each time, and hostile text is only text."""

import copy
import math
import struct
import warnings
from typing import Any

import pytest

from mlxdoctor.formats import figures
from tests.formats import sample
from tests.formats.test_escape import HOSTILE

MAX_BYTES = 60_000
NAN, INFINITE = math.nan, math.inf


def size(picture: bytes) -> tuple[int, int]:
    """Width and height in pixels, from the PNG header."""
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


def pictures_of(**changes: Any) -> dict[str, bytes]:
    """The pictures of a report, drawn without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return figures.draw(sample.made(sample.unhealthy() | changes))


def drawn(name: str, **changes: Any) -> tuple[int, int]:
    """The size of one picture."""
    data = copy.deepcopy(sample.unhealthy()["figures"][name])
    return size(pictures_of(figures={name: data | changes})[name])


@pytest.mark.slow
def test_each_figure_with_data_is_a_small_picture_the_same_each_time() -> None:
    pictures = pictures_of()
    assert list(pictures) == ["loss"]
    for picture in pictures.values():
        width, height = size(picture)
        assert 300 < width < 1_000
        assert 100 < height < 1_000
        assert len(picture) < MAX_BYTES
        assert b"Software" not in picture
    assert pictures_of() == pictures


def test_what_has_no_data_has_no_picture() -> None:
    assert pictures_of(figures={}) == {}


@pytest.mark.parametrize(
    "train",
    [
        None,
        {"iterations": [], "values": []},
        {"iterations": [10], "values": [2.0]},
        {"iterations": [10, 20], "values": [NAN, NAN]},
        {"iterations": [10, 20, 30], "values": [2.0, INFINITE, NAN]},
        {"iterations": [10, 20], "values": [0.0, 0.0]},
        {"iterations": [10, 20], "values": [1e-3, 1e6]},
        {"iterations": list(range(200_000)), "values": [2.0, 3.0, 9.0, 1.0] * 50_000},
    ],
)
@pytest.mark.parametrize("floors", [True, False])
def test_any_loss_can_be_drawn(train: dict[str, Any] | None, floors: bool) -> None:
    listed = sample.unhealthy()["figures"]["loss"]["floors"] if floors else []
    drawn("loss", train=train, val=None, floors=listed)


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_drawn_as_text(text: str) -> None:
    drawn("loss", axis=text, floors=[{"label": text, "value": 3.0}])


def test_one_entry_a_condition() -> None:
    told = [sample.rerun(seed=seed) for seed in range(3)]
    told += [sample.rerun(experiment="change", label="a change", seed=seed) for seed in range(9)]
    figure = figures.painted("experiments", [sample.made_experiment(each) for each in told])
    assert len(figure.axes[0].lines) == 12
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["rerun as recorded", "a change"]


@pytest.mark.parametrize(
    "values", [[NAN] * 3, [1.0, INFINITE, -INFINITE], [], [1e308, 1e-308, 0.0]]
)
def test_any_curve_of_a_rerun_can_be_drawn(values: list[float]) -> None:
    curve = {"iterations": list(range(len(values))), "values": values}
    told = sample.rerun(label=" ".join(HOSTILE), curve=curve)
    assert size(pictures_of(figures={}, experiments=[told])["experiments"])[0] > 300
