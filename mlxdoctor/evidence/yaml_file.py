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
#: Characters of a number: 64 bits take fewer in any base, and so do 16 digits of a fraction.
MAX_NUMBER = 200


def read_yaml_object(path: Path) -> tuple[dict[str, Any], Source]:
    """The mapping in a YAML file, and its source.

    Only plain values are made, aliases are bounded, and 1e-5 is a number.

    Raises:
        InputError: the file can't be read, is not YAML, or holds no mapping.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML's safe values, with mlx-lm's floats; the class is local, PyYAML's stays as it is."""

        composed = depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            # PyYAML takes seconds for a megabyte: stop at the limit, not afterwards. Of brackets
            # in brackets, each costs it a look at all that are open.
            self.composed += 1
            if self.composed > current().yaml_values:
                raise exceeded(path, "has too many values for a configuration", "yaml_values")
            if self.depth > current().json_depth:
                raise exceeded(path, "is nested more deeply than a configuration", "json_depth")
            self.depth += 1
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_yaml_int(self, node: Any) -> int:
            value: int = super().construct_yaml_int(_number(node, path))
            if not -MAX_WHOLE < value < MAX_WHOLE:
                raise _too_large(path, node, "does not fit into 64 bits")
            return value

        def construct_yaml_float(self, node: Any) -> float:
            value: float = super().construct_yaml_float(_number(node, path))
            return value

    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    Loader.add_constructor("tag:yaml.org,2002:float", Loader.construct_yaml_float)
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
    text, source = read_text(path, "yaml_bytes")
    try:
        loader = Loader(text)
        document = loader.get_single_node()
        if document is not None:
            _refuse_huge(document, path)
        value = None if document is None else loader.construct_document(document)
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(path, f"is not valid YAML ({reason})", "check its syntax") from None
    except RecursionError:
        raise InputError(path, "is nested too deeply for a configuration") from None
    if not isinstance(value, dict):
        raise InputError(path, "holds no `key: value` lines", "name a training configuration")
    return {str(key): one for key, one in value.items()}, source


def _number(node: Any, path: Path) -> Any:
    """The node, unless Python's whole numbers, which 1:30:00.5 is made of too, would grow huge."""
    if (length := len(node.value)) > MAX_NUMBER:
        raise _too_large(path, node, f"has {length:,} characters")
    return node


def _too_large(path: Path, node: Any, why: str) -> InputError:
    return InputError(path, f"states the number {node.value[:21]}…, which {why}", "correct it")


def _refuse_twice(mapping: Any, path: Path) -> None:
    """Refuse a key that is there twice with different values; YAML's readers take the last."""
    said: dict[tuple[str, str], Any] = {}
    for key, value in mapping.value:
        if not isinstance(key.value, str):
            continue
        before = said.setdefault((key.tag, key.value), value)
        if before is not value and (
            not isinstance(value.value, str) or before.value != value.value
        ):
            raise InputError(path, f"{key.value!r} is there twice, with different values")


def _refuse_huge(document: Any, path: Path) -> None:
    """Refuse a document whose aliases, written out, would be huge or endless."""
    import yaml

    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: Any) -> int:
        if id(node) in open_nodes:
            raise InputError(path, "has a YAML alias that contains itself")
        if id(node) not in sizes:
            open_nodes.add(id(node))
            children: list[Any] = []
            if isinstance(node, yaml.MappingNode):
                _refuse_twice(node, path)
                children = [one for pair in node.value for one in pair]
            elif isinstance(node, yaml.SequenceNode):
                children = node.value
            sizes[id(node)] = 1 + sum(size(child) for child in children)
            open_nodes.discard(id(node))
        return sizes[id(node)]

    if (values := size(document)) > current().yaml_values:
        raise exceeded(path, f"has {values:,} values once aliases are expanded", "yaml_values")
