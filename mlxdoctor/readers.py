"""How each kind of evidence is read from a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.code_files import RemoteCode
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.discovery import CHECKPOINT_NAME, resolve_file
from mlxdoctor.evidence.earlier_run import EarlierRun
from mlxdoctor.evidence.environment import Environment
from mlxdoctor.evidence.metrics import ReportedMetrics
from mlxdoctor.evidence.missing import Missing, NotThere
from mlxdoctor.evidence.reference import ReferenceRun
from mlxdoctor.evidence.resumed_adapter import ResumedAdapter
from mlxdoctor.evidence.stated_config import StatedConfig
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.supervision import build as build_supervised_rows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.trainer_source import TrainerSource
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.evidence.validation_rows import ValidationRows
from mlxdoctor.measure.generations import Generations
from mlxdoctor.measure.scoring import Scores, load_function
from mlxdoctor.measure.scoring import score as score_answers
from mlxdoctor.measure.token_losses import TokenLosses
from mlxdoctor.measure.training_step.measurement import TrainingStep
from mlxdoctor.safety.errors import InputError

if TYPE_CHECKING:
    from mlxdoctor.run import Run

NO_TRAINER = "no trainer was named; name yours with --trainer FILE:FUNCTION"


def _config(run: Run) -> TrainingConfig:
    if run.files.config is None:
        raise Missing("no adapter_config.json and no training configuration was found")
    return TrainingConfig.read(run.files.config)


def _stated_config(run: Run) -> StatedConfig:
    named = run.need(TrainingConfig).values.get("config")
    if not isinstance(named, str) or not named:
        raise NotThere("the run was not started with a configuration file")
    path = resolve_file(named, run.files.roots)
    if path is None:
        raise NotThere(f"{named}, which the run was started with, is not here")
    return StatedConfig.read(path)


def _log(run: Run) -> TrainingLog:
    if not run.files.logs:
        raise Missing("no training log was found; name it with --log")
    return TrainingLog.read(run.files.logs)


def _adapter(run: Run) -> Adapter:
    if run.files.adapter is None:
        raise Missing("no adapter file was found; name it with --adapter")
    return Adapter.read(run.files.adapter, is_loose=run.files.adapter_is_loose)


def _resumed(run: Run) -> ResumedAdapter:
    config = run.need(TrainingConfig)
    if config.resume_adapter_file is None:
        raise NotThere("the run was not resumed")
    path = resolve_file(config.resume_adapter_file, run.files.roots)
    if path is None:
        raise Missing(f"{config.resume_adapter_file}, which it was resumed from, is not here")
    return ResumedAdapter(Adapter.read(path))


def _earlier(run: Run) -> EarlierRun:
    adapter = run.need(ResumedAdapter).adapter
    numbered = CHECKPOINT_NAME.match(adapter.path.name)
    iteration = int(numbered[1]) if numbered else None
    log = run.need(TrainingLog)
    folder = adapter.path.parent
    own = {one.parent.resolve() for one in (run.files.config, run.files.adapter) if one is not None}
    if folder.resolve() in own:
        trained = [one for one in log.segments if one.get("train_loss") is not None]
        if len(trained) < 2:
            raise Missing("the log of the run that was resumed is not in this one")
        return EarlierRun((), trained[-2], None, iteration)
    found = type(run).discover([folder], allow_model=False)
    beside = all(one.parent.samefile(folder) for one in found.files.logs)
    earlier = found.get(TrainingLog) if beside else None
    config = found.get(TrainingConfig)
    if earlier is None:
        raise Missing(f"there is no log beside {adapter.path.name}, which the run was resumed from")
    sources = (*earlier.sources, *(config.sources if config is not None else ()))
    return EarlierRun(sources, earlier.main, config, iteration)


def _checkpoints(run: Run) -> CheckpointHistory:
    if not run.files.checkpoints:
        raise Missing("no numbered checkpoints were found")
    return CheckpointHistory.read(run.files.checkpoints[0].parent)


def _base(run: Run) -> BaseModel:
    if run.files.base is not None:
        return BaseModel.read(run.files.base)
    if run.files.base_named is not None:
        raise Missing(
            f"the base model {run.files.base_named!r} is not on this machine; "
            "name its folder with --base"
        )
    raise Missing("nothing names the base model; name its folder with --base")


def _tuned(run: Run) -> TunedModel:
    if run.files.tuned is not None:
        return TunedModel.read(run.files.tuned)
    tuned = TunedModel.of(run.need(Adapter))
    if tuned is None:
        raise NotThere("no fused model and no full fine-tune was found")
    return tuned


def _tokenizer(run: Run) -> Tokenizer:
    folder = run.files.base or run.files.tuned
    if folder is None:
        raise Missing(f"no tokenizer: {_reason(run, BaseModel)}")
    return Tokenizer.read(folder)


def _dataset(run: Run) -> Dataset:
    if run.files.data is not None:
        return Dataset.read(run.files.data, run.get(TrainingConfig))
    if run.files.data_named is not None:
        raise Missing(
            f"the data {run.files.data_named!r} is not on this machine; name its folder with --data"
        )
    raise Missing("nothing names the training data; name its folder with --data")


def _supervised_rows(run: Run) -> SupervisedRows:
    dataset = run.need(Dataset)
    split = "train" if "train" in dataset.splits else next(iter(dataset.splits))
    return build_supervised_rows(dataset, run.need(Tokenizer), run.get(TrainingConfig), split=split)


def _generations(run: Run) -> Generations:
    recorded = run.files.generations
    if recorded is not None and (run.files.generations_named or not run.allow_model):
        return Generations.read(recorded)
    try:
        return _produced(run)
    except (Missing, InputError):
        # What the user recorded is second best: it may have been made in another way.
        if recorded is None:
            raise
        return Generations.read(recorded)


def _produced(run: Run) -> Generations:
    from mlxdoctor.measure.generate import produce, prompts_for

    tokenizer, models = run.need(Tokenizer), run.models
    prompts = prompts_for(run.get(Dataset), tokenizer)
    return produce(models, tokenizer, prompts, progress=run.progress)


def _token_losses(run: Run) -> TokenLosses:
    from mlxdoctor.measure.forward import measure

    tokenizer, models = run.need(Tokenizer), run.models
    splits = [run.need(SupervisedRows)]
    dataset = run.need(Dataset)
    if "valid" in dataset.splits and splits[0].split != "valid":
        config = run.get(TrainingConfig)
        splits.append(build_supervised_rows(dataset, tokenizer, config, split="valid"))
    return measure(models, tokenizer, splits, progress=run.progress)


def _validation_rows(run: Run) -> ValidationRows:
    from mlxdoctor.measure.losses.validation import SPLIT, prepare

    dataset = run.need(Dataset)
    if SPLIT not in dataset.splits:
        raise NotThere("the data has no validation split")
    tokenizer, models, adapter = run.need(Tokenizer), run.models, run.files.adapter
    unfused = None
    if run.files.tuned is not None and adapter is not None:
        from mlxdoctor.measure.models import load

        unfused = partial(load, models.base, adapter)
    measured = run.get(TokenLosses)
    return prepare(
        models,
        tokenizer,
        dataset,
        run.get(TrainingConfig),
        known=measured.split(SPLIT) if measured is not None else (),
        unfused=unfused,
        progress=run.progress,
    )


def _metrics(run: Run) -> ReportedMetrics:
    if not run.files.metrics:
        raise NotThere("no evaluation result was found")
    return ReportedMetrics.read(run.files.metrics)


def _reference(run: Run) -> ReferenceRun:
    if run.against is None:
        raise NotThere("no healthy run was named; name one with --against")
    other = type(run).discover([run.against], allow_model=False)
    reference = ReferenceRun(
        other.name, other.get(TrainingConfig), other.get(TrainingLog), other.get(Adapter)
    )
    if not reference.sources:
        raise InputError(run.against, "holds no configuration, log or adapter to compare with")
    return reference


def _scores(run: Run) -> Scores:
    if run.score is None:
        raise NotThere("no scoring function was named; name one with --score")
    function, sources = load_function(run.score)
    return score_answers(run.need(Generations), function, run.score, sources)


def _training_step(run: Run) -> TrainingStep:
    if run.trainer is None:
        raise NotThere(NO_TRAINER)
    # Loads MLX, and runs the user's code.
    from mlxdoctor.measure.training_step.trainer import load_trainer
    from mlxdoctor.probe.probing import measure

    trainer, sources = load_trainer(run.trainer)
    return measure(
        trainer.model,
        trainer.loss_fn,
        trainer.batch,
        optimizer=trainer.optimizer,
        tokenizer=trainer.tokenizer,
        step=trainer.step,
        sources=sources,
        progress=run.progress,
    )


def _trainer_source(run: Run) -> TrainerSource:
    if run.trainer is None:
        raise NotThere(NO_TRAINER)
    return TrainerSource.read(run.need(TrainingStep).sources)


def _remote_code(run: Run) -> RemoteCode:
    files = run.files
    named = (files.base, files.tuned, files.adapter)
    places = [root if root.is_dir() else root.parent for root in files.roots]
    places += [one if one.is_dir() else one.parent for one in named if one is not None]
    return RemoteCode.read(dict.fromkeys(one.resolve() for one in places))


def _environment(run: Run) -> Environment:
    del run
    return Environment.read()


def _reason(run: Run, kind: type[Any]) -> str:
    run.get(kind)
    return run.why_missing(kind)


#: How each kind of evidence is read from a run.
READERS: Mapping[type[Any], Callable[[Run], Any]] = {
    TrainingConfig: _config,
    StatedConfig: _stated_config,
    TrainingLog: _log,
    Adapter: _adapter,
    ResumedAdapter: _resumed,
    EarlierRun: _earlier,
    CheckpointHistory: _checkpoints,
    BaseModel: _base,
    TunedModel: _tuned,
    Tokenizer: _tokenizer,
    Dataset: _dataset,
    SupervisedRows: _supervised_rows,
    Generations: _generations,
    TokenLosses: _token_losses,
    ValidationRows: _validation_rows,
    ReportedMetrics: _metrics,
    ReferenceRun: _reference,
    Scores: _scores,
    TrainingStep: _training_step,
    TrainerSource: _trainer_source,
    RemoteCode: _remote_code,
    Environment: _environment,
}
