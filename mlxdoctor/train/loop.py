"""The training loop: from settings to adapter files, one readable pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxdoctor.judge.curve import DivergenceLimits
from mlxdoctor.safety.errors import InputError
from mlxdoctor.train import files
from mlxdoctor.train.batches import Batch, Worker
from mlxdoctor.train.evaluation import evaluate
from mlxdoctor.train.model import recomputed_activations
from mlxdoctor.train.parts import Parts, parts_of
from mlxdoctor.train.plan import Plan, make_plan
from mlxdoctor.train.progress import (
    Progress,
    after_step,
    after_validation,
    why_stop,
)
from mlxdoctor.train.records import (
    Ending,
    StepRecord,
    TrainingResult,
    ValidationRecord,
    to_line,
)
from mlxdoctor.train.rows import Rows
from mlxdoctor.train.settings import Settings
from mlxdoctor.train.step import Accumulated, Step, StepOutput, StepRule, compile_step, scalar

#: Called after each step; a text it returns ends the run with that reason.
OnStep = Callable[[StepRecord], str | None]
OnValidation = Callable[[ValidationRecord], None]
OnPlan = Callable[[Plan], None]
DONE = "every iteration was made"


@dataclass(frozen=True)
class Hooks:
    """Who is told what while a run goes on; on the first process of a run only, but `step`.

    Attributes:
        plan: before the first step.
        step: after each step, on every process; may end the run.
        validation: after each validation.
    """

    plan: OnPlan | None = None
    step: OnStep | None = None
    validation: OnValidation | None = None


@dataclass(frozen=True)
class _Run:
    """What stays the same from the first step to the last."""

    settings: Settings
    parts: Parts
    model: Any
    optimizer: Any
    rows: Rows
    step: Step
    worker: Worker
    hooks: Hooks
    metrics: FileIO | None
    limits: DivergenceLimits = field(default_factory=DivergenceLimits)

    @property
    def folder(self) -> Path:
        return Path(self.settings.adapter_path)

    @property
    def leads(self) -> bool:
        return self.worker.rank == 0


def worker_here() -> Worker:
    """This process's place under `mlx.launch`; the only one elsewhere."""
    group = mx.distributed.init()
    return Worker(group.rank(), group.size())


def train(
    settings: Settings,
    *,
    parts: Parts | None = None,
    hooks: Hooks | None = None,
    limits: DivergenceLimits | None = None,
) -> TrainingResult:
    """Train as the settings say, and write the adapter, its configuration and the metrics.

    MLX's global random generator is seeded. Under `mlx.launch` every process calls this
    with the same settings; the batch is shared out and the first process writes.

    Args:
        parts: what the run is put together from; by default that of the settings' mode.
        hooks: who is told what.
        limits: when a run counts as diverging.

    Raises:
        InputError: a setting, the model, the data or the output folder is unusable.
    """
    hooks, worker = hooks or Hooks(), worker_here()
    parts = parts or parts_of(settings, worker)
    model, tokenizer = parts.load(settings)
    rows = parts.encode(settings, tokenizer)
    if not rows.train:
        raise InputError(Path(settings.data), "has no training rows")
    if settings.test and not rows.test:
        raise InputError(Path(settings.data), "has no test rows", "leave out `test: true`")
    parts.prepare(model, settings)
    optimizer = parts.build_optimizer(settings)
    optimizer.init(model.trainable_parameters())
    if settings.extras.is_exact and worker.size > 1:
        # After the adapter, which is the same everywhere: dropout must not be.
        mx.random.seed(settings.seed * worker.size + worker.rank)
    progress, accumulated = _resume(settings, model, optimizer, rows)
    with ExitStack() as stack:
        stack.enter_context(_wired_memory())
        if settings.grad_checkpoint:
            stack.enter_context(recomputed_activations(model.layers))
        if worker.rank == 0:
            plan = make_plan(
                model, optimizer, rows, parts.loss, settings, start=progress.iteration + 1
            )
            if hooks.plan is not None:
                hooks.plan(plan)
        metrics = _open_files(stack, settings, progress) if worker.rank == 0 else None
        mx.reset_peak_memory()
        rule = _rule(settings, worker)
        step = compile_step(model, optimizer, parts.loss, rule)
        run = _Run(
            *(settings, parts, model, optimizer, rows, step, worker, hooks, metrics),
            limits or DivergenceLimits(),
        )
        return _run_steps(run, progress, accumulated)


def _run_steps(run: _Run, progress: Progress, accumulated: Accumulated | None) -> TrainingResult:
    settings, begun = run.settings, time.perf_counter()
    exact = settings.extras.is_exact
    steps: list[StepRecord] = []
    validations: list[ValidationRecord] = []
    ending: tuple[Ending, str] | None = None
    first = progress.iteration + 1
    batches = run.parts.train_batches(run.rows.train, first)
    run.model.train()
    for iteration in range(first, settings.iters + 1):
        tic = time.perf_counter()
        # Drawn before the validation, as in mlx-lm: both draw from one generator there.
        batch = next(batches)
        drawn = time.perf_counter() - tic
        if run.rows.valid and _validates_before(settings, iteration):
            validations.append(_validate(run, iteration - 1))
            progress = after_validation(progress, validations[-1])
        tic = time.perf_counter()
        is_update = _is_update(settings, iteration)
        output = _evaluated(run, batch, accumulated, is_update)
        accumulated = output.accumulated
        seconds = time.perf_counter() - tic + drawn
        steps.append(_step_record(run, output, progress, is_update=is_update, seconds=seconds))
        _write(run, steps[-1].to_dict())
        progress = after_step(progress, steps[-1], run.limits)
        if iteration % settings.save_every == 0:
            _save(run, progress, accumulated, iteration)
        if exact and run.rows.valid and _validates_after(settings, iteration):
            validations.append(_validate(run, iteration))
            progress = after_validation(progress, validations[-1])
        ending = _ending(run, progress, steps[-1])
        if ending is not None:
            break
    _save(run, progress, accumulated, None)
    kind, reason = ending or ("finished", DONE)
    test_loss = _test(run) if settings.test and kind in {"finished", "no-improvement"} else None
    run.model.eval()
    seconds = time.perf_counter() - begun
    return TrainingResult(
        kind, reason, tuple(steps), tuple(validations), test_loss, run.folder, seconds
    )


def _evaluated(
    run: _Run, batch: Batch, accumulated: Accumulated | None, is_update: bool
) -> StepOutput:
    output = run.step(mx.array(batch.tokens), mx.array(batch.spans), accumulated, is_update)
    # The one place where the step's lazy graph is computed.
    mx.eval(run.model.state, run.optimizer.state, mx.random.state, output)
    if mx.get_cache_memory() > run.settings.clear_cache_threshold:
        mx.clear_cache()
    return output


def _step_record(
    run: _Run, output: StepOutput, progress: Progress, *, is_update: bool, seconds: float
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
        skipped_this=skipped,
        seconds=seconds,
        peak_memory=mx.get_peak_memory() / 1e9,
        module_norms=norms if run.settings.extras.module_norms and is_update else None,
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


def _validate(run: _Run, iteration: int) -> ValidationRecord:
    tic = time.perf_counter()
    batches = run.parts.evaluation_batches(run.rows.valid, run.settings.val_batches)
    loss = evaluate(run.model, batches, run.parts.loss, run.worker.size)
    run.model.train()
    record = ValidationRecord(iteration, loss, time.perf_counter() - tic)
    _write(run, record.to_dict())
    if run.leads and run.hooks.validation is not None:
        run.hooks.validation(record)
    return record


def _test(run: _Run) -> float:
    batches = run.parts.evaluation_batches(run.rows.test, run.settings.test_batches)
    return evaluate(run.model, batches, run.parts.loss, run.worker.size)


def _ending(run: _Run, progress: Progress, step: StepRecord) -> tuple[Ending, str] | None:
    asked = run.hooks.step(step) if run.hooks.step is not None else None
    if asked is not None:
        return "stopped", asked
    return why_stop(progress, run.settings.extras, run.limits)


def _save(
    run: _Run, progress: Progress, accumulated: Accumulated | None, iteration: int | None
) -> None:
    if run.leads:
        files.write_adapter(run.folder, run.model, iteration)
    if run.settings.extras.save_state:
        files.write_state(
            run.folder,
            model=run.model,
            optimizer=run.optimizer,
            progress=progress,
            accumulated=accumulated,
            settings=run.settings,
            rows=len(run.rows.train),
        )


def _write(run: _Run, record: dict[str, Any]) -> None:
    if run.metrics is not None:
        try:
            # Unbuffered: what is held back would fail once more when the file is closed.
            run.metrics.write(to_line(record).encode())
        except OSError as error:
            raise InputError(
                str(run.metrics.name), f"cannot be written ({error.strerror})"
            ) from None


def _resume(
    settings: Settings, model: Any, optimizer: Any, rows: Rows
) -> tuple[Progress, Accumulated | None]:
    if settings.extras.resume_state is None:
        return Progress(), None
    path = Path(settings.extras.resume_state)
    restored = files.restore_state(path, model, optimizer, settings, len(rows.train))
    done = restored.progress.iteration
    if done >= settings.iters:
        raise InputError(path, f"is at iteration {done} of {settings.iters}", "raise `iters`")
    return restored.progress, restored.accumulated


def _open_files(stack: ExitStack, settings: Settings, progress: Progress) -> FileIO:
    folder = Path(settings.adapter_path)
    files.write_config(folder, settings)
    path = folder / files.METRICS_FILE
    files.keep_metrics(path, progress.iteration)
    return stack.enter_context(path.open("ab", buffering=0))


def _rule(settings: Settings, worker: Worker) -> StepRule:
    return StepRule(
        by_tokens=settings.extras.is_exact,
        guarded=settings.extras.skip_limit is not None,
        grad_clip=settings.extras.grad_clip,
        module_norms=settings.extras.module_norms,
        world=worker.size,
    )


@contextmanager
def _wired_memory() -> Iterator[None]:
    """On a Mac, keep the model in memory while it is trained, as mlx-lm does."""
    if not mx.metal.is_available():
        yield
        return
    limits: Any = mx.device_info()
    before = mx.set_wired_limit(limits["max_recommended_working_set_size"])
    try:
        yield
    finally:
        mx.set_wired_limit(before)
