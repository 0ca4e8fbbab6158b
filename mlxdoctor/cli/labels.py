"""`mlxdoctor labels`: every token of a row, and whether it is trained on."""

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import click

from mlxdoctor.cli import EXIT_CLEAN, options, output
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.row_encoder import SupervisedRow
from mlxdoctor.evidence.supervision import encoder_of
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.formats.escape import terminal
from mlxdoctor.labels.label_rows import labelled, spans, totals

#: Colours of what is trained on, and of what is not.
_COLOURS = {"answer": "green", "end": "magenta", "prompt": "yellow", "other": "cyan"}


@click.command(name="labels")
@click.argument("data", type=options.PATH)
@options.base_model("Folder with the tokenizer.", required=True)
@click.option("--config", type=options.PATH, help="The run's configuration: mask and limit.")
@click.option(
    "--mask-prompt/--no-mask-prompt", default=None, help="Instead of the configuration's."
)
@click.option(
    "--max-seq-length", type=click.IntRange(min=2), help="Instead of the configuration's."
)
@click.option(
    "--rows",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Rows to show; 0 for totals.",
)
@options.printed("text", "json")
def command(
    *, data: Path, base: Path, config: Path | None, rows: int, printed: str, **given: Any
) -> int:
    """Show what mlx-lm trains on: each row's tokens, the targets among them, and totals.

    DATA is a folder with train.jsonl, or a file of JSON lines. On a terminal targets are
    coloured; elsewhere they stand in [[double brackets]].

    \b
    Examples:
      mlxdoctor labels data/ --base models/llama
      mlxdoctor labels data/ --base models/llama --mask-prompt --max-seq-length 512
      mlxdoctor labels data/ --base models/llama --config adapters/

    What is wrong with the rows: `mlxdoctor diagnose DATA --base MODEL`.
    """
    tokenizer = Tokenizer.read(base)
    settings = TrainingConfig.read(config) if config is not None else None
    dataset = Dataset.read(data, settings)
    name = "train" if data.is_dir() else next(iter(dataset.splits))
    chosen, encoder = encoder_of(dataset, tokenizer, settings, name, **given)
    first = islice(labelled(chosen, encoder), rows)
    content = {
        "mask_prompt": encoder.mask_prompt,
        "max_seq_length": encoder.max_seq_length,
        "totals": totals(labelled(chosen, encoder)),
        "rows": [_row(line, row, tokenizer) for line, row in first],
    }
    output.show(content, "\n".join(_lines(content)), printed)
    return EXIT_CLEAN


def _row(line: int, row: SupervisedRow | str, tokenizer: Tokenizer) -> dict[str, Any]:
    """One row as JSON shows it."""
    if isinstance(row, str):
        return {"line": line, "reason": row, "spans": []}
    parts = [
        {"role": role, "target": trained, "tokens": ids, "text": tokenizer.decode(ids)}
        for role, trained, ids in spans(row)
    ]
    return {"line": line, "reason": "", "spans": parts}


def _lines(content: Mapping[str, Any]) -> Iterator[str]:
    """What JSON shows, for a terminal."""
    for row in content["rows"]:
        yield f"row {row['line']}"
        refused = terminal(f"cannot be tokenized: {row['reason']}") if row["reason"] else ""
        yield refused or "".join(map(_span, row["spans"]))
        yield ""
    sums = content["totals"]
    masked = "prompts masked" if content["mask_prompt"] else "prompts trained"
    yield (
        f"{sums['rows']:,} rows, {sums['tokens']:,} tokens, {sums['targets']:,} of them "
        f"targets ({sums['share']:.1%}); {masked}, rows cut after "
        f"{content['max_seq_length']:,} tokens, the longest has {sums['longest']:,}"
    )
    by_role = ", ".join(f"{count:,} {name}" for name, count in sums["targets_by_role"].items())
    padding = f"{sums['padding_targets']:,} padding tokens that mlx-lm counts as well"
    yield f"targets: {by_role}; and {padding}"
    for problem in sums["problems"]:
        first = ", ".join(map(str, problem["first_lines"]))
        yield terminal(f"{problem['rows']:,} rows: {problem['problem']} (first lines: {first})")


def _span(span: Mapping[str, Any]) -> str:
    """The text of some tokens; what is trained on is set off."""
    text, is_target = terminal(span["text"].replace("\n", "\\n")), span["target"]
    if not output.is_coloured():
        return f"[[{text}]]" if is_target else text
    untrained = "red" if span["role"] == "cut" else "bright_black"
    return output.style(text, _COLOURS[span["role"]] if is_target else untrained, is_target)
