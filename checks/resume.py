"""What a run resumes from is not taken up, or was not.

What it finds. A file to resume from that is not there, has no place in the run's adapter for some
or all of its tensors, or has another rank; and a first validation loss that is the base model's, or
lies far above where the earlier run was.

Why it matters. mlx-lm loads that file with `strict=False`: what does not fit is dropped
without a word. The run then starts again from the base model, and hours of earlier training
are lost while everything looks as usual. Tensors of another rank replace the run's own, and what
is saved no longer fits the configuration saved beside it.

How it is measured. The names and shapes in the resumed file are compared with those in
the adapter that the run saved, or where the run is only planned with the modules of the base model
that its configuration puts an adapter on. The first validation loss of the resumed run is held
against the earlier run's first one and the one nearest before the checkpoint that was resumed from:
its log lies beside that checkpoint, or comes before this run's in the same file. What counts is the
part of the earlier fall that is lost.

When it is wrong. When the resumed file was replaced after the run began: mlx-lm overwrites
`adapters.safetensors` in place, so that a run resumed from its own folder looks sound. A plan
that is looked at on another machine than the one that will train, where files lie elsewhere. With
few validation batches each run draws others: the tolerance is a few tenths of a nat. Runs on other
data or with another mask have other losses and are not compared.

What to do. Give the run the rank, `num_layers` and `keys` of the file it resumes, or rename the
tensors. Loading the adapter once with `mlx_lm.load(model, adapter_path=...)` refuses what does not
fit.
"""

from collections.abc import Collection, Iterator
from math import isfinite

from mlxdoctor.check import DoesNotArise, NotApplicable, check
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.other_runs import EarlierRun, PlannedRun, ResumedAdapter, ResumedConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought
from mlxdoctor.measure.weights.lora_targets import target_modules

#: Nats that the earlier run must have gained for its end to tell.
_LEARNED = 0.3
#: Nats above where the earlier run was: a few validation batches, drawn anew, differ by up to 0.1,
#: and 12 resumed runs that took up all rise by 0.09 at most.
_RISE = 0.3
#: Share of the earlier fall that is lost: 0.02 at most in the same 12 runs, 0.35 to 0.61 in 4 that
#: dropped half of the tensors, 0.99 to 1.00 in 5 that dropped all.
_LOST = 0.15


@check(
    codes={
        "no-file": Symptom.error(
            "the file to resume from is not there",
            says="{file}, which the run is to resume from, is not there.",
            expected="an adapter file that an earlier run saved",
            fix="correct resume_adapter_file",
        ),
        "not-loaded": Symptom.error(
            "tensors of the file resumed from do not belong to this adapter",
            says="Only {loaded} of the {resumed_tensors} tensors in {file}, which the run resumes "
            "from, [have a module that gets an adapter, not {planned} for one: the others will "
            "be|exist in the adapter it trained (there is no {where}): the others were] dropped.",
            expected="every tensor of the file in the adapter",
            fix="Rename the tensors to this model's modules, or set the run's layers and keys to "
            "those of the resumed adapter. Then resume again.",
        ),
        "rank-differs": Symptom.error(
            "the file resumed from has another rank than the configuration",
            says="{file}, which the run resumes from, has rank {resumed_rank}, but the "
            "configuration asks for rank {rank}. mlx-lm silently replaces the run's tensors with "
            "the file's. The adapter that it saves then does not fit the configuration.",
            expected="the same rank",
            fix="Set lora_parameters.rank to {resumed_rank} and resume again, or leave "
            "resume_adapter_file out and start afresh with rank {rank}.",
        ),
        "scale-differs": Symptom.info(
            "the run goes on at another scale than the file was trained at",
            "the same scale",
            "set lora_parameters.scale to {resumed_scale:g}",
            in_a_plan=Severity.WARNING,
            says="{file}, which the run resumes from, was trained at scale {resumed_scale:g}, and "
            "goes on at {scale:g}: what it learned counts {times:.2g} times as much.",
        ),
        "from-the-base": Symptom.error(
            "the resumed run begins at the base model's loss, or far above the earlier run's end",
            says="The run was resumed where the validation loss had fallen from "
            "{earlier_first:.3f} to {earlier_reached:.3f}, and begins at {start:.3f}: {lost:.0%} "
            "of what was learned before is gone.",
            expected="a first validation loss near {earlier_reached:.3f}",
            fix="resume with the keys, layers and rank of the adapter that was resumed from",
        ),
    },
    rerun_symptom=True,
)
def resume(
    config: TrainingConfig,
    *,
    resumed: ResumedAdapter | None,
    resumed_config: ResumedConfig | None,
    adapter: Adapter | None,
    base: BaseModel | None,
    planned: PlannedRun | None,
    earlier: EarlierRun | None,
    log: TrainingLog | None,
) -> Iterator[Sign | Unsought]:
    named = config.resume_adapter_file
    if not named:
        raise DoesNotArise("the run was not resumed")
    if planned is not None and resumed is None:
        yield Sign("no-file", {"file": named}, where="resume_adapter_file")
        return
    if earlier is not None and log is not None:
        yield from _start(earlier, log, config)
    else:
        yield Unsought(("from-the-base",), "the log of this run or of the earlier one is not here")
    of_rank = list(_rank(resumed, adapter, config)) if resumed is not None else []
    yield from of_rank
    before = resumed_config.scale if resumed_config is not None else None
    if before and config.scale and before != config.scale and not of_rank:
        scales = {"resumed_scale": before, "scale": config.scale, "times": config.scale / before}
        yield Sign("scale-differs", {**scales, "file": resumed.path.name if resumed else named})
    taken = None if resumed is None else _taken(resumed, adapter, base, planned)
    if resumed is None or taken is None:
        if planned is None and not of_rank and earlier is None:
            why = f"{named}, which it was resumed from, is not here, or what it trained is not"
            raise NotApplicable(why)
        return
    if lost := sorted(resumed.tensors.keys() - taken):
        loaded, where = len(resumed.tensors) - len(lost), lost[0]
        measured: dict[str, Measurement] = {"resumed_tensors": len(resumed.tensors)}
        measured |= {"loaded": loaded, "file": resumed.path.name, "planned": None}
        if planned is not None:
            measured["planned"], where = lost[0].rpartition(".")[0], "resume_adapter_file"
        yield Sign("not-loaded", measured, where)


def _taken(
    resumed: Adapter,
    adapter: Adapter | None,
    base: BaseModel | None,
    planned: PlannedRun | None,
) -> Collection[str] | None:
    """The tensors that have a place in the run's own adapter; None where that is not known."""
    if planned is None:
        return adapter.tensors.keys() if adapter is not None else None
    if base is None or planned.config.fine_tune_type == "full":
        return None
    if (modules := target_modules(planned.config, base)) is None:
        return None
    return {name for name in resumed.tensors if name.rpartition(".")[0] in modules}


def _rank(resumed: Adapter, saved: Adapter | None, config: TrainingConfig) -> Iterator[Sign]:
    ranks = {module.rank for module in resumed.modules}
    if saved is not None and {module.rank for module in saved.modules} != ranks:
        # The file was replaced since, or the tensors were left out: the names tell.
        return
    rank, wanted = max(ranks, default=None), config.rank
    if config.origin != "mlx-lm" or wanted is None or len(ranks) != 1 or rank == wanted:
        return
    figures: dict[str, Measurement] = {"resumed_rank": rank, "rank": wanted}
    where = resumed.modules[0].name
    yield Sign("rank-differs", {**figures, "file": resumed.path.name}, where=where)


def _start(
    earlier: EarlierRun, log: TrainingLog, config: TrainingConfig
) -> Iterator[Sign | Unsought]:
    """A first validation loss far above the one that the earlier run had reached."""
    start, losses = log.main.base_val_loss, earlier.segment.finite("val_loss")
    first = earlier.segment.base_val_loss
    later = losses.iterations > losses.iterations[:1]
    if earlier.iteration is not None:
        # Through a callback the loss is reported one iteration early.
        later &= losses.iterations <= earlier.iteration
    others = [
        key
        for key in ("data", "mask_prompt", "model")
        if earlier.config is not None and getattr(earlier.config, key) != getattr(config, key)
    ]
    if others:
        why = f"the earlier run had another {others[0]}, so that losses differ"
        yield Unsought(("from-the-base",), why)
    elif start is None or first is None or not isfinite(start + first) or not later.any():
        why = "a log lacks a validation loss from before the first update, or later"
        yield Unsought(("from-the-base",), why)
    elif first - (reached := float(losses.values[later][-1])) < _LEARNED:
        why = f"the earlier run's validation loss fell by only {first - reached:.2g}"
        yield Unsought(("from-the-base",), why)
    elif start - reached >= _RISE and (lost := (start - reached) / (first - reached)) >= _LOST:
        figures = {"start": start, "earlier_first": first, "earlier_reached": reached}
        yield Sign("from-the-base", {**figures, "lost": lost}, onset=0)
