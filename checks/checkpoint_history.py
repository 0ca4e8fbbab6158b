"""What the saved checkpoints say about the course of the run.

What it finds. Checkpoints that never change, or stop changing; a B that is zero in every
one of them, or zero again after it had been trained; the first checkpoint with NaN or
infinite values, and the last one without; an update that was already too large when it
was first saved, or jumped between two saves; a final file of another run; and files that
are unreadable.

Why it matters. Checkpoints date a failure when the log is lost, and tell which file is
still good. A checkpoint that is byte for byte the one before it means that training
changed nothing in between, whatever the log printed.

How it is measured. Files are compared by hash. Every value of every checkpoint is read for
norms and for NaN. The size of an update is ‖A·B‖ times the configured scale over
sqrt(min(in, out)), median over modules. Adam moves A and B by at most a step at a time, so
that between iterations t1 and t2 an update that started near zero can grow by (t2/t1)² at
most; half of that is expected of sound runs, and seldom reached after the first save. A is
drawn at random when a run begins and moves little: its first values tell runs apart.

When it is wrong. A rate that was scheduled down to exactly zero stops the changes on
purpose. A folder used by two runs mixes their checkpoints.

What to do. Use the last sound checkpoint: `mlxdoctor diagnose RUN --adapter FILE` judges one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from mlxdoctor.check import Cost, Inconclusive, check, limit
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Exhibit, Measurement, Severity, Sign, Symptom, some_of
from mlxdoctor.judge.save_flaws import sizes_shown
from mlxdoctor.judge.update_size import CourseLimits, has_jumped
from mlxdoctor.measure.exhibited import saves_shown
from mlxdoctor.measure.weights.save_norms import FollowedHistory, SaveState, follow

_OWN_FILE = "use {last_file} (copy it over {where}), and save every run into a folder of its own"


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
        unit="least cosine between the starts of two saves of the run",
        source="0.989 or more in 21 fixture runs, sound and faulty",
        false_alarms="0 of 21 fixture runs, with `other_start`",
    )
    other_start: float = limit(
        0.5,
        unit="cosine of the final file's start with that of the last save",
        source="1.000 in the same runs; A is drawn anew for another seed, and the cosine is 0.0",
    )


@check(
    codes={
        "never-changed": Symptom.error(
            "all checkpoints are identical: nothing was trained",
            says="The checkpoints from iteration {from} to {to} are identical, bit for bit: "
            "nothing was trained between them.",
            expected="every update changes the adapter",
            fix="check the rate schedule, and whether gradients reach the adapter",
        ),
        "stopped-changing": Symptom.warning(
            "the last checkpoints are identical",
            says="The checkpoints from iteration {from} to {to} are identical, bit for bit: "
            "training stopped changing the adapter.",
            expected="every update changes the adapter",
            fix="check the rate schedule, and whether gradients reach the adapter",
        ),
        "zero-b-throughout": Symptom.error(
            "B is exactly zero in every checkpoint",
            says="B is exactly zero in all {checkpoints} checkpoints: nothing had been trained "
            "when they were saved.",
            expected="B moves with the first update",
            fix="check that the learning rate is not zero and that gradients reach lora_b",
        ),
        "b-erased": Symptom.error(
            "a B that was trained is exactly zero in a later file",
            says="The B of {erased} of {modules} modules is exactly zero in {save}, and was not in "
            "{earlier_file}: what had been trained was lost.",
            expected="training never takes a whole B back to exactly zero",
            fix="use {earlier_file}, and check how the later file was saved",
        ),
        "non-finite": Symptom.error(
            "checkpoints hold NaN or infinite values",
            says="{saves} of {all_saves} saves hold NaN or infinite values, the first of them "
            "{save}; [the last sound one is {sound_file}|none before it is sound].",
            expected="finite values only",
            fix="[use {sound_file}|lower the rate and train again]",
        ),
        "large-from-the-first": Symptom.warning(
            "the update was already far too large at the first save",
            says="At the first save, {save}, the update was already about {size:.3g} times as "
            "large as weights of these shapes usually are.",
            expected="below {most:g}",
            fix="none of these checkpoints is of use: lower the rate, and save earlier",
        ),
        "norm-jump": Symptom.warning(
            "the update grew suddenly between two saves",
            says="Between iterations {from} and {to} the update grew {growth:.3g} times.",
            expected="growth below {most:.3g} times",
            fix="use {earlier_file}, and look at the loss between the two",
        ),
        "final-of-another-run": Symptom.warning(
            "the final file is not of the run that saved the checkpoints",
            says="[The factors A of {where} have nothing to do with those of {last_file} (cosine "
            "{cosine:.2f}). They are drawn at random when a run begins and move little|The update "
            "in {where} is {ratio:.3g} times that in {last_file}, with which the run ended]: it is "
            "the file of another run.",
            expected="[a cosine above {least:g}|at most {most:g} times the sizes of the "
            "checkpoints]",
            fix=_OWN_FILE,
        ),
        "unreadable": Symptom.warning(
            "a checkpoint cannot be read",
            says="{count:* checkpoint} cannot be read; {file} {problem}.",
            expected="every checkpoint is a sound file",
            fix="check the space on the disk, and whether the run was killed while it saved",
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
    yield from _unreadable([save for save in followed.saves if save.problem])
    saves = tuple(save for save in followed.saves if not save.problem)
    followed = FollowedHistory(saves, followed.quantity)
    numbered = [save for save in saves if save.checkpoint.iteration is not None]
    if not numbered:
        raise Inconclusive("no numbered checkpoint can be read")
    yield from _nonfinite(saves)
    yield from _unchanged(followed, numbered)
    yield from _of_another_run(followed, config, limits)
    yield from _erased(followed)
    if all(save.facts.is_zero for save in numbered):
        yield Sign("zero-b-throughout", {"checkpoints": len(numbered)})
    elif followed.quantity == "nominal":
        yield from _sizes(followed, numbered, limits)


def _unreadable(broken: Sequence[SaveState]) -> Iterator[Sign]:
    if broken:
        first = broken[0].checkpoint
        names = [save.checkpoint.path.name for save in broken]
        measured: dict[str, Measurement] = {
            "count": len(broken),
            "file": first.path.name,
            "problem": broken[0].problem,
        }
        yield Sign("unreadable", measured, where=some_of(names), onset=first.iteration)


def _nonfinite(saves: Sequence[SaveState]) -> Iterator[Sign]:
    bad = [place for place, save in enumerate(saves) if save.facts.nonfinite]
    if not bad:
        return
    first = saves[bad[0]].checkpoint
    sound = saves[bad[0] - 1].checkpoint if bad[0] else None
    yield Sign(
        "non-finite",
        {
            "saves": len(bad),
            "all_saves": len(saves),
            "save": first.label,
            "values": saves[bad[0]].facts.nonfinite,
            "last_finite": sound.iteration if sound else None,
            "sound_file": sound.path.name if sound else None,
        },
        where=first.path.name,
        onset=first.iteration,
    )


def _unchanged(followed: FollowedHistory, numbered: Sequence[SaveState]) -> Iterator[Sign]:
    first = followed.facts.unchanged_from
    # NaN stays NaN: that such files are alike says nothing more.
    if first is None or numbered[-1].facts.nonfinite:
        return
    begin, last = followed.saves[first].checkpoint, numbered[-1].checkpoint
    measured = {"from": begin.iteration, "to": last.iteration, "identical": len(numbered) - first}
    code = "never-changed" if first == 0 else "stopped-changing"
    yield Sign(code, measured, where=last.path.name, onset=begin.iteration)


def _of_another_run(
    followed: FollowedHistory, config: TrainingConfig | None, limits: Limits
) -> Iterator[Sign]:
    """A final file with another start, or far from every save of a run that saved its last."""
    *numbered, final = followed.saves
    if final.checkpoint.iteration is not None or not numbered:
        return
    if any(save.facts.nonfinite for save in followed.saves):
        return
    iters = config.iters if config is not None and config.describes_training else None
    last, facts = numbered[-1].checkpoint, followed.facts
    measured = {"last": last.iteration, "last_file": last.path.name}
    # A single save tells nothing of how far A moves, unless nothing was trained after it.
    is_settled = (
        facts.own_likeness >= limits.own_start if len(numbered) > 1 else last.iteration == iters
    )
    if is_settled and facts.final_likeness <= limits.other_start:
        own = facts.own_likeness if isfinite(facts.own_likeness) else None
        cosine = {"cosine": facts.final_likeness, "own_cosine": own, "least": limits.other_start}
        figures: dict[str, Measurement] = {**measured, **cosine}
        where, severity = final.checkpoint.path.name, Severity.ERROR
        yield Sign("final-of-another-run", figures, where=where, severity=severity)
        return
    sizes = [save.facts.size for save in followed.saves]
    if last.iteration != iters or not all(isfinite(save) and save > 0 for save in sizes):
        return
    # The best state, or a mean of several, is smaller than the last or between the saves.
    if sizes[-1] > max(sizes[:-1]) * limits.other_run:
        size = {"ratio": sizes[-1] / sizes[-2], "most": limits.other_run}
        figures = {**measured, **size, "final_size": sizes[-1], "last_size": sizes[-2]}
        yield Sign("final-of-another-run", figures, where=final.checkpoint.path.name)


def _erased(followed: FollowedHistory) -> Iterator[Sign]:
    for place, names in enumerate(followed.facts.erased):
        if names:
            earlier, later = followed.saves[place - 1 : place + 1]
            yield Sign(
                "b-erased",
                {
                    "erased": len(names),
                    "modules": len(later.facts.sizes),
                    "save": later.checkpoint.label,
                    "last_trained": earlier.checkpoint.iteration,
                    "earlier_file": earlier.checkpoint.path.name,
                },
                where=min(names),
                onset=later.checkpoint.iteration,
            )
            return


def _sizes(
    followed: FollowedHistory, numbered: Sequence[SaveState], limits: Limits
) -> Iterator[Sign]:
    measured: dict[str, Measurement] = {
        "iterations": tuple(save.checkpoint.iteration or 0 for save in numbered),
        "sizes": tuple(round(save.facts.size, 6) for save in numbered),
    }
    first, size = numbered[0].checkpoint, numbered[0].facts.size
    if size >= limits.nominal_large:
        figures = {**measured, "save": first.label, "size": size, "most": limits.nominal_large}
        where = first.path.name
        yield Sign("large-from-the-first", figures, where=where, onset=first.iteration)
    for jump in followed.facts.jumps:
        before, after = (followed.saves[jump.save + step] for step in (-1, 0))
        if has_jumped(jump.excess, after.facts.size, limits):
            ends = {"from": before.checkpoint.iteration, "to": after.checkpoint.iteration}
            figures = {
                **measured,
                **ends,
                "growth": jump.growth,
                "most": limits.jump * jump.growth / jump.excess,
                "earlier_file": before.checkpoint.path.name,
            }
            where, onset = after.checkpoint.path.name, after.checkpoint.iteration
            yield Sign("norm-jump", figures, where=where, onset=onset)
            return
