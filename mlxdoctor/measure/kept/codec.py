"""Values of evidence as JSON and back, by the annotations of their frozen dataclasses.

What is read back comes from a file that anybody may have written: each value must have the
type that its annotation says, and nothing is imported or called for it.
"""

from __future__ import annotations

import base64
import binascii
import collections.abc
import hashlib
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from math import prod
from typing import Any, Literal

import numpy as np

from mlxdoctor.evidence.source import Source
from mlxdoctor.measure.kept.on_demand import OnDemand
from mlxdoctor.safety.errors import InputError

#: How RFC 8259 is told of these, as in the JSON of a report.
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class UnfitValueError(ValueError):
    """A value that is not of the type that is annotated."""


@dataclass(frozen=True)
class Codec:
    """What is special about a run.

    Attributes:
        source_out: a file that was read, as JSON.
        source_in: the reverse; None where this machine lacks the file.
        need: other evidence of the same run, which a value may hold.
    """

    source_out: Callable[[Source], Any]
    source_in: Callable[[Any], Source | None]
    need: Callable[[type[Any]], Any]

    def to_json(self, evidence: Any) -> Any:
        """Evidence as JSON: a frozen dataclass.

        Raises:
            TypeError: a value of a type that it holds can't be kept.
        """
        kind: Any = type(evidence)
        return _dataclass(kind)[0](self, evidence)

    def from_json(self, value: Any, kind: Any) -> Any:
        """The reverse. A function is given back as an `OnDemand` that knows its answers only.

        Raises:
            UnfitValueError: it is not what `to_json` makes of evidence of this kind.
        """
        return _dataclass(kind)[1](self, value)

    def remembering(self, value: Any) -> Any:
        """Evidence whose functions remember what they are asked and answer."""
        hints = typing.get_type_hints(type(value))
        functions = {
            one.name: OnDemand(partial(_question, self, kind), getattr(value, one.name))
            for one in fields(value)
            if (kind := _function_kind(hints[one.name])) is not None
            and getattr(value, one.name) is not None
        }
        return replace(value, **functions) if functions else value


Writer = Callable[[Codec, Any], Any]
Reader = Callable[[Codec, Any], Any]


@cache
def _both(kind: Any) -> tuple[Writer, Reader]:
    """How values of a type are written and read."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if _is_union(kind):
        return _optional(arguments)
    if origin is Literal:
        return _plain, _one_of(arguments)
    if origin is tuple:
        return _tuple(arguments)
    if origin is collections.abc.Sequence:
        return _tuple((*arguments, ...))
    if origin is collections.abc.Mapping:
        return _mapping(*arguments)
    if origin is collections.abc.Callable:
        return _function(kind)
    if origin is np.ndarray:
        return _array(np.dtype(typing.get_args(arguments[1])[0]))
    if kind is Source:
        return (lambda codec, value: codec.source_out(value)), _source_in
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, type) and hasattr(kind, "find"):
        # Other evidence is kept by itself, or found again.
        return (lambda *_: None), (lambda codec, _: codec.need(kind))
    if is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind)
    raise TypeError(f"a value of {kind} can't be kept")


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def _source_in(codec: Codec, value: Any) -> Any:
    return codec.source_in(value)


def _plain(codec: Codec, value: Any) -> Any:
    del codec
    return value


def _exactly(kind: type) -> Reader:
    def read(codec: Codec, value: Any) -> Any:
        del codec
        if type(value) is not kind:
            raise UnfitValueError(f"{kind.__name__} is needed")
        return value

    return read


def _int_in(codec: Codec, value: Any) -> int:
    del codec
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise UnfitValueError("a whole number of 64 bits is needed")
    return value


def _float_out(codec: Codec, value: Any) -> Any:
    del codec
    value = float(value)
    if math.isfinite(value):
        return value
    return next(name for name, one in _NOT_FINITE.items() if repr(one) == repr(value))


def _float_in(codec: Codec, value: Any) -> float:
    del codec
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if type(value) not in (int, float):
        raise UnfitValueError("a number is needed")
    return float(value)


_PLAIN: Mapping[Any, tuple[Writer, Reader]] = {
    str: (_plain, _exactly(str)),
    bool: (lambda _, value: bool(value), _exactly(bool)),
    int: (lambda _, value: int(value), _int_in),
    float: (_float_out, _float_in),
    type(None): (_plain, _exactly(type(None))),
}


def _optional(arguments: tuple[Any, ...]) -> tuple[Writer, Reader]:
    others = [one for one in arguments if one is not type(None)]
    if len(others) != 1 or len(others) == len(arguments):
        raise TypeError(f"a value of {arguments} can't be kept")
    write, read = _both(others[0])
    return (
        lambda codec, value: None if value is None else write(codec, value),
        lambda codec, value: None if value is None else read(codec, value),
    )


def _one_of(values: tuple[Any, ...]) -> Reader:
    def read(codec: Codec, value: Any) -> Any:
        del codec
        if not isinstance(value, str | int | None) or value not in values:
            raise UnfitValueError(f"one of {values} is needed")
        return value

    return read


def _tuple(kinds: tuple[Any, ...]) -> tuple[Writer, Reader]:
    of_any_length = len(kinds) == 2 and kinds[1] is ...
    parts = [_both(one) for one in kinds if one is not ...]

    def of(value: Any) -> list[tuple[Writer, Reader]]:
        if not isinstance(value, list | tuple):
            raise UnfitValueError("a list is needed")
        if not of_any_length and len(value) != len(parts):
            raise UnfitValueError(f"{len(parts)} values are needed")
        return parts * len(value) if of_any_length else parts

    def write(codec: Codec, value: Any) -> Any:
        return [one[0](codec, item) for one, item in zip(of(value), value, strict=True)]

    def read(codec: Codec, value: Any) -> Any:
        items = [one[1](codec, item) for one, item in zip(of(value), value, strict=True)]
        # A file that is not on this machine.
        return tuple(one for one in items if one is not None or kinds[0] is not Source)

    return write, read


def _mapping(key: Any, item: Any) -> tuple[Writer, Reader]:
    write, read = _tuple((tuple[key, item], ...))

    def unique(codec: Codec, value: Any) -> Any:
        pairs = read(codec, value)
        found = dict(pairs)
        if len(found) != len(pairs):
            raise UnfitValueError("a key is there twice")
        return found

    return (lambda codec, value: write(codec, list(value.items()))), unique


def _array(dtype: np.dtype[Any]) -> tuple[Writer, Reader]:
    # The same bytes on every machine.
    stored = dtype.newbyteorder("<")

    def write(codec: Codec, value: Any) -> Any:
        del codec
        array = np.asarray(value)
        if array.dtype != dtype:
            raise TypeError(f"an array of {array.dtype} is not one of {dtype}")
        content = np.ascontiguousarray(array, stored).tobytes()
        return [list(array.shape), base64.b64encode(content).decode("ascii")]

    def read(codec: Codec, value: Any) -> Any:
        del codec
        match value:
            case [list(shape), str(text)] if all(type(n) is int and n >= 0 for n in shape):
                try:
                    content = base64.b64decode(text, validate=True)
                except (binascii.Error, ValueError):
                    raise UnfitValueError("base64 is needed") from None
                if len(shape) <= 4 and len(content) == prod(shape) * stored.itemsize:
                    return np.frombuffer(content, stored).reshape(shape).astype(dtype)
        raise UnfitValueError(f"an array of {dtype} is needed")

    return write, read


@cache
def _dataclass(kind: Any) -> tuple[Writer, Reader]:
    hints = typing.get_type_hints(kind)
    parts = {one.name: _both(hints[one.name]) for one in fields(kind)}

    def write(codec: Codec, value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"a {type(value).__name__} is no {kind.__name__}")
        return {name: one[0](codec, getattr(value, name)) for name, one in parts.items()}

    def read(codec: Codec, value: Any) -> Any:
        if not isinstance(value, dict) or value.keys() != parts.keys():
            raise UnfitValueError(f"the fields of {kind.__name__} are needed")
        made = kind(**{name: one[1](codec, value[name]) for name, one in parts.items()})
        fits = getattr(made, "fits_together", None)
        if fits is not None and not fits():
            raise UnfitValueError(f"the arrays of {kind.__name__} do not fit together")
        return made

    return write, read


def _function(kind: Any) -> tuple[Writer, Reader]:
    """A function is kept as its answers, each under the hash of what was asked."""
    write_answer, read_answer = _both(typing.get_args(kind)[1])

    def write(codec: Codec, value: OnDemand) -> Any:
        answers = [
            [name, None, [None if one.path is None else one.path.name, one.problem, one.remedy]]
            if isinstance(one, InputError)
            else [name, write_answer(codec, one), None]
            for name, one in value.answers.items()
        ]
        return {"answers": answers, "left_out": value.left_out}

    def read(codec: Codec, value: Any) -> OnDemand:
        answers: dict[str, Any] = {}
        match value:
            case {"answers": list(listed), "left_out": dict(left_out)} if _is_text(left_out):
                for one in listed:
                    match one:
                        case [str(name), None, [None | str() as path, str(why), str(remedy)]]:
                            answers[name] = InputError(path, why, remedy)
                        case [str(name), answer, None]:
                            answers[name] = read_answer(codec, answer)
                        case _:
                            raise UnfitValueError("an answer is needed")
                return OnDemand(partial(_question, codec, kind), None, answers, left_out)
        raise UnfitValueError("answers are needed")

    return write, read


def _function_kind(kind: Any) -> Any:
    """The function type in an annotation, or None."""
    if typing.get_origin(kind) is collections.abc.Callable:
        return kind
    found = [_function_kind(one) for one in typing.get_args(kind)] if _is_union(kind) else []
    return next(filter(None, found), None)


def _question(codec: Codec, kind: Any, arguments: tuple[Any, ...]) -> str:
    """The hash of what a function of this type is asked."""
    write, _ = _tuple(tuple(typing.get_args(kind)[0]))
    asked = write(codec, arguments)
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def _is_text(value: Mapping[Any, Any]) -> bool:
    return all(isinstance(one, str) for one in value.values())
