"""The training loop: from settings to adapter files, one readable pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import mlx.core as mx

from mlxdoctor.safety.errors import InputError
from mlxdoctor.train.attach import recomputed_activations
from mlxdoctor.train.batches import Batches
from mlxdoctor.train.masked_loss import evaluate, scalar
from mlxdoctor.train.parts import Parts, parts_of
from mlxdoctor.train.plan import Plan, make_plan
from mlxdoctor.train.records import (
    Ending,
    StepRecord,
    TrainingResult,
    ValidationRecord,
    add_metrics,
    open_metrics,
    write_adapter,
    write_config,
)
from mlxdoctor.train.settings import Settings
from mlxdoctor.train.step import Accumulated, StepOutput, build_optimizer, compile_step
from mlxdoctor.train.stopping import DivergenceLimits, why_diverged
from mlxdoctor.train.token_rows import TokenRow, TokenRows

#: Called with the plan, after each validation and after each step; a text it returns for the
#: plan or for a step ends the run with that reason.
Tell = Callable[[Plan | StepRecord | ValidationRecord], str | None]
DONE = "every iteration was made"


def train(
    settings: Settings,
    *,
    parts: Parts | None = None,
    tell: Tell | None = None,
    limits: DivergenceLimits | None = None,
) -> TrainingResult:
    """Train as the settings say, and write the adapter, its configuration and the metrics.

    MLX's global random generator is seeded.

    Args:
        parts: what the run is put together from; by default that of the settings' mode.
        tell: who is told how it goes, and may end it; before the first step nothing is written.
        limits: when a run counts as diverging.

    Raises:
        InputError: a setting, the model, the data or the output folder is unusable.
    """
    parts, tell = parts or parts_of(settings), tell or (lambda _: None)
    folder = Path(settings.adapter_path)
    batches = parts.batches(settings)
    model, tokenizer = parts.load(settings)
    rows = parts.encode(settings, tokenizer)
    if not rows.train:
        raise InputError(Path(settings.data), "has no training rows")
    if settings.test and not rows.test:
        raise InputError(Path(settings.data), "has no test rows", "leave out `test: true`")
    parts.prepare(model, settings)
    optimizer = build_optimizer(settings)
    optimizer.init(model.trainable_parameters())
    with ExitStack() as stack:
        if mx.metal.is_available():
            # On a Mac, keep the model in memory while it is trained, as mlx-lm does.
            most: Any = mx.device_info()["max_recommended_working_set_size"]
            stack.callback(mx.set_wired_limit, mx.set_wired_limit(most))
        if settings.grad_checkpoint:
            stack.enter_context(recomputed_activations(model.layers))
        plan = make_plan(settings, model, optimizer, rows)
        reason = tell(plan)
        if reason is not None:
            return TrainingResult("stopped", reason, plan, adapter_path=folder)
        write_config(settings)
        metrics = stack.enter_context(open_metrics(folder))
        run = _Run(settings, parts, batches, model, optimizer, rows, metrics, tell)
        return _trained(run, plan, limits or DivergenceLimits())


@dataclass(frozen=True)
class _Run:
    """What stays the same from the first step to the last."""

    settings: Settings
    parts: Parts
    batches: Batches
    model: Any
    optimizer: Any
    rows: TokenRows
    metrics: BinaryIO
    tell: Tell

    def loss_on(self, rows: Sequence[TokenRow], batches: int) -> float:
        return evaluate(self.model, self.batches.evaluation(rows, batches), self.parts.loss)

    def validated(self, iteration: int) -> ValidationRecord:
        begun = time.perf_counter()
        loss = self.loss_on(self.rows.valid, self.settings.val_batches)
        self.model.train()
        record = ValidationRecord(iteration, loss, time.perf_counter() - begun)
        add_metrics(self.metrics, record)
        self.tell(record)
        return record


def _trained(run: _Run, plan: Plan, limits: DivergenceLimits) -> TrainingResult:
    settings, model = run.settings, run.model
    steps: list[StepRecord] = []
    validations: list[ValidationRecord] = []
    ending: tuple[Ending, str] | None = None
    accumulated: Accumulated | None = None
    losses: list[float] = []
    batches = run.batches.train(run.rows.train)
    mx.reset_peak_memory()
    step = compile_step(model, run.optimizer, run.parts.loss, settings)
    model.train()
    for iteration in range(1, settings.iters + 1):
        begun = time.perf_counter()
        # Drawn before the validation, as in mlx-lm: both draw from one generator there.
        batch = next(batches)
        drawn = time.perf_counter() - begun
        if run.rows.valid and _validates_before(settings, iteration):
            validations.append(run.validated(iteration - 1))
        begun = time.perf_counter()
        is_update = _is_update(settings, iteration)
        output = step(mx.array(batch.tokens), mx.array(batch.spans), accumulated, is_update)
        # The one place where the step's lazy graph is computed.
        mx.eval(model.state, run.optimizer.state, mx.random.state, output)
        if mx.get_cache_memory() > settings.clear_cache_threshold:
            mx.clear_cache()
        accumulated = output.accumulated
        seconds = time.perf_counter() - begun + drawn
        steps.append(_recorded(run, output, steps[-1:], is_update=is_update, seconds=seconds))
        add_metrics(run.metrics, steps[-1])
        losses.append(steps[-1].train_loss)
        if iteration % settings.save_every == 0:
            write_adapter(settings, model, iteration)
        if run.rows.valid and settings.is_exact and _validates_after(settings, iteration):
            validations.append(run.validated(iteration))
        if (reason := run.tell(steps[-1])) is not None:
            ending = "stopped", reason
            break
        untouched = validations[0].val_loss if validations else None
        if settings.is_exact and (reason := why_diverged(losses, untouched, limits)) is not None:
            ending = "diverged", reason
            break
    write_adapter(settings, model)
    kind, why = ending or ("finished", DONE)
    test_loss = None
    if settings.test and kind == "finished":
        test_loss = run.loss_on(run.rows.test, settings.test_batches)
    model.eval()
    folder = Path(settings.adapter_path)
    return TrainingResult(kind, why, plan, tuple(steps), tuple(validations), test_loss, folder)


def _is_update(settings: Settings, iteration: int) -> bool:
    # mlx-lm never applies the batches left over at the end.
    is_last = settings.is_exact and iteration == settings.iters
    return is_last or iteration % settings.grad_accumulation_steps == 0


def _validates_before(settings: Settings, iteration: int) -> bool:
    if iteration == 1:
        return True
    return not settings.is_exact and _validates_after(settings, iteration)


def _validates_after(settings: Settings, iteration: int) -> bool:
    return iteration % settings.steps_per_eval == 0 or iteration == settings.iters


def _recorded(
    run: _Run, output: StepOutput, before: Sequence[StepRecord], *, is_update: bool, seconds: float
) -> StepRecord:
    supervised = int(scalar(output.supervised))
    return StepRecord(
        iteration=before[0].iteration + 1 if before else 1,
        train_loss=scalar(output.loss),
        learning_rate=scalar(run.optimizer.learning_rate),
        grad_norm=scalar(output.grad_norm) if is_update else None,
        supervised_tokens=supervised,
        trained_tokens=supervised + (before[0].trained_tokens if before else 0),
        seconds=seconds,
        peak_memory=mx.get_peak_memory() / 1e9,
    )
