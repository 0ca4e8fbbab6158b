"""Everything that models measure can be kept."""

from __future__ import annotations

import inspect
import typing
from typing import Any

import numpy as np
import pytest

from mlxdoctor.measure.kept.codec import Codec, _dataclass
from mlxdoctor.measure.kept.measured_file import is_models
from mlxdoctor.members import modules_of
from mlxdoctor.models.losses import RowLosses, RowPass

PACKAGES = (
    "mlxdoctor.models",
    "mlxdoctor.measure",
    "mlxdoctor.measure.losses",
    "mlxdoctor.measure.text",
)


def measured_kinds() -> list[type[Any]]:
    """Every kind of evidence that finds itself with models."""
    found = {
        one
        for package in PACKAGES
        for module in modules_of(package)
        for one in vars(module).values()
        if isinstance(one, type) and hasattr(one, "find") and not is_models(one)
        if "Loaded" in inspect.getsource(one.find) or "_base_or_both" in inspect.getsource(one.find)
    }
    return sorted(found, key=lambda one: one.__name__)


def test_all_kinds_are_found() -> None:
    names = {one.__name__ for one in measured_kinds()}
    assert names >= {"ProducedGenerations", "PromptGains", "TokenLosses", "WrittenExchanges"}


@pytest.mark.parametrize("kind", measured_kinds())
def test_every_kind_that_is_measured_can_be_kept(kind: type[Any]) -> None:
    _dataclass(kind)
    assert "sources" in typing.get_type_hints(kind)


def codec() -> Codec:
    return Codec(lambda source: None, lambda value: None, lambda kind: None)


def a_pass(n: int) -> RowPass:
    losses = np.linspace(0, 1, n, dtype=np.float32)
    padding = {0: losses[:2], 7: losses[::2]}
    at = float("inf")
    return RowPass(losses, losses[1:], losses[2:], at, float("nan"), padding, 3, None, None)


def test_a_row_comes_back_as_it_was() -> None:
    tokens = np.arange(5, dtype=np.int32)
    row = RowLosses("train", 4, tokens, tokens.astype(np.int8), a_pass(5), None, 2)
    back = codec().from_json(codec().to_json(row), RowLosses)
    assert repr(back) == repr(row)
    assert back.base.next.dtype == np.float32
    assert back.roles.dtype == np.int8


def test_rows_whose_arrays_do_not_fit_are_refused() -> None:
    tokens = np.arange(6, dtype=np.int32)
    row = RowLosses("train", 4, tokens, tokens.astype(np.int8), a_pass(5), None)
    with pytest.raises(ValueError, match="do not fit together"):
        codec().from_json(codec().to_json(row), RowLosses)


def test_a_value_of_another_type_is_not_kept() -> None:
    tokens = np.arange(5)
    with pytest.raises(TypeError, match="int64 is not one of int32"):
        codec().to_json(RowLosses("train", 4, tokens, tokens, a_pass(5), None))


def test_numbers_that_no_token_has_are_refused() -> None:
    tokens = np.arange(5, dtype=np.int32)
    row = codec().to_json(RowLosses("train", 4, tokens, tokens.astype(np.int8), a_pass(5), None))
    with pytest.raises(ValueError, match="64 bits"):
        codec().from_json({**row, "index": 10**30}, RowLosses)
    with pytest.raises(ValueError, match="64 bits"):
        codec().from_json({**row, "index": True}, RowLosses)
