"""A cause in the code of the run's own trainer: the fault put into ours, which has not got it.

causes.toml names the faults (`inject`), the likeliest first: those of the ward
(mlxdoctor/train/faults), and those below. Each form is tried, that which the findings show
first and then the severest, until one is the same failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mlxdoctor.causes import Cause
from mlxdoctor.experiments import counterfactual
from mlxdoctor.experiments.shared.bench import Bench, Failure
from mlxdoctor.experiments.shared.observation import Condition, Observation
from mlxdoctor.experiments.shared.rules import Question, Ruling, Trials, judge_injection
from mlxdoctor.finding import Severity
from mlxdoctor.train.faults import FAULTS, Fault
from mlxdoctor.train.faults.of_trainer import Padding
from mlxdoctor.train.settings import Settings


def padding_shown(failure: Failure, settings: Settings) -> tuple[Padding, ...]:
    """The padding that the findings tell of: the token that was learned, and the width counted."""
    findings = [one for outcome in failure.outcomes for one in outcome.findings]
    # A note tells of the one padding token that mlx-lm trains after each row.
    found = [one.measured for one in findings if one.severity is not Severity.INFO]
    tokens = [one for one in (each.get("pad_id") for each in found) if isinstance(one, int)]
    counted = [each.get("tokens_per_iteration") for each in found]
    per_row = [one / settings.batch_size for one in counted if isinstance(one, int | float)]
    # A whole number a row in every batch: rows are padded to a width of their own.
    widths = [round(one) + 1 for one in per_row if one == round(one)]
    return tuple(Padding(token, width) for token in tokens for width in (*widths, None))


#: What findings say of the form of a fault, by its id.
SHOWN: Mapping[str, Callable[[Failure, Settings], Sequence[Any]]] = MappingProxyType(
    {"padding-in-batch": padding_shown}
)


def forms_of(fault: Fault, bench: Bench) -> list[Any]:
    """The severities to try: what the findings show first, and then the severest."""
    recipe = bench.lab.recipe
    settings = recipe.settings(Path("adapters"), 1, recipe.seed)
    shown = SHOWN[fault.id](bench.failure, settings) if fault.id in SHOWN else ()
    return list(dict.fromkeys((*shown, *reversed(fault.severities))))


@counterfactual(
    of="sound",
    shows=lambda cause: bool(cause.inject),
)
def inject_fault(bench: Bench, cause: Cause, question: Question, plain: Trials) -> Ruling | None:
    """Rerun with each form of the fault; None where the configuration itself has the fault.

    It has where the cure is to set a value that it lacks. A smaller batch, say, is always to
    be had: that says nothing of whose fault it is.
    """
    restores = cause.change is not None and cause.change.operation == "set"
    if restores and bench.failure.fixes(bench.lab.recipe.config, cause):
        return None

    def is_same(seed: int, one: Observation) -> bool:
        del seed
        return question.is_recreated(one)

    rulings: list[Ruling] = []
    for fault in (FAULTS[name] for name in cause.inject):
        for severity in forms_of(fault, bench):
            condition = Condition(
                "injection",
                f"with the fault {fault.id} ({severity})",
                bench.failure.iterations,
                fault=fault,
                severity=severity,
            )
            injected = bench.until_decided(
                condition, bench.failure.seeds, question, cause.id, is_same, screen=True
            )
            rulings.append(judge_injection(question, plain, injected))
            if rulings[-1].verdict == "confirmed":
                return rulings[-1]
    order = ("refuted", "undecided", "confirmed")
    return max(rulings, key=lambda one: (order.index(one.verdict), one.strength))
