"""The training loop: from settings to adapter files, one readable pass."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxdoctor.models.load import count_parameters
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.batches import Batch
from mlxdoctor.twin.masked_loss import evaluate, scalar
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.prepared import Prepared, plan_of, prepared
from mlxdoctor.twin.records import (
    StepRecord,
    Tell,
    TrainingResult,
    ValidationRecord,
    add_metrics,
    write_adapter,
    write_config,
)
from mlxdoctor.twin.settings import Settings
from mlxdoctor.twin.step import Accumulated, build_optimizer, compile_step
from mlxdoctor.twin.token_rows import TokenRow


def train(
    settings: Settings, *, parts: Parts | None = None, tell: Tell | None = None
) -> TrainingResult:
    """Train as the settings say, and write the adapter, its configuration and the metrics.

    Args:
        parts: what the run is put together from; by default that of the settings' mode.
        tell: who is told how it goes, and may end it; before the first step nothing is written.

    Raises:
        InputError: a setting, the model, the data or the output folder is unusable.
    """
    start, tell = prepared(settings, parts), tell or (lambda _: None)
    if settings.test and not start.rows.test:
        raise InputError(Path(settings.data), "has no test rows", "leave out `test: true`")
    folder = Path(settings.adapter_path)
    optimizer = build_optimizer(settings)
    optimizer.init(start.model.trainable_parameters())
    with ExitStack() as stack:
        if mx.metal.is_available():
            # On a Mac, keep the model in memory while it is trained, as mlx-lm does.
            most: Any = mx.device_info()["max_recommended_working_set_size"]
            stack.callback(mx.set_wired_limit, mx.set_wired_limit(most))
        if (reason := tell(plan_of(start))) is not None:
            return TrainingResult(reason, adapter_path=folder)
        write_config(settings)
        add_metrics(folder, None)
        return _trained(start, optimizer, tell)


def _trained(start: Prepared, optimizer: Any, tell: Tell) -> TrainingResult:
    settings, model, rows = start.settings, start.model, start.rows
    folder = Path(settings.adapter_path)
    steps: list[StepRecord] = []
    validations: list[ValidationRecord] = []
    reason = test_loss = None
    made = start.parts.batches(settings)
    batches = made.train(rows.train)

    def loss_on(split: Sequence[TokenRow], count: int) -> float:
        return evaluate(model, made.evaluation(split, count), start.parts.loss)

    def validate(iteration: int) -> None:
        begun = time.perf_counter()
        loss = loss_on(rows.valid, settings.val_batches)
        model.train()
        validations.append(ValidationRecord(iteration, loss, time.perf_counter() - begun))
        add_metrics(folder, validations[-1])
        tell(validations[-1])

    mx.reset_peak_memory()
    take = stepper(start, optimizer, norms=True)
    model.train()
    for iteration in range(1, settings.iters + 1):
        begun = time.perf_counter()
        # Drawn before the validation, as in mlx-lm: both draw from one generator there.
        batch = next(batches)
        drawn = time.perf_counter() - begun
        if rows.valid and _validates_before(settings, iteration):
            validate(iteration - 1)
        record = take(batch, _is_update(settings, iteration))
        steps.append(replace(record, seconds=drawn + record.seconds))
        add_metrics(folder, steps[-1])
        if iteration % settings.save_every == 0:
            write_adapter(settings, model, iteration)
        if rows.valid and settings.is_exact and _validates_after(settings, iteration):
            validate(iteration)
        if (reason := tell(steps[-1])) is not None:
            break
    write_adapter(settings, model)
    if settings.test and reason is None:
        test_loss = loss_on(rows.test, settings.test_batches)
    model.eval()
    counts = count_parameters(model)
    return TrainingResult(reason, tuple(steps), tuple(validations), test_loss, folder, *counts)


def first_losses(start: Prepared, iterations: int) -> Iterator[float]:
    """The loss of each of a run's first iterations, nats a token; nothing is written.

    Args:
        start: the run, whose model is trained.
        iterations: how many at the most.
    """
    settings, made = start.settings, start.parts.batches(start.settings)
    optimizer = build_optimizer(settings)
    optimizer.init(start.model.trainable_parameters())
    batches, take = made.train(start.rows.train), stepper(start, optimizer)
    start.model.train()
    for iteration in range(1, iterations + 1):
        batch = next(batches)
        if start.rows.valid and _validates_before(settings, iteration):
            # A validation draws its order from the generator of the training batches.
            next(iter(made.evaluation(start.rows.valid, settings.val_batches)), None)
        yield take(batch, _is_update(settings, iteration)).train_loss


def _is_update(settings: Settings, iteration: int) -> bool:
    # mlx-lm never applies the batches left over at the end.
    is_last = settings.is_exact and iteration == settings.iters
    return is_last or iteration % settings.grad_accumulation_steps == 0


def _validates_before(settings: Settings, iteration: int) -> bool:
    return iteration == 1 or (not settings.is_exact and _validates_after(settings, iteration))


def _validates_after(settings: Settings, iteration: int) -> bool:
    return iteration % settings.steps_per_eval == 0 or iteration == settings.iters


def stepper(
    run: Prepared, optimizer: Any, *, norms: bool = False
) -> Callable[[Batch, bool], StepRecord]:
    """What makes the steps of a run: (batch, whether it ends an update) -> the step's record.

    Between updates it keeps the gradients. The model, the optimizer and MLX's random state are
    changed, and are computed when it returns.

    Args:
        optimizer: initialised with the model's trainable parameters.
    """
    model, settings = run.model, run.settings
    step = compile_step(model, optimizer, run.parts.loss, settings, norms=norms)
    accumulated: Accumulated | None = None
    steps = trained_tokens = 0

    def take(batch: Batch, is_update: bool) -> StepRecord:
        nonlocal accumulated, steps, trained_tokens
        begun = time.perf_counter()
        output = step(mx.array(batch.tokens), mx.array(batch.spans), accumulated, is_update)
        # The one place where the step's lazy graph is computed.
        mx.eval(model.state, optimizer.state, mx.random.state, output)
        if mx.get_cache_memory() > settings.clear_cache_threshold:
            mx.clear_cache()
        seconds = time.perf_counter() - begun
        accumulated = output.accumulated
        supervised = int(scalar(output.supervised))
        steps, trained_tokens = steps + 1, trained_tokens + supervised
        return StepRecord(
            iteration=steps,
            train_loss=scalar(output.loss),
            learning_rate=scalar(optimizer.learning_rate),
            grad_norm=scalar(output.grad_norm) if is_update and norms else None,
            supervised_tokens=supervised,
            trained_tokens=trained_tokens,
            seconds=seconds,
            peak_memory=mx.get_peak_memory() / 1e9,
        )

    return take
