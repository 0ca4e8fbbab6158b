"""Source text as a syntax tree, whichever Python it is written for.

What this Python cannot parse is read by tree-sitter, whose grammar knows the newer ones. What is
new in it is then written in older words of the same length, in the same place, so that lines and
columns stay true: type parameters are left out, f-strings that this Python cannot read become
tuples of what is put into them.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mlxdoctor.safety.errors import InputError

if TYPE_CHECKING:
    from tree_sitter import Node

#: Statements that only Python 2 has.
_PYTHON_2 = frozenset({"print_statement", "exec_statement"})
#: `lazy import x` of Python 3.15, which the grammar does not know.
_LAZY = re.compile(rb"^([ \t]*)lazy([ \t]+)((?:import|from)[ \t][^\n]*)$", re.MULTILINE)
#: A definition with type parameters, to their bracket.
_GENERIC = re.compile(rb"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+\w+[ \t]*\[", re.MULTILINE)
_TOO_DEEP = (ValueError, RecursionError, MemoryError)


def syntax_tree(text: str, path: Path) -> ast.Module:
    """Parse source text; `path` is what it is called.

    Raises:
        InputError: it is no Python, or of Python 2, or newer than can be read.
    """
    try:
        return _parsed(text)
    except SyntaxError as error:
        return _other_python(text.encode(), path, error.lineno)
    except _TOO_DEEP:
        raise _invalid(path, "is not valid Python") from None


def _parsed(source: str | bytes) -> ast.Module:
    with warnings.catch_warnings():
        # What Python says of the style of a literal is for whoever runs it.
        warnings.simplefilter("ignore")
        return ast.parse(source)


def _invalid(path: Path, problem: str, line: int | None = None) -> InputError:
    at = f" (line {line})" if line else ""
    return InputError(path, f"{problem}{at}", "name Python files")


def _other_python(text: bytes, path: Path, line: int | None) -> ast.Module:
    import tree_sitter
    import tree_sitter_python

    older = bytearray(text)
    _leave_out_parameters(older)
    # The word goes to the end of the line: the rest of the file stays where it is.
    older = bytearray(_LAZY.sub(lambda found: found[1] + found[3] + b"    " + found[2], older))
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_python.language()))
    root = parser.parse(bytes(older)).root_node
    nodes = list(_below(root))
    for node in nodes:
        if node.type in _PYTHON_2:
            first = node.start_point[0] + 1
            raise _invalid(path, "is written for Python 2, which MLX never ran on", first)
    if root.has_error:
        raise _invalid(path, "is not valid Python", line)
    for node in nodes:
        _write_older(older, node)
    try:
        return _parsed(bytes(older))
    except (SyntaxError, *_TOO_DEEP):
        if older == text:
            raise _invalid(path, "is not valid Python", line) from None
        ours = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise _invalid(
            path, f"is written for a newer Python than the {ours} that runs mlxdoctor", line
        ) from None


def _below(root: Node) -> Iterator[Node]:
    """Every node, those above before those below."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(node.children))


def _leave_out_parameters(text: bytearray) -> None:
    """`def f[T = int](x)` as `def f         (x)`; the grammar does not know all of these."""
    for found in list(_GENERIC.finditer(bytes(text))):
        depth, place = 1, found.end()
        while depth and place < len(text):
            depth += {ord("["): 1, ord("]"): -1}.get(text[place], 0)
            place += 1
        _blank(text, found.end() - 1, place)


def _write_older(text: bytearray, node: Node) -> None:
    """Replace what is new in a node by as many bytes."""
    if node.type == "type_alias_statement":
        _blank(text, node.start_byte, node.end_byte)
        text[node.start_byte : node.start_byte + 4] = b"pass"
    elif node.type == "except_clause":
        types = [one for one in node.children if one.type not in {"except", ":", "block"}]
        if any(one.type == "," for one in types):
            _blank(text, types[0].start_byte, types[-1].end_byte)
    elif node.type in {"string", "concatenated_string"}:
        parent = node.parent
        inside = parent is not None and parent.type == "concatenated_string"
        if not inside and any(_is_new(one) for one in (node, *node.children)):
            _as_tuple(text, node)


def _blank(text: bytearray, start: int, end: int) -> None:
    """Spaces instead; a line break inside is continued."""
    for place in range(start, end):
        if text[place] != ord("\n"):
            joins = place + 1 < end and text[place + 1] == ord("\n")
            text[place] = ord("\\" if joins else " ")


def _is_new(node: Node) -> bool:
    """Whether a string holds what needs Python 3.12 (quotes, breaks, comments) or 3.14 (t"")."""
    parts = [one for one in node.children if one.type == "interpolation"]
    if node.type != "string" or not parts or node.text is None:
        return False
    start = node.children[0].text or b""
    quote = start.lstrip(b"fFrRbBtTuU")
    inside = b"".join(one.text or b"" for one in parts)
    broken = len(quote) == 1 and b"\n" in inside
    return b"t" in start.lower() or quote in inside or b"\\" in inside or b"#" in inside or broken


def _as_tuple(text: bytearray, node: Node) -> None:
    """`f"{a} and {b}"` as `(a, b)`, each where it is."""
    kept = [one for one in _below(node) if one.type == "interpolation" and _outer(one) == node]
    written = bytes(text)
    for place in range(node.start_byte, node.end_byte):
        if written[place] != ord("\n"):
            text[place] = ord(" ")
    for one in kept:
        held = one.child_by_field_name("expression")
        if held is not None:
            text[held.start_byte : held.end_byte] = written[held.start_byte : held.end_byte]
            text[one.end_byte - 1] = ord(",")
    text[node.start_byte] = ord("(")
    text[node.end_byte - 1] = ord(")")


def _outer(node: Node) -> Node | None:
    """The string that a node is a part of, as a whole."""
    at = node.parent
    while at is not None and at.type != "string":
        at = at.parent
    if at is not None and at.parent is not None and at.parent.type == "concatenated_string":
        return at.parent
    return at
