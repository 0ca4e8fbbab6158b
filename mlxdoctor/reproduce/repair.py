"""The experiment for a cause that lies in the rows: the same run on repaired ones."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from mlxdoctor.causes import Cause
from mlxdoctor.reproduce.bench import Bench
from mlxdoctor.reproduce.case import Case
from mlxdoctor.reproduce.condition import Condition, Kind
from mlxdoctor.reproduce.observation import Observation
from mlxdoctor.reproduce.rules import Judgement, Question, Trials, judge_change

#: Causes with a repair; see `data_repairs.REPAIRS`.
REPAIRED = frozenset({"bad-data", "end-token-flood"})
_IRRELEVANT = {
    "another order": "another order of the rows",
    "random rows": "as many rows left out at random",
}


def try_repair(bench: Bench, cause: Cause, question: Question, plain: Trials) -> Judgement:
    """Rerun on repaired rows, and with a placebo.

    Args:
        plain: reruns as recorded, of which at least one fails.
    """
    from mlxdoctor.reproduce.data_repairs import REPAIRS

    known = REPAIRS[cause.id]
    severity = known.repair.severities[-1]
    if known.named is not None:
        severity = tuple(known.named[code] for code in _found(bench.case, known.named.keys()))
        if not severity:
            return Judgement(
                "undecided",
                "the findings name no rows that could be left out or repaired; which rows are "
                "wrong, only somebody who knows the answers can say",
            )
    # Other rows than the run's own may have errors of their own.
    asked = replace(question, strict=False)
    failing = [seed for seed, one in plain.items() if asked.shows(one)]

    def is_cured(seed: int, one: Observation) -> bool:
        return asked.is_cured(plain[seed], one, None)

    label = known.repair.id + (f" ({', '.join(severity)})" if known.named is not None else "")
    condition = Condition("repair", label, bench.case.iterations, None, cause.id, severity)
    changed = bench.until_decided(condition, failing, asked, cause.id, is_cured)
    judgement = judge_change(asked, plain, {}, changed, None, what=label)
    if judgement.verdict == "confirmed":
        kind: Kind = "another order"
        if known.placebo is None:
            placebo = bench.placebo(asked, changed)
        else:
            kind = "random rows"
            without = replace(condition, kind=kind, label=known.placebo.id)
            placebo = {seed: bench.observe(without, seed, asked) for seed in changed}
        words = {"what": label, "irrelevant": _IRRELEVANT[kind]}
        return judge_change(asked, plain, placebo, changed, None, **words)
    if judgement.verdict == "refuted" and known.failed == "undecided":
        reason = f"{judgement.reason}; other rows than those that the findings name may be at fault"
        return Judgement("undecided", reason)
    return judgement


def _found(case: Case, codes: Collection[str]) -> tuple[str, ...]:
    every = [one.code for outcome in case.outcomes for one in outcome.findings]
    return tuple(dict.fromkeys(code for code in every if code in codes))
