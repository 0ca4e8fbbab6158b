"""The fused model against base and adapter, on rows made to order and on a real model."""

from pathlib import Path

import pytest

from fixtures.lab.cases.workshop import copied_run
from mlxdoctor.finding import Outcome
from mlxdoctor.models.losses import LossesBeforeFusing, RowLosses, TokenLosses
from mlxdoctor.run import Run
from tests.conftest import FIXTURES, check_called
from tests.given import outcome
from tests.measured_rows import Losses, measured_rows

fused_agreement = check_called("fused-agreement")


def rows(loss: float | None, count: int = 40, prompt: float = 1.0) -> tuple[RowLosses, ...]:
    tuned = None if loss is None else Losses(prompt, loss, loss, loss, loss)
    return measured_rows(Losses(), tuned, count, spread=0.2)


def judged(fused: tuple[RowLosses, ...], unfused: tuple[RowLosses, ...] | None) -> Outcome:
    losses = TokenLosses((), fused, vocab_size=100)
    before = [] if unfused is None else [LossesBeforeFusing((), unfused, vocab_size=100)]
    return outcome(fused_agreement, losses, *before)


#: Four bad rows among them.
ODD = (*rows(9.0)[:4], *rows(1.0)[4:])


@pytest.mark.parametrize(
    ("fused", "before", "severities"),
    [
        (rows(1.04), rows(1.0), []),
        (rows(1.06), rows(1.0), ["warning"]),
        (rows(1.09), rows(1.0), ["warning"]),
        (rows(1.11), rows(1.0), ["error"]),
        # A small loss may grow by a fifth in rounding.
        (rows(0.119), rows(0.1), []),
        (rows(0.121), rows(0.1), ["warning"]),
        # The prompt is not what was learned, and a few rows are no pattern.
        (rows(1.0, prompt=5.0), rows(1.0), []),
        (ODD, rows(1.0), []),
    ],
)
def test_what_fusing_cost(
    fused: tuple[RowLosses, ...], before: tuple[RowLosses, ...], severities: list[str]
) -> None:
    found = judged(fused, before)
    assert [finding.severity for finding in found.findings] == severities
    assert found.status == ("found" if severities else "passed")


def test_too_little_to_decide() -> None:
    assert judged(rows(2.0), None).status == "skipped"
    assert judged(rows(2.0, 7), rows(1.0, 7)).status == "inconclusive"
    assert judged(rows(2.0), rows(None)).status == "inconclusive"


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "severity"), [(8, None), (2, "error")])
def test_a_model_that_was_fused(tmp_path: Path, bits: int, severity: str | None) -> None:
    from mlx.utils import tree_unflatten
    from mlx_lm import load
    from mlx_lm.utils import quantize_model, save

    run, base = copied_run(tmp_path / "run"), str(FIXTURES / "base")
    model, tokenizer, stated = load(base, adapter_path=str(run), return_config=True)
    fused = [(name, one.fuse()) for name, one in model.named_modules() if hasattr(one, "fuse")]
    model.update_modules(tree_unflatten(fused))
    model, stated = quantize_model(model, stated, group_size=32, bits=bits)
    save(str(run / "fused"), base, model, tokenizer, stated)
    found = fused_agreement.run(Run.discover([run]))
    assert found.status == ("found" if severity else "passed"), found.reason
    assert [one.severity for one in found.findings] == ([severity] if severity else [])
