"""YAML, as mlx-lm reads it, with bounds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mlxdoctor.evidence.json_text import MAX_WHOLE
from mlxdoctor.evidence.source import Source, read_text
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded

if TYPE_CHECKING:
    from pathlib import Path

# YAML 1.1 reads 1e-5 as a text; mlx-lm adds this rule so that it is a number.
_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
    |\.[0-9_]+(?:[eE][-+][0-9]+)?
    |[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
_INT_TAG, _FLOAT_TAG = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
#: Characters of a number: 64 bits take fewer in any base, and so do 16 digits of a fraction.
#: Python's whole numbers, which 1:30:00.5 is made of too, would grow huge.
MAX_NUMBER = 200


def read_yaml_object(path: Path) -> tuple[dict[str, Any], Source]:
    """The mapping in a YAML file, and its source.

    Only plain values are made, aliases are bounded, and 1e-5 is a number.

    Raises:
        InputError: the file can't be read, is not YAML, holds no mapping, or states a key twice
            with different values.
    """
    import yaml

    limits = current()

    class Loader(yaml.SafeLoader):
        """YAML's safe values, with mlx-lm's floats; the class is local, PyYAML's stays as it is."""

        values = depth = 0

        def __init__(self, text: str) -> None:
            super().__init__(text)
            self.sizes: dict[int, int] = {}

        def compose_node(self, parent: Any, index: Any) -> Any:
            """The next node, counted with what its aliases stand for.

            PyYAML takes seconds for a megabyte, so it is stopped at the limit, not afterwards.
            Of brackets in brackets, each costs it a look at all that are open.
            """
            is_alias = self.check_event(yaml.AliasEvent)
            before = self.values
            self.count(1)
            if self.depth > limits.json_depth:
                raise exceeded(path, "is nested more deeply than a configuration", "json_depth")
            self.depth += 1
            node = super().compose_node(parent, index)
            self.depth -= 1
            if not is_alias:
                _require_sound(node, path)
                self.sizes[id(node)] = self.values - before
            elif id(node) in self.sizes:
                self.count(self.sizes[id(node)] - 1)
            else:
                raise InputError(path, "has a YAML alias that contains itself")
            return node

        def count(self, more: int) -> None:
            self.values += more
            if self.values > limits.yaml_values:
                problem = "has too many values for a configuration, aliases written out"
                raise exceeded(path, problem, "yaml_values")

        def construct_yaml_int(self, node: Any) -> int:
            value: int = super().construct_yaml_int(node)
            if not -MAX_WHOLE < value < MAX_WHOLE:
                raise _too_large(path, node, "does not fit into 64 bits")
            return value

    Loader.add_constructor(_INT_TAG, Loader.construct_yaml_int)
    Loader.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+0123456789."))
    text, source = read_text(path, "yaml_bytes")
    try:
        value = Loader(text).get_single_data()
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(path, f"is not valid YAML ({reason})", "check its syntax") from None
    except RecursionError:
        raise InputError(path, "is nested too deeply for a configuration") from None
    if not isinstance(value, dict):
        raise InputError(path, "holds no `key: value` lines", "name a training configuration")
    return {str(key): one for key, one in value.items()}, source


def _require_sound(node: Any, path: Path) -> None:
    """Refuse a number that is too long, and a key that is there twice with different values.

    YAML's readers take the last of several values.
    """
    if isinstance(node.value, str):
        if node.tag in (_INT_TAG, _FLOAT_TAG) and len(node.value) > MAX_NUMBER:
            raise _too_large(path, node, f"has {len(node.value):,} characters")
        return
    stated: dict[tuple[str, str], Any] = {}
    pairs = [one for one in node.value if isinstance(one, tuple)]
    for key, value in pairs:
        if not isinstance(key.value, str):
            continue
        first: Any = stated.setdefault((key.tag, key.value), value)
        is_same_text = isinstance(value.value, str) and first.value == value.value
        if first is not value and not is_same_text:
            raise InputError(path, f"{key.value!r} is there twice, with different values")


def _too_large(path: Path, node: Any, why: str) -> InputError:
    return InputError(path, f"states the number {node.value[:21]}…, which {why}", "correct it")
