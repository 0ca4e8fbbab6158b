"""The fused model against the base model with its adapter.

What it finds. A fused model that predicts the run's own rows worse than the base model with the
adapter does.

Why it matters. Fusing adds the update to the weights, and a quantised model is quantised again:
what is smaller than the quantisation step is lost. The adapter is sound then, and what is
served is not.

How it is measured. Both read the same training and validation rows, 16 of each at most. The
losses are compared row by row with a sign test, and by their means over targets.

When it is wrong. Rounding always costs something; below a share of the loss it is not told. An
adapter that was trained further after the fusing is another one.

What to do. Fuse with `--dequantize`, or serve the adapter beside the base model.
"""

from collections.abc import Iterator

import numpy as np

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom
from mlxdoctor.measure.text.statistics import SIGNIFICANCE, sign_test
from mlxdoctor.models.losses import ENOUGH_ROWS, LossesBeforeFusing, Targets, TokenLosses, mean_loss

_SAID = (
    "On {rows:* row} the fused model's loss is {fused_loss:.3f}, that of base and adapter "
    "{adapter_loss:.3f}"
)

#: How much fusing may cost: this share of the loss before it, half of a usual cost, and so many
#: nats; rounding to half precision costs less.
_SHARE, _LEAST = 0.05, 0.02
#: Nats that make it an error: a perplexity up by a tenth.
_FAR = 0.1


@check(
    codes={
        "worse": Symptom.warning(
            "the fused model is worse than base and adapter on the same rows",
            says=f"{_SAID}: fusing, or quantising the sum, lost some of what was learned.",
            expected="about {adapter_loss:.3f}, as before fusing",
            fix="Fuse with `--dequantize`, or serve the adapter beside the base model.",
        )
    },
)
def fused_agreement(losses: TokenLosses, unfused: LossesBeforeFusing) -> Iterator[Sign | Seen]:
    if losses.load_failure or unfused.load_failure:
        raise Inconclusive("the adapter could not be loaded on this base model")
    both = {(row.split, row.index): row for row in unfused.compared}
    fused = [row for row in losses.compared if (row.split, row.index) in both]
    before_fusing = [both[row.split, row.index] for row in fused]
    if len(fused) < ENOUGH_ROWS:
        raise Inconclusive(f"{len(fused)} rows are too few to decide; {ENOUGH_ROWS} are needed")
    targets = Targets(masks_prompt=any(row.prompt_length for row in fused))
    before, after = (
        np.array([mean_loss([row], "tuned", targets).value for row in rows])
        for rows in (before_fusing, fused)
    )
    apart, together = (mean_loss(rows, "tuned", targets).value for rows in (before_fusing, fused))
    p_value, lost = sign_test(after - before), together - apart
    measured: dict[str, Measurement] = {
        "rows": len(fused),
        "adapter_loss": round(apart, 4),
        "fused_loss": round(together, 4),
        "p_value": p_value,
    }
    if p_value < SIGNIFICANCE and lost > max(_LEAST, _SHARE * apart):
        yield Sign("worse", measured, severity=Severity.ERROR if lost > _FAR else None)
    else:
        yield Seen(f"{_SAID}.", measured)
