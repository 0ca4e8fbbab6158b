"""A user's own measure of an answer, compared between base and tuned model."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from mlxdoctor.evidence.kind import NotThere, RunView
from mlxdoctor.evidence.source import Source, hash_file
from mlxdoctor.models.generations import Generation, Generations
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.user_code import load_named
from mlxdoctor.safety.user_failure import UserCodeError, failure_of

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
        unscored: prompts for which the function gave no finite number, with the reason of
            the first.
    """

    kind: ClassVar[str] = "scores"
    needs_models: ClassVar[bool] = True

    sources: tuple[Source, ...]
    name: str
    items: tuple[ItemScore, ...]
    unscored: tuple[int, str] = (0, "")

    @classmethod
    def find(cls, run: RunView) -> "Scores":
        """The answers, scored by the function that the user named."""
        if run.options.score is None:
            raise NotThere("no scoring function was named; name one with --score")
        function, sources = load_function(run.options.score)
        return score(run.need(Generations), function, run.options.score, sources)


def load_function(name: str) -> tuple[ScoringFunction, tuple[Source, ...]]:
    """The function that the user named as `FILE.py:FUNCTION`, and its file as a source.

    This runs the user's code: call it for a name given on the command line only, never for
    one found in a run.

    Raises:
        InputError: as `load_named`, or it does not take two or three arguments.
    """
    function, file = load_named(name, "a scoring function")
    count = _arguments(function)
    if count not in (2, 3):
        remedy = "write it as (prompt, output) or (prompt, output, expected), returning a number"
        raise InputError(None, f"{name} takes {count} arguments", remedy)
    return function, (hash_file(file),)


def score(
    generations: Generations, function: ScoringFunction, name: str, sources: tuple[Source, ...] = ()
) -> Scores:
    """Score every answer of both models; a prompt without a finite score is left out and counted.

    Raises:
        InputError: no answer could be scored, or the function ends the program.
    """
    count = _arguments(function)

    def scored(item: Generation, output: str) -> float:
        value = float(function(*(item.prompt, output, item.expected)[:count]))
        if not math.isfinite(value):
            raise ValueError("the score is not finite")
        return value

    items: list[ItemScore] = []
    problems: list[str] = []
    for item in generations.distinct:
        try:
            base = None if item.base is None else scored(item, item.base)
            items.append(ItemScore(item.prompt, base, scored(item, item.tuned)))
        except UserCodeError:  # it ended the program
            raise
        except Exception as error:  # the user's code may raise anything
            # What it says may repeat the answer.
            problems.append(failure_of(error).what)
    reason = problems[0] if problems else ""
    if not items:
        problem = f"{name} could score no answer ({reason or 'there is no answer'})"
        raise InputError(None, problem, "run it on one by hand")
    unscored = (len(problems), reason)
    return Scores((*sources, *generations.sources), name, tuple(items), unscored)


def _arguments(function: Callable[..., Any]) -> int:
    """How many arguments it is called with: those it needs, and `expected` where it takes that."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    return sum(
        parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and (parameter.default is parameter.empty or parameter.name == "expected")
        for parameter in parameters
    )
