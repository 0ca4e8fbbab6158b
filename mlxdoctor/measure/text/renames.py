"""What rows of other trainers' formats have to be renamed to, for mlx-lm to read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: What others call a prompt, most telling first: Alpaca, question and answer, Dolly, translations.
_PROMPTS = (
    "prompt", "instruction", "question", "query", "problem", "user", "human", "input", "source",
    "src", "request", "context",
)  # fmt: skip
_COMPLETIONS = (
    "completion", "output", "response", "answer", "reply", "solution", "assistant", "gpt",
    "target", "tgt", "label", "chosen",
)  # fmt: skip
_TEXTS = ("text", "content", "document", "body", "raw_text", "story", "code")
_CONVERSATIONS = (
    "messages",
    "conversations",
    "conversation",
    "dialogue",
    "dialog",
    "chat",
    "turns",
)
_ROLES = {
    "human": "user", "customer": "user", "client": "user", "prompter": "user", "question": "user",
    "gpt": "assistant", "bot": "assistant", "chatgpt": "assistant", "model": "assistant",
    "ai": "assistant", "agent": "assistant", "chatbot": "assistant", "answer": "assistant",
    "bing": "assistant", "claude": "assistant", "llm": "assistant", "instruction": "system",
}  # fmt: skip


def how_to_rename(row: Mapping[str, Any]) -> str | None:
    """What to do with a row whose keys mlx-lm does not look for; None where nothing is plain.

    Args:
        row: the first row, by which mlx-lm reads all others.
    """
    keys = {key.lower(): key for key in row if isinstance(key, str)}
    spoken = _first(keys, _CONVERSATIONS)
    if spoken is not None and isinstance(row[spoken], list):
        to_messages = f"{spoken} -> messages in every row, "
        if (inner := of_messages(row[spoken])) is not None:
            return f"rename {'' if spoken == 'messages' else to_messages}{inner}"
        return f"rename {to_messages}or set chat_feature: {spoken}"
    asked, answered = _first(keys, _PROMPTS), _first(keys, _COMPLETIONS)
    if asked is not None and answered is not None:
        pairs = ((asked, "prompt"), (answered, "completion"))
        changed = [(old, new) for old, new in pairs if old != new]
        renames = " and ".join(f"{old} -> {new}" for old, new in changed)
        features = ", ".join(f"{new}_feature: {old}" for old, new in changed)
        more = keys.get("input", asked)
        joined = f", with the text of {more} added to it where there is some"
        return f"rename {renames} in every row{'' if more == asked else joined}; or set {features}"
    text = _first(keys, _TEXTS)
    if text is not None and isinstance(row[text], str):
        return f"rename {text} -> text in every row, or set text_feature: {text}"
    return None


def of_messages(messages: object) -> str | None:
    """What to rename inside messages of ShareGPT's kind, as the end of a list of renames."""
    spoken = messages if isinstance(messages, list) else []
    if not spoken or not all(isinstance(one, Mapping) for one in spoken):
        return None
    if not {"from", "value"} <= spoken[0].keys():
        return None
    roles = [f"{old} -> {new}" for old, new in roles_renamed(one.get("from") for one in spoken)]
    of_roles = f", and the roles {', '.join(roles)}" if roles else ""
    return f"from -> role and value -> content in every message{of_roles}"


def roles_renamed(roles: Iterable[object]) -> list[tuple[str, str]]:
    """Old and new name of the roles that are known under another name."""
    found = []
    for role in sorted({one for one in roles if isinstance(one, str)}):
        plain = role.strip().lower()
        new = _ROLES.get(plain, plain if plain in {"user", "assistant", "system"} else "")
        if new and new != role:
            found.append((role, new))
    return found


def _first(keys: Mapping[str, str], wanted: Iterable[str]) -> str | None:
    return next((keys[one] for one in wanted if one in keys), None)
