"""A user's own measure of an answer, compared between base and tuned model."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mlxdoctor.errors import InputError
from mlxdoctor.evidence.generations import Generation, Generations
from mlxdoctor.evidence.source import Source, hash_file

#: Takes prompt, output and, if it has a third parameter, the expected answer; higher is better.
ScoringFunction = Callable[..., float]


@dataclass(frozen=True)
class ItemScore:
    """Both models' scores on one prompt; `base` is None where its answer is unknown."""

    prompt: str
    base: float | None
    tuned: float


@dataclass(frozen=True)
class Scores:
    """Scores of the answers, prompt by prompt.

    Attributes:
        sources: the scoring function's file and the answers'.
        name: the function, as the user named it.
        items: one entry a prompt that could be scored.
        unscored: prompts for which the function gave no finite number, with the reason of
            the first.
    """

    kind: ClassVar[str] = "scores"

    sources: tuple[Source, ...]
    name: str
    items: tuple[ItemScore, ...]
    unscored: tuple[int, str] = (0, "")


def load_function(name: str) -> tuple[ScoringFunction, tuple[Source, ...]]:
    """The function that the user named as `FILE.py:FUNCTION` or `package.module:function`.

    This runs the user's code: call it for a name given on the command line only, never for
    one found in a run.

    Returns:
        The function, and its file as a source.

    Raises:
        InputError: the name has no colon, or there is no such file, module or function, or
            importing it fails, or it does not take two or three arguments.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise InputError(
            None, f"{name!r} names no scoring function", "write FILE.py:FUNCTION or module:function"
        )
    path = Path(place)
    module = _from_file(path) if path.suffix == ".py" else _from_module(place)
    function = getattr(module, attribute, None)
    if not callable(function):
        raise InputError(place, f"has no function {attribute!r}", "check the name")
    count = _arguments(function)
    if count not in (2, 3):
        raise InputError(
            place,
            f"{attribute} takes {count} arguments",
            "write it as (prompt, output) or (prompt, output, expected), returning a number",
        )
    file = inspect.getsourcefile(module)
    sources = (hash_file(Path(file)),) if file is not None else ()
    return function, sources


def score(
    generations: Generations,
    function: ScoringFunction,
    name: str,
    sources: tuple[Source, ...] = (),
) -> Scores:
    """Score every answer of both models.

    An exception of the function, or a result that is not a finite number, leaves the prompt
    out and is counted.

    Raises:
        InputError: no answer could be scored.
    """
    with_expected = _arguments(function) == 3
    items: list[ItemScore] = []
    problems: list[str] = []
    for item in generations.distinct:
        try:
            base = _one(function, item, item.base, with_expected)
            tuned = _one(function, item, item.tuned, with_expected)
        except Exception as error:  # the user's code may raise anything
            problems.append(f"{type(error).__name__}: {error}")
            continue
        if (
            tuned is None
            or not math.isfinite(tuned)
            or (base is not None and not math.isfinite(base))
        ):
            problems.append("the score is not finite")
            continue
        items.append(ItemScore(item.prompt, base, tuned))
    if not items:
        reason = problems[0] if problems else "there is no answer"
        raise InputError(None, f"{name} could score no answer ({reason})", "run it on one by hand")
    unscored = (len(problems), problems[0] if problems else "")
    return Scores((*sources, *generations.sources), name, tuple(items), unscored)


def _one(
    function: ScoringFunction, item: Generation, output: str | None, with_expected: bool
) -> float | None:
    if output is None:
        return None
    arguments: tuple[Any, ...] = (item.prompt, output)
    return float(function(*arguments, item.expected) if with_expected else function(*arguments))


def _arguments(function: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(
        one.kind in positional
        and (one.default is inspect.Parameter.empty or one.name == "expected")
        for one in parameters
    )


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise InputError(path, "there is no such file", "check the path of the scoring function")
    specification = importlib.util.spec_from_file_location(f"mlxdoctor_score_{path.stem}", path)
    if specification is None or specification.loader is None:
        raise InputError(path, "cannot be imported", "name a Python file")
    module = importlib.util.module_from_spec(specification)
    # Dataclasses and pickles in the user's file look their module up by name.
    sys.modules[specification.name] = module
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        del sys.modules[specification.name]
        raise InputError(
            path, f"fails when imported ({type(error).__name__}: {error})", "run it by hand"
        ) from error
    return module


def _from_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise InputError(
            None,
            f"the module {name!r} cannot be imported ({type(error).__name__}: {error})",
            "install it, or name a file as FILE.py:FUNCTION",
        ) from error
