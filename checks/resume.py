"""A resumed run that did not take up what it resumed from.

What it finds. A run whose `resume_adapter_file` holds tensors that do not exist in the
adapter it trained, so that they were left out: all of them, or some; and tensors of another
shape.

Why it matters. mlx-lm loads that file with `strict=False`: what does not fit is dropped
without a word. The run then starts again from the base model, and hours of earlier training
are lost while everything looks as usual.

How it is measured. The names and shapes in the resumed file are compared with those in
the adapter that the run saved. The loss tells the same story: resumed, it should begin where
the earlier run ended, and not where the base model does.

When it is wrong. When the resumed file was replaced after the run began: mlx-lm overwrites
`adapters.safetensors` in place, so that a run resumed from its own folder looks sound.

What to do. Rename the tensors, or set `num_layers`, `keys` and the rank as they were, before
resuming. Loading the adapter once with `mlx_lm.load(model, adapter_path=...)` refuses what
does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlxdoctor.check import check
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.resumed_adapter import ResumedAdapter
from mlxdoctor.finding import Finding, Severity

_EXAMPLES = 3


@check(
    codes={
        "nothing-loaded": "no tensor of the file resumed from belongs to this adapter",
        "partly-loaded": "some tensors of the file resumed from do not belong to this adapter",
        "shapes-differ": "tensors of the file resumed from have other shapes",
    },
    rerun_symptom=True,
)
def resume(resumed: ResumedAdapter, adapter: Adapter) -> Iterator[Finding]:
    """Compare the names and shapes of what was resumed and what was saved."""
    before, after = resumed.adapter.tensors, adapter.tensors
    shared = before.keys() & after.keys()
    lost = sorted(before.keys() - after.keys())
    name = resumed.adapter.path.name
    if lost:
        everything = not shared
        yield Finding(
            code=f"resume.{'nothing' if everything else 'partly'}-loaded",
            severity=Severity.ERROR,
            message=f"{'None' if everything else f'Only {len(shared)}'} of the {len(before)} "
            f"tensors in {name}, which the run was resumed from, exist in the adapter it trained "
            f"(there is no {lost[0]}): {'all' if everything else 'the others'} were dropped.",
            measured={
                "resumed_tensors": len(before),
                "loaded": len(shared),
                "dropped": tuple(lost[:_EXAMPLES]),
                "trained": tuple(sorted(after)[:_EXAMPLES]),
            },
            expected="every tensor of the file in the adapter",
            where=lost[0],
            fix="Give the tensors the names of this model's modules, or the run the layers and "
            "keys of the adapter it resumes, and resume again.",
        )
    reshaped = sorted(one for one in shared if before[one].shape != after[one].shape)
    if reshaped:
        first = reshaped[0]
        yield Finding(
            code="resume.shapes-differ",
            severity=Severity.ERROR,
            message=f"{len(reshaped)} tensors in {name}, which the run was resumed from, have "
            f"other shapes than in the adapter it trained ({first}: "
            f"{before[first].shape} and {after[first].shape}).",
            measured={"tensors": len(reshaped)},
            expected="the same shapes",
            where=first,
            fix="Resume with the rank that the adapter was trained with.",
        )
