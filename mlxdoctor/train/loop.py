"""The training loop: from settings to adapter files, one readable pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxdoctor.safety.errors import InputError
from mlxdoctor.train import saving
from mlxdoctor.train.attach import recomputed_activations
from mlxdoctor.train.batches import Batch, Batches, Worker
from mlxdoctor.train.masked_loss import evaluate, scalar
from mlxdoctor.train.optimizers import build_optimizer
from mlxdoctor.train.parts import Parts, parts_of
from mlxdoctor.train.plan import Plan, make_plan
from mlxdoctor.train.settings import Settings
from mlxdoctor.train.step import Accumulated, Step, StepOutput, compile_step
from mlxdoctor.train.step_records import (
    Ending,
    StepRecord,
    TrainingResult,
    ValidationRecord,
    add_metrics,
    open_metrics,
)
from mlxdoctor.train.stopping import (
    DivergenceLimits,
    TrainingProgress,
    after_step,
    after_validation,
    why_stop,
)
from mlxdoctor.train.token_rows import TokenRow, TokenRows

#: Called on every process with the plan, after each validation and after each step; a text
#: it returns for the plan or for a step ends the run with that reason.
Tell = Callable[[Plan | StepRecord | ValidationRecord], str | None]
DONE = "every iteration was made"


def worker_here() -> Worker:
    """This process's place under `mlx.launch`; the only one elsewhere."""
    group = mx.distributed.init()
    return Worker(group.rank(), group.size())


def train(
    settings: Settings,
    *,
    parts: Parts | None = None,
    tell: Tell | None = None,
    limits: DivergenceLimits | None = None,
) -> TrainingResult:
    """Train as the settings say, and write the adapter, its configuration and the metrics.

    MLX's global random generator is seeded. Under `mlx.launch` every process calls this
    with the same settings; the batch is shared out and the first process writes.

    Args:
        parts: what the run is put together from; by default that of the settings' mode.
        tell: who is told how it goes, and may end it; before the first step nothing is written.
        limits: when a run counts as diverging.

    Raises:
        InputError: a setting, the model, the data or the output folder is unusable.
    """
    worker, parts, tell = worker_here(), parts or parts_of(settings), tell or (lambda _: None)
    batches = parts.batches(settings, worker)
    model, tokenizer = parts.load(settings)
    rows = parts.encode(settings, tokenizer)
    if not rows.train:
        raise InputError(Path(settings.data), "has no training rows")
    if settings.test and not rows.test:
        raise InputError(Path(settings.data), "has no test rows", "leave out `test: true`")
    parts.prepare(model, settings)
    optimizer = build_optimizer(settings)
    optimizer.init(model.trainable_parameters())
    if settings.extras.is_exact and worker.size > 1:
        # After the adapter, which is the same everywhere: dropout must not be.
        mx.random.seed(settings.seed * worker.size + worker.rank)
    progress, accumulated = saving.resume(settings, model, optimizer, len(rows.train))
    with ExitStack() as stack:
        if mx.metal.is_available():
            # On a Mac, keep the model in memory while it is trained, as mlx-lm does.
            most: Any = mx.device_info()["max_recommended_working_set_size"]
            stack.callback(mx.set_wired_limit, mx.set_wired_limit(most))
        if settings.grad_checkpoint:
            stack.enter_context(recomputed_activations(model.layers))
        plan = make_plan(settings, model, optimizer, rows, parts.loss, start=progress.iteration + 1)
        asked = tell(plan)
        if asked is not None:
            return TrainingResult("stopped", asked, plan, adapter_path=Path(settings.adapter_path))
        metrics = None
        if worker.rank == 0:
            saving.write_config(settings)
            path = Path(settings.adapter_path) / saving.METRICS_FILE
            metrics = stack.enter_context(open_metrics(path, progress.iteration))
        mx.reset_peak_memory()
        step = compile_step(model, optimizer, parts.loss, settings.extras, worker.size)
        run = _Run(
            *(settings, parts, batches, model, optimizer, rows, step, worker, metrics, tell),
            limits or DivergenceLimits(),
        )
        return _run_steps(run, plan, progress, accumulated)


@dataclass(frozen=True)
class _Run:
    """What stays the same from the first step to the last."""

    settings: Settings
    parts: Parts
    batches: Batches
    model: Any
    optimizer: Any
    rows: TokenRows
    step: Step
    worker: Worker
    metrics: FileIO | None
    tell: Tell
    limits: DivergenceLimits

    def write(self, record: StepRecord | ValidationRecord) -> None:
        if self.metrics is not None:
            add_metrics(self.metrics, record)

    def loss_on(self, rows: tuple[TokenRow, ...], batches: int) -> float:
        chosen = self.batches.evaluation(rows, batches)
        return evaluate(self.model, chosen, self.parts.loss, self.worker.size)

    def save(
        self, progress: TrainingProgress, rest: Accumulated | None, iteration: int | None = None
    ) -> None:
        if self.worker.rank == 0:
            saving.write_adapter(self.settings, self.model, iteration)
        if self.settings.extras.save_state:
            saving.write_state(
                *(self.settings, self.model, self.optimizer),
                progress=progress,
                accumulated=rest,
                rows=len(self.rows.train),
            )


def _run_steps(
    run: _Run, plan: Plan, progress: TrainingProgress, accumulated: Accumulated | None
) -> TrainingResult:
    settings = run.settings
    steps: list[StepRecord] = []
    validations: list[ValidationRecord] = []
    ending: tuple[Ending, str] | None = None
    first = progress.iteration + 1
    batches = run.batches.train(run.rows.train, first)
    run.model.train()
    for iteration in range(first, settings.iters + 1):
        tic = time.perf_counter()
        # Drawn before the validation, as in mlx-lm: both draw from one generator there.
        batch = next(batches)
        drawn = time.perf_counter() - tic
        if run.rows.valid and _validates_before(settings, iteration):
            validations.append(_validated(run, iteration - 1))
            progress = after_validation(progress, validations[-1])
        tic = time.perf_counter()
        is_update = _is_update(settings, iteration)
        output = _evaluated(run, batch, accumulated, is_update)
        accumulated = output.accumulated
        seconds = time.perf_counter() - tic + drawn
        steps.append(_recorded(run, output, progress, is_update=is_update, seconds=seconds))
        run.write(steps[-1])
        progress = after_step(progress, steps[-1], run.limits)
        if iteration % settings.save_every == 0:
            run.save(progress, accumulated, iteration)
        if run.rows.valid and settings.extras.is_exact and _validates_after(settings, iteration):
            validations.append(_validated(run, iteration))
            progress = after_validation(progress, validations[-1])
        asked = run.tell(steps[-1])
        ending = why_stop(progress, settings.extras, run.limits)
        if asked is not None:
            ending = "stopped", asked
        if ending is not None:
            break
    run.save(progress, accumulated)
    kind, reason = ending or ("finished", DONE)
    test_loss = None
    if settings.test and kind in {"finished", "no-improvement"}:
        test_loss = run.loss_on(run.rows.test, settings.test_batches)
    run.model.eval()
    return TrainingResult(
        *(kind, reason, plan, tuple(steps), tuple(validations), test_loss),
        adapter_path=Path(settings.adapter_path),
    )


def _is_update(settings: Settings, iteration: int) -> bool:
    # mlx-lm never applies the batches left over at the end.
    is_last = settings.extras.is_exact and iteration == settings.iters
    return is_last or iteration % settings.grad_accumulation_steps == 0


def _validates_before(settings: Settings, iteration: int) -> bool:
    if iteration == 1:
        return True
    return not settings.extras.is_exact and _validates_after(settings, iteration)


def _validates_after(settings: Settings, iteration: int) -> bool:
    return iteration % settings.steps_per_eval == 0 or iteration == settings.iters


def _evaluated(
    run: _Run, batch: Batch, accumulated: Accumulated | None, is_update: bool
) -> StepOutput:
    output = run.step(mx.array(batch.tokens), mx.array(batch.spans), accumulated, is_update)
    # The one place where the step's lazy graph is computed.
    mx.eval(run.model.state, run.optimizer.state, mx.random.state, output)
    if mx.get_cache_memory() > run.settings.clear_cache_threshold:
        mx.clear_cache()
    return output


def _validated(run: _Run, iteration: int) -> ValidationRecord:
    tic = time.perf_counter()
    loss = run.loss_on(run.rows.valid, run.settings.val_batches)
    run.model.train()
    record = ValidationRecord(iteration, loss, time.perf_counter() - tic)
    run.write(record)
    run.tell(record)
    return record


def _recorded(
    run: _Run, output: StepOutput, progress: TrainingProgress, *, is_update: bool, seconds: float
) -> StepRecord:
    supervised = int(scalar(output.supervised))
    skipped = not scalar(output.sound)
    norms = {name: scalar(one) for name, one in output.module_norms.items()}
    return StepRecord(
        iteration=progress.iteration + 1,
        train_loss=scalar(output.loss),
        learning_rate=scalar(run.optimizer.learning_rate),
        grad_norm=scalar(output.grad_norm) if is_update else None,
        supervised_tokens=supervised,
        trained_tokens=progress.trained_tokens + (0 if skipped else supervised),
        skipped=progress.skipped + skipped,
        seconds=seconds,
        peak_memory=mx.get_peak_memory() / 1e9,
        grad_norms=norms if run.settings.extras.module_norms and is_update else None,
        skipped_this=skipped,
    )
