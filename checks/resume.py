"""A resumed run that did not take up what it resumed from.

What it finds. A run whose `resume_adapter_file` holds tensors that do not exist in the
adapter it trained, so that they were left out: all of them, or some; tensors of another
shape; and another rank than the configuration's.

Why it matters. mlx-lm loads that file with `strict=False`: what does not fit is dropped
without a word. The run then starts again from the base model, and hours of earlier training
are lost while everything looks as usual. Tensors of another rank replace the run's own, and what
is saved no longer fits the configuration saved beside it.

How it is measured. The names and shapes in the resumed file are compared with those in
the adapter that the run saved. The loss tells the same story: resumed, it should begin where
the earlier run ended, and not where the base model does.

When it is wrong. When the resumed file was replaced after the run began: mlx-lm overwrites
`adapters.safetensors` in place, so that a run resumed from its own folder looks sound.

What to do. Another rank: set `lora_parameters.rank` to the file's, or start afresh without it.
Otherwise rename the tensors, or set `num_layers`, `keys` and the rank as they were, before
resuming. Loading the adapter once with `mlx_lm.load(model, adapter_path=...)` refuses what
does not fit.
"""

from collections.abc import Iterator

from mlxdoctor.check import DoesNotArise, NotApplicable, check
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.resumed import ResumedAdapter
from mlxdoctor.finding import Sign, Symptom

_EXAMPLES = 3
_TAKEN_UP = {
    "expected": "every tensor of the file in the adapter",
    "fix": "Give the tensors the names of this model's modules, or the run the layers and "
    "keys of the adapter it resumes, and resume again.",
}


@check(
    codes={
        "nothing-loaded": Symptom.error(
            "no tensor of the file resumed from belongs to this adapter", **_TAKEN_UP
        ),
        "partly-loaded": Symptom.error(
            "some tensors of the file resumed from do not belong to this adapter", **_TAKEN_UP
        ),
        "shapes-differ": Symptom.error(
            "tensors of the file resumed from have other shapes",
            expected="the same shapes",
            fix="Resume with the rank that the adapter was trained with.",
        ),
        "rank-differs": Symptom.error(
            "the file resumed from has another rank than the configuration",
            expected="the same rank",
        ),
    },
    rerun_symptom=True,
)
def resume(
    resumed: ResumedAdapter | None, adapter: Adapter | None, config: TrainingConfig | None
) -> Iterator[Sign]:
    """Compare the names and shapes of what was resumed, what was saved, and what was asked for."""
    if config is not None and not config.resume_adapter_file:
        raise DoesNotArise("the run was not resumed")
    of_rank = list(_rank(resumed.adapter, adapter, config)) if resumed is not None else []
    yield from of_rank
    if resumed is None or adapter is None:
        if of_rank:
            return
        named = config.resume_adapter_file if config is not None else None
        what = f"{named}, which it was resumed from," if named else "what it was resumed from"
        raise NotApplicable(f"{what} is not here, or what it trained is not")
    before, after = resumed.adapter.tensors, adapter.tensors
    shared = before.keys() & after.keys()
    lost = sorted(before.keys() - after.keys())
    name = f"{resumed.adapter.path.name}, which the run was resumed from,"
    if lost:
        yield Sign(
            "partly-loaded" if shared else "nothing-loaded",
            f"{f'Only {len(shared)}' if shared else 'None'} of the {len(before)} tensors in {name} "
            f"exist in the adapter it trained (there is no {lost[0]}): "
            f"{'the others' if shared else 'all'} were dropped.",
            {
                "resumed_tensors": len(before),
                "loaded": len(shared),
                "dropped": tuple(lost[:_EXAMPLES]),
                "trained": tuple(sorted(after)[:_EXAMPLES]),
            },
            where=lost[0],
        )
    reshaped = sorted(one for one in shared if before[one].shape != after[one].shape)
    if reshaped:
        first = reshaped[0]
        yield Sign(
            "shapes-differ",
            f"{len(reshaped)} tensors in {name} have other shapes than in the adapter it trained "
            f"({first}: {before[first].shape} and {after[first].shape}).",
            {"tensors": len(reshaped)},
            where=first,
        )


def _rank(resumed: Adapter, saved: Adapter | None, config: TrainingConfig | None) -> Iterator[Sign]:
    ranks = sorted({one.rank for one in resumed.modules})
    if saved is not None and {one.rank for one in saved.modules} != set(ranks):
        # The file was replaced since, or the tensors were left out: the shapes tell.
        return
    wanted = config.rank if config is not None and config.origin == "mlx-lm" else None
    if wanted is None or len(ranks) != 1 or ranks[0] == wanted:
        return
    yield Sign(
        "rank-differs",
        f"{resumed.path.name}, which the run was resumed from, has rank {ranks[0]}, and the "
        f"configuration asks for rank {wanted}: mlx-lm puts the file's tensors in place of the "
        f"run's own without a word, and what it saves does not fit its configuration.",
        {"resumed_rank": ranks[0], "rank": wanted},
        where=resumed.modules[0].name,
        fix=f"Set lora_parameters.rank to {ranks[0]} and resume again, or leave "
        f"resume_adapter_file out and start afresh with rank {wanted}.",
    )
