"""Which tokens are targets, and how far from their inputs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mlxdoctor.evidence.dataset import Dataset, Features
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.readings import Reading, losses, reading
from mlxdoctor.twin.settings import Settings
from mlxdoctor.twin.token_rows import TokenRow, TokenRows

_KEEP_THE_END = "Put the end token at the end of every row, and do not mask it."


@reading(sound=True)
def without_padding(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
    """Without the padding token that mlx-lm trains after each row."""
    return settings, replace(parts, loss=losses().exact_loss)


@reading(sound=True)
def answers_alone(settings: Settings, parts: Parts) -> tuple[Settings, Parts] | None:
    """Of the answers alone."""
    return None if settings.mask_prompt else (replace(settings, mask_prompt=True), parts)


@reading(sound=True)
def answers_with_their_header(settings: Settings, parts: Parts) -> tuple[Settings, Parts] | None:
    """Of the answers and the tokens that open them, as mlx-lm masked before 0.28.4."""
    splits = Dataset.read(Path(settings.data), Features.stated(vars(settings))).splits

    def encode(settings: Settings, tokenizer: Any) -> TokenRows:
        def earlier(name: str, rows: Sequence[TokenRow]) -> tuple[TokenRow, ...]:
            split = splits.get(name)
            asked = [split.messages(row)[:-1] for row in split.rows] if split is not None else []
            return tuple(
                replace(row, offset=len(tokenizer.apply_chat_template(turns, return_dict=False)))
                for row, turns in zip(rows, asked, strict=False)
            )

        rows = parts.encode(settings, tokenizer)
        return replace(rows, train=earlier("train", rows.train), valid=earlier("valid", rows.valid))

    has_prompts = all(split.format in ("chat", "completions") for split in splits.values())
    masked = replace(settings, mask_prompt=True)
    return (masked, replace(parts, encode=encode)) if has_prompts else None


@reading(sound=True)
def up_to_the_end_token(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
    """Of rows that stop at their end token."""
    return settings, replace(parts, encode=up_to_the_end(parts, kept=1), loss=losses().exact_loss)


@reading(sound=True)
def batch_mean(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
    """Averaged over batches, each counted alike."""
    return settings, replace(parts, loss=losses().batch_mean_loss)


@reading(sound=True)
def row_mean(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
    """Averaged over rows, each counted alike."""
    return settings, replace(parts, loss=losses().row_mean_loss)


@reading(sound=True)
def smoothed(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
    """Of smoothed labels."""
    return settings, replace(parts, loss=losses().smoothed_loss)


@reading(fix="Build the mask so that the first target is the first token of the answer.")
def prompt_in_the_loss(settings: Settings, parts: Parts) -> tuple[Settings, Parts] | None:
    """Of prompt and answer, although the prompt was to be masked."""
    return (replace(settings, mask_prompt=False), parts) if settings.mask_prompt else None


def shifted(settings: Settings, parts: Parts, shift: int) -> tuple[Settings, Parts]:
    """The run with targets that are shifted by this, not by 1: by 0, each token predicts itself."""
    return settings, replace(parts, loss=losses().shifted_loss(shift))


SHIFTED = tuple(
    Reading(
        code,
        f"of predicting the {target}",
        partial(shifted, shift=shift),
        "Make targets[i] the token after inputs[i], shifted exactly once.",
    )
    for shift, code, target in (
        (0, "token-just-given", "token just given, since the targets are not shifted"),
        (2, "token-after-the-next", "token after the next, since the targets are shifted twice"),
        (3, "third-token-ahead", "third token ahead"),
    )
)


@reading(fix=_KEEP_THE_END)
def no_end_token(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
    """Of rows without their end token."""
    return settings, replace(parts, encode=up_to_the_end(parts, kept=0))


@reading(fix=_KEEP_THE_END)
def end_token_masked(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
    """Of all tokens but the end token, which is masked wherever it stands."""
    end = Tokenizer.read(Path(settings.model)).eos_token_id or 0
    return settings, replace(parts, loss=losses().loss_without(end))


@reading(fix="Mask the prompt alone: every token of the answer is a target.")
def first_token_alone(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
    """Of the first token of each answer alone."""
    return replace(settings, mask_prompt=True), replace(parts, loss=losses().first_target_loss)


@reading(fix="Turn the mask round: the answers are the targets, and the prompts are not.")
def prompts_alone(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
    """Of the prompts alone, since the mask is inverted."""
    return replace(settings, mask_prompt=True), replace(parts, loss=losses().prompt_loss)


@reading(fix="Mask by each row's length: padding is no target.")
def padding_in_the_loss(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
    """Of all places of a batch, the padding included."""
    return settings, replace(parts, loss=losses().whole_batch_loss)


@reading(fix="Divide by the number of targets: steps otherwise depend on the size of a batch.")
def summed(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
    """Summed over the targets of a batch, and not divided by their number."""
    return settings, replace(parts, loss=losses().summed_loss)


def up_to_the_end(
    parts: Parts, *, kept: int, share: float = 1.0
) -> Callable[[Settings, Any], TokenRows]:
    """This share of the rows up to their last end token, with it (`kept` is 1) or without (0)."""

    def encode(settings: Settings, tokenizer: Any) -> TokenRows:
        generator = np.random.default_rng(settings.seed)

        def ended(row: TokenRow) -> TokenRow:
            ends = np.flatnonzero(row.tokens == tokenizer.eos_token_id)
            is_cut = len(ends) > 0 and generator.random() < share
            return replace(row, tokens=row.tokens[: ends[-1] + kept]) if is_cut else row

        return parts.encode(settings, tokenizer).map(ended)

    return encode
