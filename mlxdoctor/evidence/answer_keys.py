"""What the keys of recorded answers are called, and whether a row of a file is one."""

import re
from collections.abc import Set

PROMPT_KEYS = ("prompt", "question", "input", "instruction", "query")
TUNED_KEYS = (
    *("tuned", "response", "output", "completion", "generated_text", "generation", "generated"),
    *("prediction", "model_output", "model_answer", "answer", "text"),
)
BASE_KEYS = ("base", "base_response", "base_output")
SYSTEM_KEYS = ("system", "system_prompt")
EXPECTED_KEYS = ("expected", "reference", "target")
LIST_KEYS = ("generations", "results", "samples", "items")
#: Answers that rows to train on have beside their prompts, too.
_OF_ROWS = {"completion", "answer", "text"}
#: What a recorded answer says beside itself, and a training row does not.
_OF_ANSWERS = {"max_tokens", "model", "adapter", "tokens", "base_tokens", "tuned_tokens"}
#: A file's name that says so.
_NAMED = re.compile("answers|generat|outputs|predict|responses|samples", re.IGNORECASE)


def is_recorded_answer(keys: Set[str], name: str = "") -> bool:
    """Whether a row with these keys, in a file of this name, is a recorded answer, not a row."""
    if "tuned" in keys or {"base", "prompt"} <= keys:
        return True
    answers = set(TUNED_KEYS) - _OF_ROWS
    if not _OF_ANSWERS.isdisjoint(keys):
        answers.add("completion")
    if not keys.isdisjoint(EXPECTED_KEYS) or _NAMED.search(name):
        answers.add("answer")
    return "prompt" in keys and not answers.isdisjoint(keys)
