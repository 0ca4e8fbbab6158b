"""Text from artifacts, made harmless for Markdown, terminals, CI logs, SARIF and XML.

Model output, log lines and file names are whatever somebody wrote. Here they lose the power to
become markup, links, escape sequences or invisible text.
"""

import re

from mlxdoctor.safety.quoting import cut, visible

# With "(" and ")" left alone, a link can't form: it needs "[" and "]".
_MARKUP = re.compile(r"[\\`*\[\]|~$]")
# Between letters an underscore never starts emphasis: learning_rate stays readable.
_EMPHASIS = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
_ENTITY = re.compile(r"&(?=#?\w+;)")
# What opens a heading, quote, list, rule or setext underline at the start of a line.
_BLOCK_START = re.compile(r"^(?:#|>|=|[+\-](?=[\s\-]|$))")
_LIST_NUMBER = re.compile(r"^(\d+)([.)])(?=\s|$)")
_AT = re.compile(r"@(?=\w)|(?<=\S)@")
_SCHEME = re.compile(r"(?<=\w):(?=//)")
_WWW = re.compile(r"\b(www)\.", re.IGNORECASE)
# Our own messages name keys and commands in backticks. With these characters only,
# inline code is harmless whoever wrote it.
_PLAIN_CODE = re.compile(r"(?<!`)(`[\w\-](?:[\w .,:=+/%()\-]*[\w)])?`)(?!`)", re.ASCII)
_SAFE_CODE = re.compile(r"[^`|]*[^`|\s][^`|]*")
# What GitHub's runner takes for a command: `::name …::` where a line begins, and a line may be
# wrapped anywhere; the older `##[name]` in any place.
_WORKFLOW_COMMAND = re.compile(r":(?=:[A-Za-z-]+(?:[ \t][^\n]*)?::)|##(?=\[)")
_SARIF_LINK = re.compile(r"\](?=\()")
_SARIF_PLACEHOLDER = re.compile(r"\{(\d+)\}")

#: Stops renderers from making an address or a mention of what follows an "@".
_WORD_JOINER = "\u2060"


def line(text: str) -> str:
    """`text` as one line without invisible characters; XML 1.0 allows all that are left."""
    return visible(cut(text))


def markdown(text: str) -> str:
    """`text` as one line of Markdown that shows it literally, on GitHub and in CommonMark.

    Only inline code of plain words (`learning_rate`) stays what it is.
    """
    # Blanks in front could make an indented code block.
    parts = _PLAIN_CODE.split(line(text).strip())
    # Every second part is inline code.
    shown = "".join(part if index % 2 else _literal(part) for index, part in enumerate(parts))
    shown = _LIST_NUMBER.sub(r"\1\\\2", shown)
    return _BLOCK_START.sub(lambda match: "\\" + match[0], shown)


def _literal(text: str) -> str:
    text = _MARKUP.sub(lambda match: "\\" + match[0], text)
    text = _EMPHASIS.sub(r"\_", text)
    text = _ENTITY.sub("&amp;", text)
    text = text.replace("<", "&lt;")
    text = _SCHEME.sub("&#58;", text)
    text = _WWW.sub(r"\1&#46;", text)
    return _AT.sub("@" + _WORD_JOINER, text)


def code(text: str) -> str:
    """`text` as inline code where it can be, else escaped."""
    shown = line(text)
    if _SAFE_CODE.fullmatch(shown) and shown == shown.strip():
        return f"`{shown}`"
    return markdown(text)


def fenced(text: str, language: str = "") -> str:
    """`text` as a fenced code block that nothing in it can close."""
    shown = visible(text, keep_newlines=True).strip("\n")
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{shown}\n{fence}"


def terminal(text: str) -> str:
    """`text` as one line that can't move the cursor, colour or retitle a terminal."""
    # Nor can it command a CI runner that reads the terminal: `::error::` becomes `: :error::`.
    return _WORKFLOW_COMMAND.sub(lambda match: match[0] + " ", line(text))


def sarif(text: str) -> str:
    """`text` as a SARIF message without links or placeholders (SARIF 2.1.0, 3.11.5 and 3.11.6)."""
    return _SARIF_PLACEHOLDER.sub(r"{{\1}}", _SARIF_LINK.sub("] ", line(text)))


def workflow_message(text: str) -> str:
    """`text` as the message of a GitHub workflow command; its line breaks stay line breaks."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def workflow_property(text: str) -> str:
    """`text` as a property of a GitHub workflow command, in one line."""
    return workflow_message(line(text)).replace(":", "%3A").replace(",", "%2C")
