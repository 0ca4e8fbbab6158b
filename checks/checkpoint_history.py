"""What the saved checkpoints say about the course of the run.

What it finds. Checkpoints that never change; a B that is zero in every one of them; the first
checkpoint with NaN or infinite values, and the last one without; a final file of another run, or
one that is an early checkpoint; and files that are unreadable.

Why it matters. Checkpoints date a failure when the log is lost, and tell which file is
still good. A checkpoint that is byte for byte the one before it means that training
changed nothing in between, whatever the log printed.

How it is measured. Files are compared by hash. Every value of every checkpoint is read for
NaN. A is drawn at random when a run begins and moves little:
its first values tell runs apart. (`mlxdoctor bisect` judges every save by itself.)

When it is wrong. A rate of exactly zero stops the changes on purpose. A folder used by two runs
mixes their checkpoints.

What to do. Use the last sound checkpoint: `mlxdoctor diagnose RUN --adapter FILE` judges one.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isfinite, nan

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Sign, Symptom, some_of
from mlxdoctor.judge.save_flaws import LoggedCourse, SaveVerdict, examine
from mlxdoctor.measure.weights.save_norms import Save

#: The least cosine between the starts of two saves of one run; 0.989 or more in 21 fixture runs,
#: sound and faulty.
_OWN_START = 0.9
#: The cosine of the final file's start with that of the last save, at most: 1.000 in the same runs;
#: A is drawn anew for another seed, and the cosine is 0.0.
_OTHER_START = 0.5
#: The loss of the last checkpoint over that of the one that was kept, at most: 0.02 in one run
#: whose checkpoints were sorted by name.
_LEARNED_SINCE = 0.5


@check(
    codes={
        "never-changed": Symptom.error(
            "all checkpoints are identical: nothing was trained",
            says="The checkpoints from iteration {from} to {to} are identical, bit for bit: "
            "nothing was trained between them.",
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
        "non-finite": Symptom.error(
            "checkpoints hold NaN or infinite values",
            says="{saves} of {all_saves} saves hold NaN or infinite values, the first of them "
            "{save}; [the last sound one is {sound_file}|none before it is sound].",
            expected="finite values only",
            fix="[use {sound_file}|lower the rate and train again]",
        ),
        "final-of-another-run": Symptom.error(
            "the final file is not of the run that saved the checkpoints",
            says="The factors A of {where} have nothing to do with those of {last_file} (cosine "
            "{cosine:.2f}). A is drawn at random when a run begins, and moves little. So the final "
            "file is from another run.",
            expected="a cosine above {least:g}",
            fix="use {last_file} (copy it over {where}), and save every run into a folder of its "
            "own",
        ),
        "final-is-early": Symptom.error(
            "the final file is an early checkpoint",
            says="{where} is {early_file}, byte for byte. The checkpoints go on to iteration "
            "{last}, and the {of_what} loss went on from {early_loss:.3f} to {last_loss:.3f}.",
            expected="the model of the last iteration, or the best one",
            fix="copy {last_file} over {where}; sort checkpoints by their number and not by name",
        ),
        "unreadable": Symptom.warning(
            "a checkpoint cannot be read",
            says="{count:* checkpoint} cannot be read; {file} {problem}.",
            expected="every checkpoint is a sound file",
            fix="check the space on the disk, and whether the run was killed while it saved",
        ),
    },
    rerun_symptom=True,
)
def checkpoint_history(
    history: CheckpointHistory,
    config: TrainingConfig | None,
    log: TrainingLog | None,
) -> Iterator[Sign]:
    # How large the updates are takes the base model, and is bisect's to judge.
    logged, verdicts = examine(history, config, None, log)
    examined = [verdict.save for verdict in verdicts]
    if unreadable := [save for save in examined if save.problem]:
        names = [save.checkpoint.path.name for save in unreadable]
        of_first = {"file": names[0], "problem": unreadable[0].problem}
        onset = unreadable[0].checkpoint.iteration
        yield Sign("unreadable", {"count": len(unreadable), **of_first}, some_of(names), onset)
    saves = [save for save in examined if not save.problem]
    numbered = [save for save in saves if save.checkpoint.iteration is not None]
    if not numbered:
        raise Inconclusive("no numbered checkpoint can be read")
    if any(save.nonfinite for save in saves):
        yield _nonfinite(saves)
    first, last = numbered[0].checkpoint, numbered[-1].checkpoint
    digests = {save.checkpoint.source.sha256 for save in numbered}
    is_same = len(digests) == 1 and None not in digests
    # NaN stays NaN: that such files are alike says nothing more.
    if len(numbered) > 1 and is_same and not numbered[-1].nonfinite:
        measured = {"from": first.iteration, "to": last.iteration, "identical": len(numbered)}
        yield Sign("never-changed", measured, where=last.path.name, onset=first.iteration)
    if saves[-1].checkpoint.iteration is None:
        yield from _of_another_run(numbered, saves[-1], config)
        if logged is not None:
            yield from _early(verdicts, logged)
    # Whole weights, which have no B, may be the base's.
    if all(save.is_zero and save.starts for save in numbered):
        yield Sign("zero-b-throughout", {"checkpoints": len(numbered)})


def _nonfinite(saves: Sequence[Save]) -> Sign:
    bad = [place for place, save in enumerate(saves) if save.nonfinite]
    first = saves[bad[0]].checkpoint
    sound = saves[bad[0] - 1].checkpoint if bad[0] else None
    figures: dict[str, Measurement] = {"saves": len(bad), "all_saves": len(saves)}
    figures |= {"save": first.label, "last_finite": sound.iteration if sound else None}
    figures["sound_file"] = sound.path.name if sound else None
    return Sign("non-finite", figures, first.path.name, first.iteration)


def _early(verdicts: Sequence[SaveVerdict], logged: LoggedCourse) -> Iterator[Sign]:
    """A final file that is a checkpoint from before most was learned, and not the last one."""
    final, last = verdicts[-1], verdicts[-2]
    if final.same_as is None or final.same_as in (last.same_as, len(verdicts) - 2):
        return
    early, validations = verdicts[final.same_as], logged.validations[final.same_as :]
    # What was kept for its validation was validated: then that says whether it is the best.
    is_validated = validations[0] is not None
    losses = validations if is_validated else logged.losses[final.same_as :]
    # A checkpoint from before the first report has that of the next one at the least.
    known = [loss for loss in losses if loss is not None]
    if known and known[-1] < _LEARNED_SINCE * known[0]:
        files = {"early_file": early.path.name, "last_file": last.path.name}
        figures = {
            "of_what": "validation" if is_validated else "training",
            "early_loss": known[0],
            "last_loss": known[-1],
            "last": last.save.checkpoint.iteration,
        }
        yield Sign("final-is-early", {**files, **figures}, where=final.path.name)


def _of_another_run(
    numbered: Sequence[Save], final: Save, config: TrainingConfig | None
) -> Iterator[Sign]:
    """A final file that began elsewhere than the checkpoints beside it."""
    last = numbered[-1].checkpoint
    own = min((before.likeness(after) for before, after in pairwise(numbered)), default=nan)
    cosine = numbered[-1].likeness(final)
    iters = config.iters if config is not None and config.describes_training else None
    # A single save tells nothing of how far A moves, unless nothing was trained after it.
    is_settled = own >= _OWN_START if len(numbered) > 1 else last.iteration == iters
    has_values = not any(save.nonfinite for save in (*numbered, final))
    if has_values and is_settled and cosine <= _OTHER_START:
        cosines = {"cosine": cosine, "own_cosine": own if isfinite(own) else None}
        file = {"last_file": last.path.name}
        where = final.checkpoint.path.name
        yield Sign("final-of-another-run", {**cosines, **file, "least": _OTHER_START}, where=where)
