"""Where a run ended, against what a few updates reach on the same rows.

What it finds. A run that learned far less than its rows teach, whatever held it back: an optimiser,
a schedule, a rate, frozen layers, a trainer that computes something else, or a file that is not
what was trained.

Why it matters. A loss that falls is no proof of a sound run. Thirty updates with mlx-lm's defaults
show what the rows can teach; a run of hundreds that ends far above that went wrong.

How it is measured. A fresh adapter is trained on the run's own rows for 30 updates, with Adam at a
usual rate for the model's size. The losses of base model, tuned model and that adapter on the same
held-out answers are compared. A run that is past that, and mostly gives other answers than its
rows, is held against as many updates as it read batches, if there is time. Where the run lacks much
of what the adapter gained, its own settings are tried for as many updates, and then with one of
them changed back at a time. Where the log's losses are not those of mlx-lm step for step, all of
the run's updates are made again with its own settings, if there is time: a trainer that computes
something else has to be as good. Of a plan (`preflight --steps`) the own settings stand for the
tuned model, at the highest rate of the schedule.

When it is wrong. A run of very few updates, one on rows that teach slowly, or one that was to
learn little. Rows that were edited after the run are other rows.

What to do. Change the setting that is named. Where none is, look at the trainer and at the file.
"""

import math
from collections.abc import Iterator

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom
from mlxdoctor.twin.reach import LACKING, Reach

#: Of what the twin gained, what a run lacks that certainly went wrong.
FAR = 1 / 3
#: Standard errors of a difference that is none by chance.
ERRORS = 4.0

_REACHED = (
    "[The loss on {rows:* row} of the {split} split is {tuned:.2f}; the base model's is "
    "{untouched:.2f}, and|The base model's loss on {rows:* row} of the {split} split is "
    "{untouched:.2f};] a fresh adapter reaches {reached:.2f} after {updates} updates of Adam at a "
    "rate of {rate:.2g}"
)
_OWN = (
    "[. {whole_updates} updates with the run's own settings reach {whole:.2f}|. The run's own "
    "settings reach {whole:.2f} in as many updates as it made|. The run's own settings reach "
    "{own:.2f} in {own_updates:* update}|. As many updates with the run's own settings reach "
    "{own:.2f}|. As many updates with the run's own {lost}]"
)
_TRAINED = (
    "On the rows trained on the loss is {tuned_on_trained:.2f}, and {updates} updates of Adam at a "
    "rate of {rate:.2g} reach {reached_on_trained:.2f}; on the held-out ones it is {tuned:.2f} and "
    "{reached:.2f}, the base model's {untouched:.2f}."
)
_HELD_BACK = (
    f"{_REACHED}{_OWN}. With {{setting}} {{after}} in place of {{before}} the loss is "
    "{cured:.2f}."
)
_CHANGE = "Set {setting} to {after} in place of {before}."
#: Settings whose causes are others than a setting's.
_SETTINGS = {"lr_schedule": "schedule-holds-back", "max_seq_length": "limit-too-short"}
_EXPECTED = "at most {reached:.2f}"


@check(
    codes={
        "reached": Symptom.info(
            "the run learned what its rows teach",
            says=f"{_REACHED}.",
            expected=_EXPECTED,
        ),
        "holds-beyond": Symptom.info(
            "what the rows teach holds beyond them",
            says="There is no validation split. After {updates} updates a fresh adapter has a loss "
            "of {reached:.2f} on {rows} rows that it was not trained on. On the rows it was "
            "trained on it has {reached_on_trained:.2f}; the base model has {untouched:.2f}.",
            expected="about the same loss on both",
        ),
        **{
            code: Symptom.error(meaning, says=_HELD_BACK, expected=_EXPECTED, fix=_CHANGE)
            for code, meaning in {
                "rate-too-high": "the learning rate is too high for these rows",
                "rate-too-low": "the learning rate is too low for these rows",
                "scale-too-large": "the LoRA scale is too large for these rows",
                "schedule-holds-back": "the schedule keeps the run from learning",
                "limit-too-short": "the limit on a row's length keeps the run from learning",
                "setting-holds-back": "a setting keeps the run from learning",
            }.items()
        },
        "not-what-was-learned": Symptom.error(
            "the tuned model lacks what its settings teach",
            says=f"{_REACHED}{_OWN}. The trainer computes something else, or the saved model is "
            "not the one that was trained.",
            expected=_EXPECTED,
            fix="Train the same configuration with mlx_lm.lora and compare the first reports; "
            "look at a step of the trainer with `mlxdoctor probe FILE:FUNCTION`.",
        ),
        "settings-learn": Symptom.info(
            "the run's own settings teach what it lacks",
            says="A new run with the same settings and [{whole_updates}|as many] updates[, with "
            "Adam since no optimizer is named{assumed},] has a loss of {whole:.2f} on these rows. "
            "This run has {tuned:.2f}. So neither rate nor scale spoiled it.",
            expected="a run that learns as much",
        ),
        "far-above": Symptom.error(
            "the run ended far above what its rows teach",
            says=f"{_REACHED}{_OWN}.",
            expected=_EXPECTED,
            fix="Start again with mlx-lm's defaults and a rate of {rate:.2g}.",
        ),
    }
)
def reach(reach: Reach) -> Iterator[Sign | Seen]:
    if not reach.tells and not reach.is_ahead:
        raise Inconclusive(
            f"{reach.updates} updates lower the loss from {reach.untouched:.2f} to "
            f"{reach.reached:.2f} only: these rows teach slowly"
        )
    is_lost = reach.own is not None and not math.isfinite(reach.own)
    measured: dict[str, Measurement] = {
        "rows": reach.rows,
        "split": reach.split,
        "untouched": reach.untouched,
        "tuned": reach.tuned if reach.planned is None else None,
        "reached": reach.reached,
        "tuned_on_trained": reach.tuned_on_trained,
        "reached_on_trained": reach.reached_on_trained,
        "updates": reach.updates,
        "rate": reach.rate,
        "own": None if is_lost else reach.own,
        "own_updates": reach.own_updates if reach.own_updates < reach.updates else None,
        "whole": reach.whole,
        "whole_updates": reach.whole_updates,
        "lost": "settings leave no finite loss" if is_lost else None,
        "shortfall": reach.shortfall if math.isfinite(reach.shortfall) else None,
        "setting": reach.setting or None,
        "before": reach.before or None,
        "after": reach.after or None,
        "cured": reach.cured,
        "assumed": "" if reach.assumes_adam else None,
    }
    is_lacking = reach.lacking > LACKING and not reach.answers_rightly
    if is_lacking and reach.tuned - (reach.whole or 0.0) > ERRORS * reach.noise:
        is_mild = reach.lacking <= FAR and not (reach.is_far or reach.is_far_from_own)
        yield Sign("not-what-was-learned", measured, severity=Severity.WARNING if is_mild else None)
        is_told = reach.falls_short or reach.is_far_from_own
        yield from [Sign("settings-learn", measured)] if is_told else []
        return
    if not reach.falls_short:
        is_made = reach.planned is None and reach.split == "validation"
        yield Seen(f"{_REACHED}{_OWN}.", measured, learned=is_made)
        if reach.tuned < reach.reached and is_made:
            yield Sign("reached", measured)
        if reach.teaches_more and reach.planned is None:
            yield Sign("holds-beyond", measured)
        return
    if reach.tuned - reach.reached <= ERRORS * reach.noise:
        raise Inconclusive(
            f"{reach.rows} rows are too few to tell the run from {reach.updates} updates"
        )
    if reach.tuned_on_trained < reach.reached_on_trained and reach.split == "validation":
        if not reach.has_gained:
            raise Inconclusive("the rows trained on are known by heart: others do not tell")
        # It learned more of them than the twin: that it learned too little is out of the question.
        yield Seen(_TRAINED, measured)
        return
    is_above = reach.setting == "learning_rate" and float(reach.before) > reach.rate
    is_mild = reach.shortfall <= FAR or (reach.is_only_slow and not is_above)
    is_mild = is_mild and not reach.is_far
    code = "far-above"
    if reach.setting == "learning_rate":
        measured["advised_learning_rate"] = reach.rate
        code = "rate-too-high" if is_above else "rate-too-low"
    elif reach.setting == "lora_parameters.scale" and float(reach.before) > float(reach.after):
        measured["advised_scale"] = float(reach.after)
        code = "scale-too-large"
    elif reach.setting:
        code = _SETTINGS.get(reach.setting, "setting-holds-back")
    elif reach.own is not None and not (reach.is_of_the_settings or reach.is_replayed):
        code = "not-what-was-learned"
    severity = Severity.WARNING if is_mild else None
    yield Sign(code, measured, where=reach.setting or None, severity=severity)
