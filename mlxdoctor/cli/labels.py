"""`mlxdoctor labels`: every token of a row, and whether it is trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND, options, output
from mlxdoctor.finding import plain
from mlxdoctor.formats.escape import terminal

if TYPE_CHECKING:
    from mlxdoctor.evidence.row_encoder import RowEncoder
    from mlxdoctor.evidence.tokenizer import Tokenizer
    from mlxdoctor.finding import Finding
    from mlxdoctor.labels.label_rows import LabelledRow, Totals

#: The checks whose findings are shown below the totals.
CHECKS = ("label-mask", "trained-tokens", "tokenizer-consistency", "data-format")
#: Colours of what is trained on, and of what is not.
_COLOURS = {"answer": "green", "end": "magenta", "prompt": "yellow", "other": "cyan"}


@click.command(name="labels")
@click.argument("data", type=options.PATH)
@options.base_model("Folder with the tokenizer.", required=True)
@click.option("--config", type=options.PATH, help="The run's configuration: mask and limit.")
@click.option(
    "--log", type=options.PATH, multiple=True, help="The run's log: whose count fits which mask."
)
@click.option("--split", default="train", show_default=True)
@click.option(
    "--mask-prompt/--no-mask-prompt", default=None, help="Instead of the configuration's."
)
@click.option(
    "--max-seq-length", type=click.IntRange(min=2), help="Instead of the configuration's."
)
@click.option(
    "--rows", type=click.IntRange(min=0), default=3, show_default=True, help="Rows to show."
)
@options.printed("text", "json")
@click.option("--no-text", is_flag=True, help="Totals only: no text of the data is printed.")
@options.fails_on()
def command(
    *,
    data: Path,
    base: Path,
    config: Path | None,
    log: tuple[Path, ...],
    split: str,
    mask_prompt: bool | None,
    max_seq_length: int | None,
    rows: int,
    output_format: str,
    no_text: bool,
    fail_on: str,
) -> int:
    """Show what mlx-lm trains on: each row's tokens, the targets among them, and totals.

    DATA is a folder with train.jsonl, or a file of JSON lines. On a terminal targets are
    coloured; elsewhere they stand in [[double brackets]].

    \b
    Examples:
      mlxdoctor labels data/ --base models/llama
      mlxdoctor labels data/ --base models/llama --mask-prompt --max-seq-length 512
      mlxdoctor labels data/ --base models/llama --config adapters/ --log train.log
    """
    from mlxdoctor.evidence.config import TrainingConfig
    from mlxdoctor.evidence.dataset import Dataset
    from mlxdoctor.evidence.supervision import encoder_of
    from mlxdoctor.evidence.tokenizer import Tokenizer
    from mlxdoctor.labels.label_rows import LabelledRow, Totals, labelled

    tokenizer = Tokenizer.read(base)
    known = TrainingConfig.read(_config_file(config)) if config is not None else None
    dataset = Dataset.read(data, known)
    name = split if data.is_dir() else next(iter(dataset.splits))
    chosen, encoder = encoder_of(
        dataset, tokenizer, known, name, mask_prompt=mask_prompt, max_seq_length=max_seq_length
    )
    totals, shown = Totals(), list[LabelledRow]()
    for row in labelled(chosen, encoder):
        totals.add(row)
        if len(shown) < rows and not no_text:
            shown.append(row)
    findings, texts = _findings(data, base, config, log)
    content = _to_dict(totals, encoder, shown, findings, tokenizer)
    if no_text:
        from mlxdoctor.formats.withheld import taken_out

        content = taken_out(content, texts)
    if output_format == "json":
        from mlxdoctor.formats import json_format

        click.echo(json_format.render(content), nl=False)
    else:
        click.echo("\n".join(_lines(totals, encoder, shown, content, tokenizer)))
    return EXIT_FOUND if options.fails(findings, fail_on) else EXIT_CLEAN


def _config_file(path: Path) -> Path:
    return path / "adapter_config.json" if path.is_dir() else path


def _findings(
    data: Path, base: Path, config: Path | None, log: tuple[Path, ...]
) -> tuple[list[Finding], Iterator[str]]:
    """What the checks of labels say, that of a log's count only with a log; and the rows' texts."""
    from mlxdoctor.api import run_checks
    from mlxdoctor.check import discover
    from mlxdoctor.run import Run
    from mlxdoctor.run_texts import row_texts

    paths = [data] if config is None else [data, _config_file(config)]
    run = Run.discover(paths, base=base, data=data, log=log, allow_model=False)
    chosen = [one for one in discover() if one.name in CHECKS]
    found = [finding for one in run_checks(chosen, run) for finding in one.findings]
    return found, row_texts(run)


def _lines(
    totals: Totals,
    rules: RowEncoder,
    shown: list[LabelledRow],
    content: Mapping[str, Any],
    tokenizer: Tokenizer,
) -> list[str]:
    lines = []
    for labelled in shown:
        lines += [f"row {labelled.line}", _strip(labelled, tokenizer), ""]
    share = totals.targets / totals.tokens if totals.tokens else 0.0
    masked = "prompts masked" if rules.mask_prompt else "prompts trained"
    lines += [
        f"{totals.rows:,} rows, {totals.tokens:,} tokens, {totals.targets:,} of them targets "
        f"({share:.1%}); {masked}, rows cut after {rules.max_seq_length:,} tokens, the longest has "
        f"{totals.longest:,}",
        "targets: "
        + ", ".join(f"{count:,} {name}" for name, count in totals.by_role.most_common())
        + f"; and {totals.padding_targets:,} padding tokens that mlx-lm counts as well",
    ]
    for one in content["totals"]["problems"]:
        first = ", ".join(map(str, one["first_lines"]))
        lines.append(terminal(f"{one['rows']:,} rows: {one['problem']} (first lines: {first})"))
    for one in content["findings"]:
        lines.append(terminal(f"{one['severity']} [{one['code']}] {one['message']}"))
    return lines


def _strip(labelled: LabelledRow, tokenizer: Tokenizer) -> str:
    """The row's text, what is trained on set off."""
    from mlxdoctor.labels.label_rows import spans

    if labelled.row is None:
        return terminal(f"cannot be tokenized: {labelled.reason}")
    parts = []
    for role, trained, ids in spans(labelled.row):
        text = terminal(tokenizer.decode(ids).replace("\n", "\\n"))
        if not output.is_coloured():
            parts.append(f"[[{text}]]" if trained else text)
        elif trained:
            parts.append(output.style(text, _COLOURS[role], True))
        else:
            parts.append(output.style(text, "red" if role == "cut" else "bright_black", False))
    return "".join(parts)


def _to_dict(
    totals: Totals,
    rules: RowEncoder,
    shown: list[LabelledRow],
    findings: list[Finding],
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    from mlxdoctor.labels.label_rows import spans

    return {
        "mask_prompt": rules.mask_prompt,
        "max_seq_length": rules.max_seq_length,
        "totals": totals.to_dict(),
        "rows": [
            {
                "line": one.line,
                "reason": one.reason,
                "spans": [
                    {"role": role, "target": trained, "tokens": ids, "text": tokenizer.decode(ids)}
                    for role, trained, ids in (spans(one.row) if one.row is not None else [])
                ],
            }
            for one in shown
        ],
        "findings": [plain(one) for one in findings],
    }
