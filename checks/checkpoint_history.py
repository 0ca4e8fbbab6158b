"""What the saved checkpoints say about the course of the run.

What it finds. Checkpoints that never change, or stop changing; a B that is zero in every
one of them, or zero again after it had been trained; the first checkpoint with NaN or
infinite values, and the last one without; an update that was already too large when it
was first saved, or jumped between two saves; a final file that is an older checkpoint;
and files that are unreadable or belong to another run.

Why it matters. Checkpoints date a failure when the log is lost, and tell which file is
still good. A checkpoint that is byte for byte the one before it means that training
changed nothing in between, whatever the log printed.

How it is measured. Files of equal size are compared by hash. Every value of every
checkpoint is read for norms and for NaN. The size of an update is ‖A·B‖ times the
configured scale over sqrt(min(in, out)), median over modules. Adam moves A and B by at
most a step at a time, so that between iterations t1 and t2 an update that started near
zero can grow by (t2/t1)² at most; half of that is expected of sound runs, and seldom
reached after the first save.

When it is wrong. A rate that was scheduled down to exactly zero stops the changes on
purpose. A folder used by two runs mixes their checkpoints.

What to do. Use the last sound checkpoint: `mlxdoctor diagnose RUN --adapter FILE` judges one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from statistics import median

from mlxdoctor.check import Cost, Inconclusive, check, limit
from mlxdoctor.evidence.checkpoints import Checkpoint, CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tensor import count_nonfinite
from mlxdoctor.finding import Finding, Severity
from mlxdoctor.measure.weights.drift import module_drifts
from mlxdoctor.safety.errors import InputError


@dataclass(frozen=True)
class Limits:
    """Thresholds of `checkpoint-history`."""

    large_first: float = limit(
        4.0,
        unit="‖ΔW‖/sqrt(min(in, out)), median over modules",
        source="the limit of weight-drift without a base model",
        false_alarms="0 of 19 healthy runs",
    )
    jump: float = limit(
        3.0,
        unit="growth of the update between two saves over the ratio of their iterations",
        source="healthy runs of mlx-lm stay below 1.0 from the first save on",
        false_alarms="0 of 19 healthy runs",
    )
    jump_size: float = limit(
        1.0,
        unit="‖ΔW‖/sqrt(min(in, out)) after the jump",
        source="a small update may grow fast without harm, as after a warm-up",
    )


@dataclass(frozen=True)
class _State:
    checkpoint: Checkpoint
    nonfinite: int
    trained: frozenset[str]
    zero: frozenset[str]
    size: float
    names: frozenset[str]


@check(
    codes={
        "never-changed": "all checkpoints are identical: nothing was trained",
        "stopped-changing": "the last checkpoints are identical",
        "zero-b-throughout": "B is exactly zero in every checkpoint",
        "b-erased": "a B that was trained is exactly zero in a later file",
        "non-finite": "checkpoints hold NaN or infinite values",
        "large-from-the-first": "the update was already far too large at the first save",
        "norm-jump": "the update grew suddenly between two saves",
        "final-is-older": "the final file is an older checkpoint than the last",
        "tensors-changed": "the checkpoints hold different tensors",
        "beyond-the-run": "checkpoints are numbered beyond the run's iterations",
        "unreadable": "a checkpoint cannot be read",
    },
    cost=Cost.WEIGHTS,
    limits=Limits(),
    rerun_symptom=True,
)
def checkpoint_history(
    history: CheckpointHistory, config: TrainingConfig | None, limits: Limits
) -> Iterator[Finding]:
    """Follow the adapter through its saves."""
    states: list[_State] = []
    unreadable: list[tuple[Checkpoint, InputError]] = []
    for checkpoint in history.checkpoints:
        try:
            states.append(_state(checkpoint, config))
        except InputError as error:
            unreadable.append((checkpoint, error))
    if unreadable:
        yield _unreadable(unreadable)
    numbered = [one for one in states if one.checkpoint.iteration is not None]
    if not numbered:
        raise Inconclusive("no numbered checkpoint can be read")
    yield from _nonfinite(states)
    yield from _leftovers(numbered, config)
    if len({one.names for one in numbered}) > 1:
        yield Finding(
            "checkpoint-history.tensors-changed",
            Severity.WARNING,
            f"The {len(numbered)} checkpoints do not all hold the same tensors: some belong to "
            "another run.",
            measured={"checkpoints": len(numbered), "kinds": len({one.names for one in numbered})},
            expected="the same tensors in every checkpoint",
            where=numbered[0].checkpoint.path.parent.name,
            fix="save every run into a folder of its own",
        )
        return
    yield from _unchanged(numbered)
    yield from _final(states)
    yield from _erased(states)
    if all(one.zero and not one.trained for one in numbered):
        yield Finding(
            "checkpoint-history.zero-b-throughout",
            Severity.ERROR,
            f"B is exactly zero in all {len(numbered)} checkpoints: the adapter was never trained.",
            measured={"checkpoints": len(numbered)},
            expected="B moves with the first update",
            fix="check that the learning rate is not zero and that gradients reach lora_b",
        )
    else:
        yield from _sizes(numbered, limits)


def _state(checkpoint: Checkpoint, config: TrainingConfig | None) -> _State:
    adapter = checkpoint.adapter
    drifts = module_drifts(adapter, config, None)
    factors = {name for one in adapter.modules for name in (one.a.name, one.b.name)}
    rest = [one for name, one in adapter.tensors.items() if name not in factors]
    sizes = [one.nominal for one in drifts]
    return _State(
        checkpoint,
        nonfinite=sum(one.statistics.a_nonfinite + one.statistics.b_nonfinite for one in drifts)
        + sum(map(count_nonfinite, rest)),
        trained=frozenset(one.module.name for one in drifts if not one.statistics.b_is_zero),
        zero=frozenset(one.module.name for one in drifts if one.statistics.b_is_zero),
        size=median(sizes) if sizes and all(map(isfinite, sizes)) else float("nan"),
        names=frozenset(adapter.tensors),
    )


def _unreadable(found: Sequence[tuple[Checkpoint, InputError]]) -> Finding:
    return Finding(
        "checkpoint-history.unreadable",
        Severity.WARNING,
        f"{len(found)} checkpoints cannot be read; {found[0][0].path.name} {found[0][1].problem}.",
        measured={"count": len(found)},
        expected="every checkpoint is a sound file",
        where=", ".join(one.path.name for one, _ in found[:3]),
        onset=found[0][0].iteration,
        fix="check the space on the disk, and whether the run was killed while it saved",
    )


def _nonfinite(states: Sequence[_State]) -> Iterator[Finding]:
    bad = [one for one in states if one.nonfinite]
    if not bad:
        return
    first = states.index(bad[0])
    sound = [one for one in states[:first] if not one.nonfinite]
    last = sound[-1].checkpoint.label if sound else None
    yield Finding(
        "checkpoint-history.non-finite",
        Severity.ERROR,
        f"{len(bad)} of {len(states)} saves hold NaN or infinite values, the first of them "
        f"{bad[0].checkpoint.label}; "
        + (f"the last sound one is {last}." if last else "none before it is sound."),
        measured={
            "saves": len(bad),
            "values": bad[0].nonfinite,
            "last_finite": sound[-1].checkpoint.iteration if sound else None,
        },
        expected="finite values only",
        where=bad[0].checkpoint.path.name,
        onset=bad[0].checkpoint.iteration,
        fix=f"use {sound[-1].checkpoint.path.name}" if sound else "lower the rate and train again",
    )


def _leftovers(numbered: Sequence[_State], config: TrainingConfig | None) -> Iterator[Finding]:
    iters = config.iters if config is not None and config.describes_training else None
    beyond = [one for one in numbered if iters and (one.checkpoint.iteration or 0) > iters]
    if beyond:
        yield Finding(
            "checkpoint-history.beyond-the-run",
            Severity.WARNING,
            f"{len(beyond)} checkpoints are numbered beyond the {iters} iterations of the run: "
            "they are from another one.",
            measured={"count": len(beyond), "iters": iters},
            expected=f"numbers up to {iters}",
            where=beyond[0].checkpoint.path.name,
            fix="save every run into a folder of its own",
        )


def _unchanged(numbered: Sequence[_State]) -> Iterator[Finding]:
    same = [a.checkpoint.sha256 == b.checkpoint.sha256 for a, b in pairwise(numbered)]
    # NaN stays NaN: that such files are alike says nothing more.
    if not same or not same[-1] or numbered[-1].nonfinite:
        return
    first = len(same) - next((i for i, one in enumerate(reversed(same)) if not one), len(same))
    begin, end = numbered[first].checkpoint.iteration, numbered[-1].checkpoint.iteration
    every = first == 0
    yield Finding(
        f"checkpoint-history.{'never-changed' if every else 'stopped-changing'}",
        Severity.ERROR if every else Severity.WARNING,
        f"The checkpoints from iteration {begin} to {end} are identical, bit for bit: "
        + ("nothing was trained." if every else "training stopped changing the adapter."),
        measured={"from": begin, "to": end, "identical": len(numbered) - first},
        expected="every update changes the adapter",
        where=numbered[-1].checkpoint.path.name,
        onset=begin,
        fix="check the rate schedule, and whether gradients reach the adapter",
    )


def _final(states: Sequence[_State]) -> Iterator[Finding]:
    if states[-1].checkpoint.iteration is not None:
        return
    *saved, final = (one.checkpoint for one in states)
    same = [one for one in saved if one.sha256 == final.sha256]
    if same and saved[-1].sha256 != final.sha256:
        yield Finding(
            "checkpoint-history.final-is-older",
            Severity.WARNING,
            f"{final.path.name} is the checkpoint of {same[-1].label}, and {saved[-1].label} was "
            "saved too.",
            measured={"final": same[-1].iteration, "last": saved[-1].iteration},
            expected="the final file is the last state",
            where=final.path.name,
            fix="make sure that the older state was chosen on purpose",
        )


def _erased(states: Sequence[_State]) -> Iterator[Finding]:
    for before, after in pairwise(states):
        lost = sorted(before.trained & after.zero)
        if lost:
            yield Finding(
                "checkpoint-history.b-erased",
                Severity.ERROR,
                f"The B of {len(lost)} of {len(after.zero | after.trained)} modules is exactly "
                f"zero in {after.checkpoint.label}, and was not in {before.checkpoint.label}: "
                "what had been trained was lost.",
                measured={
                    "modules": len(lost),
                    "last_trained": before.checkpoint.iteration,
                },
                expected="training never takes a whole B back to exactly zero",
                where=lost[0],
                onset=after.checkpoint.iteration,
                fix=f"use {before.checkpoint.path.name}, and check how the later file was saved",
            )
            return


def _sizes(numbered: Sequence[_State], limits: Limits) -> Iterator[Finding]:
    first = numbered[0]
    measured = {
        "iterations": tuple(one.checkpoint.iteration or 0 for one in numbered),
        "sizes": tuple(round(one.size, 6) for one in numbered),
    }
    if first.size >= limits.large_first:
        yield Finding(
            "checkpoint-history.large-from-the-first",
            Severity.WARNING,
            f"At the first save, {first.checkpoint.label}, the update was already about "
            f"{first.size:.3g} times as large as weights of these shapes usually are.",
            measured=measured,
            expected=f"below {limits.large_first:g}",
            where=first.checkpoint.path.name,
            onset=first.checkpoint.iteration,
            fix="none of these checkpoints is of use: lower the rate, and save earlier",
        )
    for before, after in pairwise(numbered):
        earlier, later = before.checkpoint.iteration or 0, after.checkpoint.iteration or 0
        if earlier <= 0 or not before.size > 0:
            continue
        growth = after.size / before.size / (later / earlier)
        if growth >= limits.jump and after.size >= limits.jump_size:
            yield Finding(
                "checkpoint-history.norm-jump",
                Severity.WARNING,
                f"Between iterations {earlier} and {later} the update grew "
                f"{after.size / before.size:.3g} times.",
                measured={**measured, "growth": after.size / before.size},
                expected=f"growth below {limits.jump * later / earlier:.3g} times",
                where=after.checkpoint.path.name,
                onset=later,
                fix=f"use {before.checkpoint.path.name}, and look at the loss between the two",
            )
            return
