"""YAML, as mlx-lm reads it, with bounds."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.source import Source, read_text
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded

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
_TOO_DEEP = "is nested more deeply than a configuration"
_FLOAT_TAG = "tag:yaml.org,2002:float"
#: Characters of a number, by its tag: 64 bits take 20 digits, and a fraction has 17.
#: Python's whole numbers, which 1:30:00.5 is made of too, would grow huge.
_LONGEST = {"tag:yaml.org,2002:int": 20, _FLOAT_TAG: 64}


def read_yaml_object(path: Path) -> tuple[dict[str, Any], Source]:
    """The mapping in a YAML file, and its source.

    Only plain values are made, aliases are bounded, and 1e-5 is a number.

    Raises:
        InputError: the file can't be read, is not YAML, holds no mapping, or states a key twice
            with different values.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML's safe values, with mlx-lm's floats; the class is local, PyYAML's stays as it is."""

    Loader.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+0123456789."))
    text, source = read_text(path, "yaml_bytes")
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is not None:
            _count(node, path, {}, current().json_depth)
        value = loader.construct_document(node) if node is not None else None
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(path, f"is not valid YAML ({reason})", "check its syntax") from None
    except RecursionError:
        raise exceeded(path, _TOO_DEEP, "json_depth") from None
    if not isinstance(value, dict):
        raise InputError(path, "holds no `key: value` lines", "name a training configuration")
    return {str(key): entry for key, entry in value.items()}, source


def _count(node: Any, path: Path, counts: dict[int, int], levels: int) -> int:
    """How many values a node stands for, with its aliases written out.

    Refuses aliases in circles, too many values, levels or digits, and a key that is there twice
    with different values, of which YAML's readers take the last.

    Args:
        node: a node as PyYAML composes it, before any value is made.
        counts: those of the nodes that were seen, by their ids; 0 while one is counted.
    """
    if (known := counts.get(id(node))) is not None:
        if not known:
            raise InputError(path, "has a YAML alias that contains itself")
        return known
    if levels < 0:
        raise exceeded(path, _TOO_DEEP, "json_depth")
    counts[id(node)] = 0
    children: list[Any] = []
    if isinstance(node.value, str):
        if (length := len(node.value)) > _LONGEST.get(node.tag, length):
            problem = f"states the number {node.value[:21]}…, which has {length:,} characters"
            raise InputError(path, problem, "correct it")
    elif node.id == "mapping":
        children = [part for pair in node.value for part in pair]
        pairs = {
            (key.value, value.value if isinstance(value.value, str) else id(value))
            for key, value in node.value
            if isinstance(key.value, str)
        }
        for key, times in Counter(key for key, _ in pairs).items():
            if times > 1:
                raise InputError(path, f"{key!r} is there twice, with different values")
    else:
        children = node.value
    total = 1 + sum(_count(child, path, counts, levels - 1) for child in children)
    if total > current().yaml_values:
        problem = "has too many values for a configuration, aliases written out"
        raise exceeded(path, problem, "yaml_values")
    counts[id(node)] = total
    return total
