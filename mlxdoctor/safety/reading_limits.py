"""How much of a file is read before it is refused: names, defaults, and how to raise them.

What is inspected may have been made by an enemy or by a crash. Every reader stops at a limit
from here, and its error names the limit. `--limit NAME=VALUE` raises one for a command, the
environment variable `MLXDOCTOR_LIMITS` for all of them (`NAME=VALUE,NAME=VALUE`).
"""

import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from mlxdoctor.safety.errors import InputError

#: Where limits are read from; processes that are started inherit it.
VARIABLE = "MLXDOCTOR_LIMITS"

_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_VALUE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


@dataclass(frozen=True)
class ReadingLimits:
    """The most that is read. Beside each: its unit, and where its default comes from."""

    header_bytes: int = 100_000_000  # the safetensors format's own limit
    tensors: int = 1_000_000  # tensors in a file; the largest models have 200,000
    json_bytes: int = 64 << 20  # a weight index of 200,000 tensors has 20 MB
    json_depth: int = 64  # levels; configurations nest 6 deep
    yaml_bytes: int = 256 << 10  # configurations have a few kilobytes
    policy_bytes: int = 256 << 10  # project files have under 100 kB
    yaml_values: int = 20_000  # values, aliases written out; real ones have under 200
    data_bytes: int = 512 << 20  # parsed in memory, at five times its size
    text_bytes: int = 256 << 20  # generations and metrics have a few megabytes
    answer_characters: int = 1 << 20  # characters; 128,000 tokens have half of that
    log_bytes: int = 8 << 30  # a log is streamed, at about a minute a gigabyte
    log_rows: int = 2_000_000  # reports: 0.1 GB, a month of one report a second
    log_forms: int = 1_000  # kinds of report; a run prints under 20
    log_runs: int = 2_000  # runs in a log; a log that was appended to has under 20
    line_characters: int = 8_192  # characters; reports have under 1,000
    hashed_bytes: int = 512 << 20  # a second of hashing
    tokenizer_bytes: int = 256 << 20  # the largest known have 35 MB
    template_bytes: int = 256 << 10  # the largest known have 20 kB
    template_seconds: float = 2.0  # seconds a rendering; real ones take a millisecond
    template_characters: int = 4 << 20  # characters; a row of a million tokens
    tokenizer_seconds: float = 5.0  # seconds a text; a row of a million tokens takes one
    source_bytes: int = 512 << 10  # trainers have under 200 kB
    source_nodes: int = 100_000  # nodes of the syntax tree; mlx-lm has one to 5 bytes
    adapter_bytes: int = 8 << 30  # bytes of factors; 94 layers of 128 experts have 7 GB
    modules: int = 50_000  # modules of an adapter; 94 layers of 128 experts have 36,096
    rank: int = 8_192  # directions of an update; the largest published have 1,024
    folder_entries: int = 20_000  # names in a folder; runs have under 1,000
    folder_files: int = 2_000  # files looked at; runs have under 1,000
    folder_levels: int = 2  # levels of folders; trainers write one level deep
    check_seconds: float = 1800.0  # a check with its evidence; 3 s at most on 12 runs of the ward
    code_seconds: float = 50.0  # busy seconds a call of code of your own
    stage_bytes: int = 1_700_000_000  # of a step, beside the weights it reads; models take more


NAMES = tuple(one.name for one in fields(ReadingLimits))


def current() -> ReadingLimits:
    """The limits in force: the defaults, with what the environment variable raises.

    Raises:
        InputError: the variable names no limit, or gives a value that is none.
    """
    return _parsed(os.environ.get(VARIABLE, ""))


@lru_cache(maxsize=64)
def _parsed(text: str) -> ReadingLimits:
    return with_values(ReadingLimits(), (one for one in text.split(",") if one.strip()), VARIABLE)


def with_values(limits: ReadingLimits, stated: Iterable[str], where: str) -> ReadingLimits:
    """Limits with the stated `NAME=VALUE` set; values may end in K, M, G or T.

    Args:
        where: the option or variable that states them, for the error.

    Raises:
        InputError: there is no such limit, or the value is no positive number.
    """
    for one in stated:
        name, equals, value = one.partition("=")
        name = name.strip()
        if name not in NAMES or not equals:
            known = ", ".join(f"{each.name}={each.default:,}" for each in fields(ReadingLimits))
            raise InputError(None, f"{where} {one!r} names no limit", f"there are {known}")
        match = _VALUE.fullmatch(value.strip())
        number = float(match[1]) * _SUFFIXES[match[2].upper()] if match else math.nan
        if not 0 < number < 2**62:
            problem = f"{where} {name}={value} is no positive number"
            raise InputError(None, problem, "write it as 300, 64M or 2G")
        is_float = isinstance(getattr(ReadingLimits, name), float)
        changed: dict[str, Any] = {name: number if is_float else max(1, round(number))}
        limits = replace(limits, **changed)
    return limits


@contextmanager
def using(stated: Iterable[str]) -> Iterator[None]:
    """Set limits while something is read, here and in processes started meanwhile.

    Raises:
        InputError: as `with_values`.
    """
    before, stated = os.environ.get(VARIABLE, ""), tuple(stated)
    with_values(current(), stated, "--limit")
    os.environ[VARIABLE] = ",".join((before, *stated))
    try:
        yield
    finally:
        os.environ[VARIABLE] = before


def exceeded(path: Path | str | None, problem: str, name: str) -> InputError:
    """The error for what goes beyond a limit: `problem`, the limit, and how to raise it."""
    problem = f"{problem}, over the limit {name} of {getattr(current(), name):,}"
    return InputError(path, problem, f"if you trust it, raise that with --limit {name}=N")
