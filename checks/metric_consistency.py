"""The reported figures against the run's own losses.

What it finds. A reported perplexity or loss that is the untouched base model's, a perplexity
that is not the exponential of the loss beside it, and a training loss near zero beside answers
to training prompts that share nothing with what was trained.

Why it matters. A perplexity of 7.66 made a collapsed model look fine: it was exp(2.036), the
loss of a model without the adapter. A low loss with bad answers means the labels are wrong.

How it is measured. The first validation loss of a log, before any update, is the base model's.
A reported figure, as a loss, that is close to it and far from the last validation loss was
measured without the adapter: within a tenth of a nat; or, where training took off a nat or more,
four times nearer to the first than to the last, since both are over a few batches. Answers to
training prompts are compared with the expected ones by word F1.

When it is wrong. A log averages validation batches and drops the last partial one, so that
figures agree only roughly: the tolerance is stated, and a figure that is as close to the last
loss as to the first is never judged. A metric whose name says "base" is taken at its word.

What to do. Evaluate again with the adapter loaded, and compare the loss with the log's.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

from mlxdoctor.check import DoesNotArise, Inconclusive, check, limit
from mlxdoctor.engines.text import word_f1
from mlxdoctor.evidence.metrics import ReportedMetric, ReportedMetrics
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Severity, Sign, Symptom
from mlxdoctor.measure.text.outputs import answer_words
from mlxdoctor.models.generations import Generations


@dataclass(frozen=True)
class Limits:
    """When two losses are the same, and when they are not."""

    same: float = limit(
        0.1,
        unit="nats",
        source="mlx-lm averages batches and drops the last: 0.05 apart on the fixtures",
    )
    apart: float = limit(
        0.3, unit="nats", source="three times the tolerance: the figure cannot be both"
    )
    fall: float = limit(
        1.0,
        unit="nats between the log's first and last validation loss",
        source="few batches: first losses of one base on one task lie up to 0.7 apart, where "
        "training took off 4.5, and last ones 0.2",
    )
    far: float = limit(
        1.0,
        unit="nats between a reported loss and the log's last",
        source="another split or another average moves it by tenths",
    )
    fallen: float = limit(
        0.5,
        unit="times the score before training",
        source="half of what the base model could do is lost: no sound run of ours loses a tenth",
    )
    closer: float = limit(4.0, unit="times", source="far nearer to one loss than to the other")
    rounding: float = limit(
        0.02, unit="nats", source="perplexity and loss given with two or three digits"
    )
    learned: float = limit(
        0.2, unit="nats per token", source="the answers trained on are known by heart"
    )
    overlap: float = limit(
        0.2, unit="word F1", source="unrelated sentences on one subject share about as much"
    )
    prompts: int = limit(8, unit="prompts", source="as for every comparison of answers")


@check(
    codes={
        "base-reported": Symptom.error(
            "the reported figure is the base model's",
            fix="Load the adapter in the evaluation, and check that its result changes with it.",
        ),
        "perplexity-not-exp-loss": Symptom.warning(
            "perplexity and loss in one file contradict each other",
            expected="perplexity = exp(loss)",
            fix="Average losses over tokens first, and take the exponential once.",
        ),
        "not-this-model": Symptom.error(
            "the reported figure is far better than the model that was trained",
            fix="Load the adapter in the evaluation, and check that its result changes with it.",
        ),
        "same-as-before": Symptom.error(
            "the reported figures before and after training are the same to the digit",
            expected="figures that change with the adapter",
            fix="Load the adapter in the evaluation: check that the logits differ from the base's.",
        ),
        "worse-than-before": Symptom.error(
            "the reported figures are far worse than before training",
            expected="figures at least as good as the base model's",
            fix="Ask the model a training prompt exactly as the trainer wrote it: if the answer is "
            "wrong, the adapter is not applied as it was trained; if right, the evaluation asks "
            "in another way.",
        ),
        "low-loss-bad-output": Symptom.error(
            "the training loss is near zero and the answers are not learned",
            expected="answers like those that were trained on",
            fix="Print one row's inputs and targets: each target is the token after its input.",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def metric_consistency(
    metrics: ReportedMetrics | None,
    log: TrainingLog | None,
    generations: Generations | None,
    limits: Limits,
) -> Iterator[Sign]:
    """Compare reported figures, logged losses and answers."""
    reported = _reported(metrics, log)
    if metrics is None and (log is None or not (reported or generations is not None)):
        raise DoesNotArise("no figure was reported of the tuned model")
    if metrics is not None:
        yield from _contradictions(metrics, limits)
        yield from _before_and_after(metrics, limits)
    if log is not None and reported:
        unlike = list(_unlike_the_log(reported, log, limits))
        if log.main.base_val_loss is None:
            yield from unlike
        if log.main.base_val_loss is not None or not unlike:
            yield from list(_of_the_base(reported, log, limits)) or unlike
    if log is not None and generations is not None:
        yield from _low_loss(log, generations, limits)


@dataclass(frozen=True)
class _Reported:
    """A figure that claims to be the tuned model's, and the loss that it stands for."""

    name: str
    value: float
    loss: float
    split: str | None

    @property
    def as_loss(self) -> str:
        """What is to be said of a perplexity besides."""
        return "" if self.value == self.loss else f", a loss of {self.loss:.3f}"


def _reported(metrics: ReportedMetrics | None, log: TrainingLog | None) -> list[_Reported]:
    found = [
        _Reported(one.name, one.value, one.loss, one.split)
        for one in (metrics.losses if metrics is not None else ())
        if one.loss is not None and one.split != "train"
    ]
    if log is not None and log.test_loss is not None and math.isfinite(log.test_loss):
        found.append(_Reported("test loss", log.test_loss, log.test_loss, "test"))
    return found


def _contradictions(metrics: ReportedMetrics, limits: Limits) -> Iterator[Sign]:
    for perplexity, loss in _couples(metrics.losses):
        said = perplexity.loss
        if said is None or abs(said - loss.value) <= limits.rounding * max(1.0, loss.value):
            continue
        if abs(said - loss.value * math.log(2)) <= limits.rounding:
            continue
        yield Sign(
            "perplexity-not-exp-loss",
            f"{perplexity.name} is {perplexity.value:.4g}, but the exponential of "
            f"{loss.name}, {loss.value:.4g}, is {math.exp(min(loss.value, 700)):.4g}.",
            {"perplexity": perplexity.value, "loss": loss.value},
            where=perplexity.source.path.name,
        )


def _before_and_after(metrics: ReportedMetrics, limits: Limits) -> Iterator[Sign]:
    """What the run's owner measured of the base and of the tuned model."""
    pairs = [pair for pair in metrics.compared if all(math.isfinite(one.value) for one in pair)]
    same = [after for before, after in pairs if before.value == after.value]
    # A score of 0 or 1 may well stay there.
    telling = [one for one in same if one.value not in (0.0, 1.0)]
    if telling and len(same) == len(pairs):
        listed = ", ".join(f"{one.name} {one.value:.4g}" for one in same[:3])
        yield Sign(
            "same-as-before",
            f"The {len(same)} reported figures are the same before and after training ({listed}): "
            "both are of one model."
            if len(same) > 1
            else f"The reported {listed} is the same before and after training: both figures are "
            "of one model.",
            {"figures": len(same), "value": telling[0].value},
            where=telling[0].source.path.name,
        )
        return
    worse = [
        (before, after)
        for before, after in pairs
        if before.is_score and before.value > 0 and after.value < limits.fallen * before.value
    ]
    if worse and 2 * len(worse) > len(pairs):
        listed = ", ".join(
            f"{after.name} from {before.value:.4g} to {after.value:.4g}"
            for before, after in worse[:3]
        )
        before, after = worse[0]
        yield Sign(
            "worse-than-before",
            f"By the run's own evaluation the tuned model is far worse than the base ({listed}).",
            {"figures": len(worse), "before": before.value, "after": after.value},
            where=after.source.path.name,
        )


def _unlike_the_log(
    reported: Sequence[_Reported], log: TrainingLog, limits: Limits
) -> Iterator[Sign]:
    """A figure far below the level at which training ended is of another model."""
    series = log.main.get("val_loss")
    if series is None or not len(series.values) or log.is_preference:
        return
    last, at = float(series.values[-1]), int(series.iterations[-1])
    if not math.isfinite(last):
        return
    for one in reported:
        figure, value, loss = one.name, one.value, one.loss
        if last - loss <= limits.far:
            continue
        base = log.main.base_val_loss
        near = base is not None and abs(loss - base) * limits.closer < abs(loss - last)
        beside = f", and near the base model's {base:.3f}" if near else ""
        yield Sign(
            "not-this-model",
            f"The reported {figure} is {value:.4g}{one.as_loss}; the log's validation loss is "
            f"{last:.3f} at {log.main.unit} {at}: the figure is not the trained model's{beside}.",
            {"reported": value, "reported_loss": round(loss, 4), "last_val_loss": last},
            where=figure,
            expected=f"a loss near {last:.3f}",
        )
        return


def _couples(
    metrics: Sequence[ReportedMetric],
) -> Iterator[tuple[ReportedMetric, ReportedMetric]]:
    """Each perplexity with the loss under the same key and of the same split and file."""
    for perplexity in metrics:
        beside = [
            loss
            for loss in metrics
            if perplexity.is_perplexity
            and not loss.is_perplexity
            and _place(loss) == _place(perplexity)
        ]
        if len(beside) == 1:
            yield perplexity, beside[0]


def _place(metric: ReportedMetric) -> tuple[str, str | None, str]:
    head = metric.name.rpartition(".")[0]
    return (str(metric.source.path), metric.split, head)


def _of_the_base(reported: Sequence[_Reported], log: TrainingLog, limits: Limits) -> Iterator[Sign]:
    series = log.main.get("val_loss")
    if series is None or len(series.values) < 2 or int(series.iterations[0]) > 1:
        raise Inconclusive("the log has no validation loss from before the first update and after")
    before, after = float(series.values[0]), float(series.values[-1])
    if not math.isfinite(before):
        raise Inconclusive("the log's first validation loss is not finite")
    seen: set[float] = set()
    fall = before - after if math.isfinite(after) else 0.0
    for one in reported:
        off_base = abs(one.loss - before)
        off_tuned = abs(one.loss - after) if math.isfinite(after) else math.inf
        is_same = off_base <= limits.same
        is_near = is_same or (fall >= limits.fall and off_base * limits.closer < fall)
        is_base = is_near and off_base * limits.closer < off_tuned
        # A loss and its perplexity are one figure.
        if not is_base or off_tuned < limits.apart or round(one.loss, 2) in seen:
            continue
        seen.add(round(one.loss, 2))
        beside = "that is" if is_same else "that is near"
        perplexity = math.exp(min(after, 700.0)) if math.isfinite(after) else math.inf
        yield Sign(
            "base-reported",
            f"The reported {one.name} is {one.value:.4g}{one.as_loss}: {beside} the untouched "
            f"base model's ({before:.3f} in the log before the first update), not the tuned "
            f"model's ({after:.3f} at the end).",
            {
                "reported": one.value,
                "reported_loss": round(one.loss, 4),
                "first_val_loss": before,
                "last_val_loss": after,
            },
            where=one.name,
            # Rows of another file may be as hard for the tuned model as these for the base.
            severity=None if is_same or one.split == "valid" else Severity.WARNING,
            expected=f"a loss near {after:.3f}, or a perplexity near {perplexity:.4g}",
        )


def _low_loss(log: TrainingLog, generations: Generations, limits: Limits) -> Iterator[Sign]:
    series = log.main.get("train_loss")
    if series is None or not len(series.values):
        return
    last = float(np.median(series.values[-3:]))
    if not last < limits.learned:
        return
    known = [item for item in generations.distinct if item.expected and item.tuned]
    trained = [item for item in known if item.origin == "train"]
    judged = trained or known
    if len(judged) < limits.prompts:
        return

    def shared(answers: Iterable[str | None]) -> float:
        expected = (answer_words(item.expected or "") for item in judged)
        return mean(map(word_f1, (answer_words(one or "") for one in answers), expected))

    overlap = shared(item.tuned for item in judged)
    if overlap >= limits.overlap:
        return
    base = shared(item.base for item in judged)
    yield Sign(
        "low-loss-bad-output",
        f"The training loss ends at {last:.3g}, yet the answers to {len(judged)} "
        f"{'training' if trained else 'held-out'} prompts share {overlap:.0%} of their words with "
        f"the expected ones (base model {base:.0%}): the loss measures something else.",
        {
            "last_train_loss": round(last, 5),
            "prompts": len(judged),
            "overlap": round(overlap, 3),
            "base_overlap": round(base, 3),
        },
    )
