"""Rows with an empty answer teach to end at once: rerun with the base model's own answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxdoctor.causes import Cause
from mlxdoctor.experiments import counterfactual
from mlxdoctor.experiments.shared.bench import Bench
from mlxdoctor.experiments.shared.copies import write_rows
from mlxdoctor.experiments.shared.observation import Condition
from mlxdoctor.experiments.shared.rules import Question, Ruling, Trials, judge_change
from mlxdoctor.train.faults import Fault
from mlxdoctor.train.parts import Parts
from mlxdoctor.train.settings import Settings

#: What causes.toml says of findings about rows with an empty answer.
EMPTY = "empty"
#: Tokens of an answer that the base model is asked for, where the data has none.
ANSWER_TOKENS = 48
#: Rows with an empty answer that get one.
ANSWERED_ROWS = 64


def answers_filled(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Give rows with an empty answer the base model's own; those beyond the count are left out."""
    from mlx_lm import generate

    model, tokenizer = parts.load(settings)
    folder = Path(settings.adapter_path) / "data"
    shutil.copytree(settings.data, folder, dirs_exist_ok=True)
    for path in folder.glob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
        for row in rows[: int(severity)]:
            messages = row.get("messages")
            if not messages or str(messages[-1].get("content") or "").strip():
                continue
            prompt = tokenizer.apply_chat_template(
                messages[:-1], add_generation_prompt=True, return_dict=False
            )
            answer = generate(model, tokenizer, prompt, max_tokens=ANSWER_TOKENS)
            messages[-1] = {**messages[-1], "content": answer.strip()}
        write_rows(path, [row for row in rows if _has_answer(row)])
    return replace(settings, data=str(folder)), parts


def _has_answer(row: Mapping[str, Any]) -> bool:
    messages = row.get("messages") or [{}]
    return bool(str(messages[-1].get("content") or "").strip())


FILLED = Fault(
    "filling empty answers with the base model's own",
    "bad-data",
    "Rows with an empty answer get the base model's own answer.",
    (ANSWERED_ROWS,),
    answers_filled,
)


@counterfactual(
    of="failing",
    shows=lambda cause: EMPTY in cause.leave_out.values(),
    any_symptom=True,
)
def fill_answers(bench: Bench, cause: Cause, question: Question, plain: Trials) -> Ruling | None:
    """Rerun on the rows with their answers filled in; None where findings name other rows."""
    found = [one.code for outcome in bench.failure.outcomes for one in outcome.findings]
    if {cause.leave_out[code] for code in found if code in cause.leave_out} != {EMPTY}:
        return None
    # Other rows than the run's own may have errors of their own.
    asked = replace(question, strict=False)
    condition = Condition(
        "repair", FILLED.id, bench.failure.iterations, fault=FILLED, severity=ANSWERED_ROWS
    )
    changed = bench.changed(condition, asked, cause.id, plain)
    ruling = judge_change(asked, plain, {}, changed, None, what=condition.label)
    if ruling.verdict == "confirmed":
        return bench.against_placebo(condition, asked, plain, changed)
    return ruling
