"""What the saved checkpoints say about the course of the run.

What it finds. Checkpoints that never change, or stop changing; a B that is zero in every
one of them, or zero again after it had been trained; the first checkpoint with NaN or
infinite values, and the last one without; an update that was already too large when it
was first saved, or jumped between two saves; a final file that is an older checkpoint, or
of another run; and files that are unreadable or belong to another run.

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
from math import isfinite, nan
from statistics import median

from mlxdoctor.check import Cost, Inconclusive, check, limit
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import Checkpoint, CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Exhibit, Severity, Sign, Symptom
from mlxdoctor.judge.save_flaws import sizes_shown
from mlxdoctor.judge.update_size import CourseLimits, has_jumped
from mlxdoctor.measure.exhibited import saves_shown
from mlxdoctor.measure.weights.save_norms import SaveState, follow
from mlxdoctor.measure.weights.starts import start_likeness


@dataclass(frozen=True)
class Limits(CourseLimits):
    """When the course of the saves is not that of a sound run, or not of one run."""

    other_run: float = limit(
        2.0,
        unit="size of the final update over the largest of the checkpoints",
        source="a run that saves its last iteration writes the same file again: 1 exactly",
        false_alarms="0 of the runs in fixtures/runs",
    )
    own_start: float = limit(
        0.9,
        unit="least cosine between the factors A of two saves of the run",
        source="0.989 or more in 21 fixture runs, sound and faulty",
        false_alarms="0 of 21 fixture runs, with `other_start`",
    )
    other_start: float = limit(
        0.5,
        unit="cosine of the final file's factors A with those of the last save",
        source="1.000 in the same runs; A is drawn anew for another seed, and the cosine is 0.0",
    )


@check(
    codes={
        "never-changed": Symptom.error(
            "all checkpoints are identical: nothing was trained",
            "every update changes the adapter",
            "check the rate schedule, and whether gradients reach the adapter",
        ),
        "stopped-changing": Symptom.warning(
            "the last checkpoints are identical",
            "every update changes the adapter",
            "check the rate schedule, and whether gradients reach the adapter",
        ),
        "zero-b-throughout": Symptom.error(
            "B is exactly zero in every checkpoint",
            "B moves with the first update",
            "check that the learning rate is not zero and that gradients reach lora_b",
        ),
        "b-erased": Symptom.error(
            "a B that was trained is exactly zero in a later file",
            "training never takes a whole B back to exactly zero",
        ),
        "non-finite": Symptom.error(
            "checkpoints hold NaN or infinite values",
            "finite values only",
            "lower the rate and train again",
        ),
        "large-from-the-first": Symptom.warning(
            "the update was already far too large at the first save",
            fix="none of these checkpoints is of use: lower the rate, and save earlier",
        ),
        "norm-jump": Symptom.warning("the update grew suddenly between two saves"),
        "final-is-older": Symptom.warning(
            "the final file is an older checkpoint than the last",
            "the final file is the last state",
            "make sure that the older state was chosen on purpose",
        ),
        "final-of-another-run": Symptom.warning(
            "the final file is not of the run that saved the checkpoints",
            "the last checkpoint of a run that came to its end, or one between its checkpoints",
            "use the last numbered checkpoint, or copy the run's own adapters.safetensors back",
        ),
        "tensors-changed": Symptom.warning(
            "the checkpoints hold different tensors",
            "the same tensors in every checkpoint",
            "save every run into a folder of its own",
        ),
        "beyond-the-run": Symptom.warning(
            "checkpoints are numbered beyond the run's iterations",
            fix="save every run into a folder of its own",
        ),
        "unreadable": Symptom.warning(
            "a checkpoint cannot be read",
            "every checkpoint is a sound file",
            "check the space on the disk, and whether the run was killed while it saved",
        ),
    },
    cost=Cost.WEIGHTS,
    limits=Limits(),
    rerun_symptom=True,
)
def checkpoint_history(
    history: CheckpointHistory,
    config: TrainingConfig | None,
    base: BaseModel | None,
    log: TrainingLog | None,
    limits: Limits,
) -> Iterator[Sign | Exhibit]:
    """Follow the adapter through its saves."""
    yield saves_shown(history)
    yield from sizes_shown(history, config, base, log)
    followed = follow(history, config, None)
    yield from _unreadable([one for one in followed.saves if one.problem])
    saves = [one for one in followed.saves if not one.problem]
    numbered = [one for one in saves if one.checkpoint.iteration is not None]
    if not numbered:
        raise Inconclusive("no numbered checkpoint can be read")
    yield from _nonfinite(saves)
    yield from _leftovers(numbered, config)
    kinds = len({one.tensors for one in numbered})
    if kinds > 1:
        yield Sign(
            "tensors-changed",
            f"The {len(numbered)} checkpoints do not all hold the same tensors: some belong to "
            "another run.",
            {"checkpoints": len(numbered), "kinds": kinds},
            where=numbered[0].checkpoint.path.parent.name,
        )
        return
    yield from _unchanged(numbered)
    yield from _final(saves)
    yield from _of_another_run(saves, config, limits)
    yield from _erased(saves)
    if all(one.is_zero for one in numbered):
        yield Sign(
            "zero-b-throughout",
            f"B is exactly zero in all {len(numbered)} checkpoints: nothing had been trained when "
            "they were saved.",
            {"checkpoints": len(numbered)},
        )
    elif followed.quantity == "nominal":
        yield from _sizes(numbered, limits)


def _unreadable(found: Sequence[SaveState]) -> Iterator[Sign]:
    if found:
        first = found[0].checkpoint
        yield Sign(
            "unreadable",
            f"{len(found)} checkpoints cannot be read; {first.path.name} {found[0].problem}.",
            {"count": len(found)},
            where=", ".join(one.checkpoint.path.name for one in found[:3]),
            onset=first.iteration,
        )


def _nonfinite(saves: Sequence[SaveState]) -> Iterator[Sign]:
    bad = [one for one in saves if one.nonfinite]
    if not bad:
        return
    first = saves.index(bad[0])
    sound = saves[first - 1].checkpoint if first else None
    yield Sign(
        "non-finite",
        f"{len(bad)} of {len(saves)} saves hold NaN or infinite values, the first of them "
        f"{bad[0].checkpoint.label}; "
        + (f"the last sound one is {sound.label}." if sound else "none before it is sound."),
        {
            "saves": len(bad),
            "values": bad[0].nonfinite,
            "last_finite": sound.iteration if sound else None,
        },
        where=bad[0].checkpoint.path.name,
        onset=bad[0].checkpoint.iteration,
        fix=f"use {sound.path.name}" if sound else None,
    )


def _leftovers(numbered: Sequence[SaveState], config: TrainingConfig | None) -> Iterator[Sign]:
    iters = config.iters if config is not None and config.describes_training else None
    beyond = [one for one in numbered if iters and (one.checkpoint.iteration or 0) > iters]
    if beyond:
        yield Sign(
            "beyond-the-run",
            f"{len(beyond)} checkpoints are numbered beyond the {iters} iterations of the run: "
            "they are from another one.",
            {"count": len(beyond), "iters": iters},
            where=beyond[0].checkpoint.path.name,
            expected=f"numbers up to {iters}",
        )


def _unchanged(numbered: Sequence[SaveState]) -> Iterator[Sign]:
    same = [a.checkpoint.is_same_as(b.checkpoint) for a, b in pairwise(numbered)]
    # NaN stays NaN: that such files are alike says nothing more.
    if not same or not same[-1] or numbered[-1].nonfinite:
        return
    first = len(same) - next((i for i, one in enumerate(reversed(same)) if not one), len(same))
    begin, end = numbered[first].checkpoint.iteration, numbered[-1].checkpoint.iteration
    every = first == 0
    yield Sign(
        "never-changed" if every else "stopped-changing",
        f"The checkpoints from iteration {begin} to {end} are identical, bit for bit: "
        + (
            "nothing was trained between them."
            if every
            else "training stopped changing the adapter."
        ),
        {"from": begin, "to": end, "identical": len(numbered) - first},
        where=numbered[-1].checkpoint.path.name,
        onset=begin,
    )


def _final(saves: Sequence[SaveState]) -> Iterator[Sign]:
    *saved, final = (one.checkpoint for one in saves)
    if final.iteration is not None:
        return
    same = [one for one in saved if one.is_same_as(final)]
    if same and not saved[-1].is_same_as(final):
        yield Sign(
            "final-is-older",
            f"{final.path.name} is the checkpoint of {same[-1].label}, and {saved[-1].label} was "
            "saved too.",
            {"final": same[-1].iteration, "last": saved[-1].iteration},
            where=final.path.name,
        )


def _of_another_run(
    saves: Sequence[SaveState], config: TrainingConfig | None, limits: Limits
) -> Iterator[Sign]:
    """A final file with another start, or far from every save of a run that saved its last."""
    *numbered, final = saves
    iters = config.iters if config is not None and config.describes_training else None
    if final.checkpoint.iteration is not None or not numbered:
        return
    last = numbered[-1].checkpoint
    if any(one.nonfinite for one in saves):
        return
    started = list(_started_elsewhere([one.checkpoint for one in saves], iters, limits))
    yield from started
    if started or last.iteration != iters:
        return
    sizes = [median(module.size for module in one.modules) for one in saves if one.modules]
    if len(sizes) < len(saves) or not all(isfinite(one) and one > 0 for one in sizes):
        return
    # The best state, or a mean of several, is smaller than the last or between the saves.
    *between, found = sizes
    if found <= max(between) * limits.other_run:
        return
    ratio = found / between[-1]
    yield Sign(
        "final-of-another-run",
        f"The update in {final.checkpoint.path.name} is {ratio:.3g} times that in "
        f"{last.path.name}, saved at iteration {last.iteration}, with which the run ended: it is "
        "the file of another run.",
        {"ratio": ratio, "last": last.iteration, "final_size": found, "last_size": between[-1]},
        where=final.checkpoint.path.name,
        expected=f"at most {limits.other_run:g} times the sizes of the checkpoints",
        fix=_own_file(last, final.checkpoint),
    )


def _started_elsewhere(
    saves: Sequence[Checkpoint], iters: int | None, limits: Limits
) -> Iterator[Sign]:
    """A final file whose factors A were drawn by another seed than the checkpoints'."""
    *numbered, final = saves
    last = numbered[-1]
    own = [start_likeness(a.adapter, b.adapter) for a, b in pairwise(numbered)]
    # A single save tells nothing of how far A moves, unless nothing was trained after it.
    is_settled = all(one >= limits.own_start for one in own) if own else last.iteration == iters
    likeness = start_likeness(last.adapter, final.adapter)
    if not is_settled or not likeness <= limits.other_start:
        return
    yield Sign(
        "final-of-another-run",
        f"The factors A of {final.path.name} have nothing to do with those of {last.path.name} "
        f"(cosine {likeness:.2f}"
        + (f"; {min(own):.3f} or more between the run's own saves" if own else "")
        + "). They are drawn at random when a run begins and move little: it is the file of "
        "another run.",
        {
            "cosine": round(likeness, 3),
            "last": last.iteration,
            "own_cosine": min(own, default=None),
        },
        where=final.path.name,
        severity=Severity.ERROR,
        expected=f"a cosine above {limits.other_start:g}",
        fix=_own_file(last, final),
    )


def _own_file(last: Checkpoint, final: Checkpoint) -> str:
    return (
        f"use {last.path.name} (copy it over {final.path.name}), and save every run into a folder "
        "of its own"
    )


def _erased(saves: Sequence[SaveState]) -> Iterator[Sign]:
    for earlier, later in pairwise(saves):
        trained = {one.name for one in earlier.modules if not one.is_zero}
        lost = sorted(one.name for one in later.modules if one.is_zero and one.name in trained)
        if lost:
            before, after = earlier.checkpoint, later.checkpoint
            yield Sign(
                "b-erased",
                f"The B of {len(lost)} of {len(later.modules)} modules is exactly zero in "
                f"{after.label}, and was not in {before.label}: what had been trained was lost.",
                {"modules": len(lost), "last_trained": before.iteration},
                where=lost[0],
                onset=after.iteration,
                fix=f"use {before.path.name}, and check how the later file was saved",
            )
            return


def _sizes(numbered: Sequence[SaveState], limits: CourseLimits) -> Iterator[Sign]:
    # Modules without an update count here: they are of one adapter, and so comparable.
    every = [[module.size for module in one.modules] for one in numbered]
    sizes = [median(one) if one and all(map(isfinite, one)) else nan for one in every]
    iterations = [one.checkpoint.iteration or 0 for one in numbered]
    first = numbered[0].checkpoint
    measured = {
        "iterations": tuple(iterations),
        "sizes": tuple(round(size, 6) for size in sizes),
    }
    if sizes[0] >= limits.nominal_large:
        yield Sign(
            "large-from-the-first",
            f"At the first save, {first.label}, the update was already about {sizes[0]:.3g} times "
            "as large as weights of these shapes usually are.",
            measured,
            where=first.path.name,
            onset=first.iteration,
            expected=f"below {limits.nominal_large:g}",
        )
    for place, ((earlier, before), (later, after)) in enumerate(
        pairwise(zip(iterations, sizes, strict=True))
    ):
        if earlier <= 0 or not before > 0:
            continue
        growth = after / before
        if has_jumped(growth, later / earlier, after, limits):
            yield Sign(
                "norm-jump",
                f"Between iterations {earlier} and {later} the update grew {growth:.3g} times.",
                {**measured, "growth": growth},
                where=numbered[place + 1].checkpoint.path.name,
                onset=later,
                expected=f"growth below {limits.jump * later / earlier:.3g} times",
                fix=f"use {numbered[place].checkpoint.path.name}, and look at the loss between the "
                "two",
            )
            return
