"""What the model is given, and what is made of its logits."""

from dataclasses import replace

from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.reading import Reading, reading
from mlxdoctor.twin.settings import Settings


@reading(fix="Give the model its causal mask.")
def no_causal_mask(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
    """Of a model without its causal mask, which sees the tokens that it is to predict."""
    from mlxdoctor.twin.other_losses import loss_through, without_causal_mask

    return settings, replace(parts, loss=loss_through(parts.loss, without_causal_mask))


@reading(fix="Keep inputs and targets of a row together: shuffle both or neither.")
def targets_of_another_row(settings: Settings, parts: Parts) -> tuple[Settings, Parts] | None:
    """Of inputs with the targets of another row of the batch."""
    from mlxdoctor.twin.other_losses import loss_of_neighbours

    if settings.batch_size < 2:
        return None
    return settings, replace(parts, loss=loss_of_neighbours(parts.loss))


def _scaled(factor: float, code: str, how: str) -> Reading:
    def apply(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
        from mlxdoctor.twin.other_losses import loss_through, scaled_logits

        return settings, replace(parts, loss=loss_through(parts.loss, scaled_logits(factor)))

    fix = "Give the loss the logits as the model computes them."
    return Reading(code, f"of logits that are {how}", apply, fix)


SCALED = (
    _scaled(4.0, "logits-times-four", "multiplied by 4"),
    _scaled(2.0, "logits-times-two", "multiplied by 2"),
    _scaled(0.5, "logits-halved", "halved"),
)


@reading(fix="Give the loss logits: it takes their logarithm itself.")
def probabilities_as_logits(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
    """Of probabilities where logits belong."""
    from mlxdoctor.twin.other_losses import loss_through, probabilities

    return settings, replace(parts, loss=loss_through(parts.loss, probabilities))
