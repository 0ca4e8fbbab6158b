"""A run before its first step: what it is put together from, loaded, and what it will do."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mlx_lm.tuner.trainer import default_loss

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.models.load import count_parameters, load_tokenizer, load_weights
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.attach import prepare, recompute_activations
from mlxdoctor.twin.batches import Batch, exact_batches, parity_batches
from mlxdoctor.twin.masked_loss import exact_loss
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.records import Plan
from mlxdoctor.twin.settings import Settings
from mlxdoctor.twin.token_rows import TokenRows, encode, only_supervised


def parts_of(settings: Settings) -> Parts:
    """The parts of the mode that the settings ask for."""

    def load(settings: Settings) -> tuple[Any, Any]:
        folder = Path(settings.model)
        return load_weights(folder), load_tokenizer(folder, BaseModel.read(folder).eos_token_ids)

    def supervised(settings: Settings, tokenizer: Any) -> TokenRows:
        return only_supervised(encode(settings, tokenizer), settings.max_seq_length)

    if settings.is_exact:
        return Parts(load, supervised, prepare, exact_loss, exact_batches)
    # Its mean is over one padding token after each row too, and 0/0 where nothing is supervised.
    return Parts(load, encode, prepare, default_loss, parity_batches)


@dataclass(frozen=True)
class Prepared:
    """What a run begins with.

    Attributes:
        settings: the run's.
        parts: what it was prepared with, and will be trained with.
        model: with its adapter attached, at its start.
        tokenizer: as mlx-lm loads it.
        rows: the three splits.
    """

    settings: Settings
    parts: Parts
    model: Any
    tokenizer: Any
    rows: TokenRows

    def first_batches(self, count: int) -> list[Batch]:
        """The first training batches of the run, in its own order.

        Raises:
            InputError: there are fewer rows than a batch has.
        """
        return list(islice(self.parts.batches(self.settings).train(self.rows.train), count))


def prepared(settings: Settings, parts: Parts | None = None) -> Prepared:
    """Load the model, encode the rows, attach the adapter, and seed MLX's random generator.

    Raises:
        InputError: the model, the data or a setting is unusable, or there are no rows.
    """
    parts = parts or parts_of(settings)
    model, tokenizer = parts.load(settings)
    rows = parts.encode(settings, tokenizer)
    if not rows.train:
        raise InputError(Path(settings.data), "has no training rows")
    parts.prepare(model, settings)
    if settings.grad_checkpoint:
        for layer in model.layers:
            recompute_activations(layer)
    return Prepared(settings, parts, model, tokenizer, rows)


def plan_of(run: Prepared) -> Plan:
    """What a run will train, layers taken together, and which rows it leaves out or cuts."""
    trainable, frozen = count_parameters(run.model)
    few, many = sum(trainable.values()), sum(frozen.values())
    share = 100 * few / max(few + many, 1)
    lines = [
        f"Trainable parameters: {share:.3f}% ({few / 1e6:.3f}M/{(few + many) / 1e6:.3f}M)",
        *(f"  trained  {count:>15,}  {name}" for name, count in trainable.items()),
        *(f"  frozen   {count:>15,}  {name}" for name, count in frozen.items()),
    ]
    if run.rows.left_out:
        lines.append(f"Left out: {run.rows.left_out:,} rows without a token to learn from")
    if cut := sum(len(row.tokens) > run.settings.max_seq_length for row in run.rows.train):
        lines.append(f"Cut: {cut:,} rows are longer than the limit")
    return tuple(lines)
