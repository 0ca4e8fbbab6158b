"""Evidence given directly, for running one check."""

from typing import Any

from mlxdoctor.check import Check
from mlxdoctor.evidence.kind import Missing
from mlxdoctor.finding import Finding, Outcome
from mlxdoctor.models.generations import Generation, Generations

#: Part of what `mlx_lm.lora` writes of its arguments.
WRITTEN = {"adapter_path": "a", "grad_accumulation_steps": 1, "test_batches": 1, "train": True}


class Given:
    """An evidence source that has what it was given, by class."""

    def __init__(self, *evidence: Any) -> None:
        self.evidence = evidence

    def get(self, kind: type[Any]) -> Any:
        return next((one for one in self.evidence if type(one) is kind), None)

    def need(self, kind: type[Any]) -> Any:
        if (one := self.get(kind)) is None:
            raise Missing(f"no {getattr(kind, 'kind', kind.__name__)} was given")
        return one

    is_planned = False


def outcome(check: Check, *evidence: Any) -> Outcome:
    """What the check says to this evidence; it must not crash."""
    judged = check.run(Given(*evidence))
    assert judged.status != "crashed", judged.reason
    return judged


def severities(judged: Outcome) -> dict[str, str]:
    """Severity by symptom; the check must not have crashed."""
    assert judged.status != "crashed", judged.reason
    return {each.code.partition(".")[2]: each.severity.value for each in judged.findings}


def findings(check: Check, *evidence: Any) -> dict[str, Finding]:
    return {each.code: each for each in outcome(check, *evidence).findings}


def answers(
    tuned: list[tuple[int, ...]],
    base: list[tuple[int, ...]] | None,
    *,
    ends: tuple[int, ...] = (9,),
    max_tokens: int = 16,
    expected: str | None = None,
) -> Generations:
    """Generations of token ids, with each id as a word of its text."""

    def text(tokens: tuple[int, ...]) -> str:
        return " ".join(f"w{token}" for token in tokens)

    items = tuple(
        Generation(
            prompt=f"prompt {i}",
            base=text(base[i]) if base is not None else None,
            tuned=text(tokens),
            base_tokens=base[i] if base is not None else None,
            tuned_tokens=tokens,
            max_tokens=max_tokens,
            expected=expected,
        )
        for i, tokens in enumerate(tuned)
    )
    return Generations((), items, ends)
