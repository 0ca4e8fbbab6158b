"""The gate as a whole: paths and a policy in, a `GateResult` out."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from itertools import count, zip_longest

from mlxdoctor.causes import load_causes
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.gate.baseline import Known
from mlxdoctor.gate.examine import Examined, Options, examine
from mlxdoctor.gate.policy import Policy
from mlxdoctor.gate.targets import Target, targets
from mlxdoctor.gate.weigh import Weighed, judge, notices, renewed
from mlxdoctor.gate.workers import cluster, examine_all, here, processes
from mlxdoctor.gate_result import GateItem, GateResult, ItemStatus
from mlxdoctor.safety.texts import as_seen_here

#: A pool of processes is not worth its start below as many items. Measured on two cores: it takes
#: 0.35 s to start, an adapter of 1 MB 6 ms, a whole run 0.11 s.
FEW_ITEMS = 8


def run_gate(
    paths: Iterable[str],
    policy: Policy,
    *,
    known: frozenset[Known] = frozenset(),
    accept_all: bool = False,
    options: Options | None = None,
    progress: Progress | None = None,
) -> tuple[GateResult, frozenset[Known]]:
    """Examine everything that `paths` names, and judge it by the policy.

    With `accept_all`, what fails an item becomes known, and what is gone is forgotten.

    Returns:
        The result, and the known findings that it was judged by.

    Raises:
        InputError: the cluster can't be used. Whatever is wrong with an item is in the result.
    """
    options, today = options or Options(), date.today()
    if options.generate:
        policy = replace(policy, rules=replace(policy.rules, require_generate=True))
    items = targets(paths)
    examined = _examined(items, replace(options, generate=False), progress)
    weighed, accepted = _judged(items, examined, policy, known, today, accept_all=accept_all)
    if options.generate:
        left = [number for number, item in enumerate(weighed) if item and _needs_models(item)]
        was_interrupted = None in examined
        asked = [] if was_interrupted else [items[number] for number in left]
        for number, answer in zip_longest(left, _examined(asked, options, progress)):
            examined[number] = answer
        weighed, accepted = _judged(items, examined, policy, known, today, accept_all=accept_all)
    done = list(filter(None, weighed))
    left_over = [item.path for item, made in zip(items, weighed, strict=True) if made is None]
    result = GateResult(
        items=tuple(item.item for item in done),
        policy=as_seen_here(str(policy.source)) if policy.source is not None else None,
        notices=tuple(notices(policy, done, today)),
        unfinished=tuple(left_over),
    )
    return result, accepted


def _judged(
    items: Sequence[Target],
    examined: Sequence[Examined | None],
    policy: Policy,
    known: frozenset[Known],
    today: date,
    *,
    accept_all: bool,
) -> tuple[list[Weighed | None], frozenset[Known]]:
    """What the policy makes of each item, None of one that was not reached; and what is known."""
    own: defaultdict[str, set[Known]] = defaultdict(set)
    for entry in known:
        own[entry.path].add(entry)
    weighed = [
        None
        if result is None
        else judge(item.path, result, policy, frozenset(own[policy.key(item.path)]), today)
        for item, result in zip(items, examined, strict=True)
    ]
    if not accept_all:
        return weighed, known
    known = renewed(known, list(filter(None, weighed)))
    return _judged(items, examined, policy, known, today, accept_all=False)


def exit_code(items: Sequence[GateItem]) -> int:
    """1 where an item failed, else 2 where one is unusable, else 3 where one is inconclusive."""
    worst = {item.status for item in items} - {ItemStatus.PASSED}
    return min(map(tuple(ItemStatus).index, worst), default=0)


def _needs_models(weighed: Weighed) -> bool:
    """Whether its files leave anything open: what only fails by effects may be sound all the same.

    An update that is as large as the weights is what Lion or a high rank makes of a sound run, too;
    and a suspicion without an error is for the models to settle.
    """
    effects = all(load_causes().is_effect(entry.code) for entry in weighed.failing)
    is_failed = weighed.item.status is ItemStatus.FAILED
    return weighed.item.report is not None and (effects or not is_failed)


def _examined(
    items: Sequence[Target], options: Options, progress: Progress | None
) -> list[Examined | None]:
    """What came of each item; None of one that was not reached."""
    results = [Examined(None, item.problem, 0.0) if item.problem else None for item in items]
    numbers = [number for number, item in enumerate(items) if not item.problem]
    if not numbers:
        return results
    # Workers elsewhere have another current folder.
    place: Callable[[str], str] = os.path.abspath if options.cluster else str
    paths = [place(items[number].path) for number in numbers]
    function = partial(examine, options=options)
    done = count(len(items) - len(numbers) + 1)

    def finished(number: int, examined: Examined) -> None:
        if options.cluster:
            examined = replace(examined, report=as_seen_here(examined.report))
        results[numbers[number]] = examined
        if progress is not None:
            progress("models" if options.generate else "gate", next(done), len(items))

    jobs = options.jobs or (1 if options.generate else os.cpu_count() or 1)
    if options.cluster:
        workers = cluster(options.cluster, function)
    elif len(paths) <= (1 if options.generate else FEW_ITEMS):
        workers = here(function)
    else:
        workers = processes(min(jobs, len(paths)), function)
    examine_all(paths, workers, finished)
    return results
