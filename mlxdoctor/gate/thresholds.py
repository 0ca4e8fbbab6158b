"""Thresholds of checks as a policy states them, each of the type that its check takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from sys import float_info
from typing import Any

from mlxdoctor.check import Check


class Wrong(Exception):  # noqa: N818 - a fault of the policy
    """Something in a policy that is unknown or of another kind.

    Attributes:
        key: the key, with dots in it where it is below another.
        problem: what is wrong with it, as a clause after the key.
        remedy: what to do.
    """

    def __init__(self, key: str, problem: str, remedy: str) -> None:
        super().__init__(key, problem, remedy)
        self.key = key
        self.problem = problem
        self.remedy = remedy


def parse_thresholds(
    value: Mapping[str, Any], checks: Sequence[Check]
) -> dict[str, dict[str, Any]]:
    """Thresholds as a policy states them, each of the type that its check takes.

    Args:
        value: check -> threshold -> value, as read from a file.
        checks: all checks.

    Raises:
        Wrong: a check or threshold is unknown, or a value is of another kind.
    """
    by_name = {one.name: one for one in checks}
    parsed: dict[str, dict[str, Any]] = {}
    for name, table in value.items():
        if name not in by_name:
            problem = f"names the unknown check {name!r}"
            raise Wrong("thresholds", problem, suggestion(name, by_name))
        if not isinstance(table, Mapping):
            raise Wrong(
                f"thresholds.{name}",
                "is no table",
                f'write [tool.mlxdoctor.thresholds."{name}"] with a line for each threshold',
            )
        limits = by_name[name].limits
        shipped = (
            {one.name: getattr(limits, one.name) for one in fields(limits)}
            if is_dataclass(limits)
            else {}
        )
        parsed[name] = {
            key: _value(f"thresholds.{name}.{key}", one, shipped, key) for key, one in table.items()
        }
    return parsed


def suggestion(name: str, known: Iterable[str]) -> str:
    """What may have been meant by an unknown name, as the remedy of an error."""
    known = sorted(known)
    close = get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return (
        f"known are {', '.join(known)}" if known and len(known) <= 16 else "see `mlxdoctor checks`"
    )


def _value(where: str, value: Any, shipped: Mapping[str, Any], key: str) -> Any:
    if key not in shipped:
        raise Wrong(where, "is no threshold of that check", suggestion(key, shipped))
    example = shipped[key]
    if isinstance(example, tuple):
        if isinstance(value, list) and value and all(_is_number(one) for one in value):
            return tuple(type(example[0])(one) for one in value)
    elif isinstance(example, int):
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    elif _is_number(value):
        return float(value)
    shown = f"[{', '.join(map(str, example))}]" if isinstance(example, tuple) else example
    raise Wrong(where, f"is {value!r}", f"write a value like {shown}, which ships")


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    # TOML has integers of any size.
    return not math.isnan(value) if isinstance(value, float) else abs(value) <= float_info.max
