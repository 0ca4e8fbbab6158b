"""One row of a dataset as tokens, with the part each token plays."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.engines.text import in_common
from mlxdoctor.evidence.chat_template import Messages, TemplateFailure
from mlxdoctor.evidence.dataset import Row, Split, answer_places
from mlxdoctor.evidence.tokenizer import Tokenizer

#: Answers before the last one that are looked for in a row. Each takes two renderings of all that
#: comes before it.
MOST_EARLIER = 20

# Stands for an answer when looking for what the template writes after one.
_PROBE = "mlxdoctor"


class Role(IntEnum):
    """What a token of a row is.

    EARLIER_ANSWER: of an answer before the last one, which `mask_prompt` leaves out of the loss.
    """

    PROMPT = 0
    ANSWER = 1
    END = 2
    OTHER = 3
    EARLIER_ANSWER = 4


@dataclass(frozen=True)
class SupervisedRow:
    """One row, tokenized.

    Attributes:
        index: the row's position in the split, from 0.
        tokens: int32 (n,), before the cut.
        offset: the first target by mlx-lm's reckoning; 0 where the prompt is not masked.
        prompt_length: tokens before the last answer: the offset if the prompt were
            masked; 0 for rows of plain text that are no question with its answer.
        length: tokens left after the cut.
        roles: int8 (n,) of `Role`. Answers before the last one that lie beyond the cut, or whose
            place is not known, are PROMPT.
        padded: whether mlx-lm also trains on the padding token after the row.
        prefix_matches: whether the prompt's tokens are how the row begins.
        problems: what is wrong with its targets, as the check `label-mask` calls it.
    """

    index: int
    tokens: NDArray[np.int32]
    offset: int
    prompt_length: int
    length: int
    roles: NDArray[np.int8]
    padded: bool
    prefix_matches: bool
    problems: tuple[str, ...]

    @property
    def targets(self) -> NDArray[np.int32]:
        """The supervised tokens, int32 (n,), the padding token left out."""
        return self.tokens[max(self.offset, 1) : self.length]

    @property
    def target_roles(self) -> NDArray[np.int8]:
        """The role of each of `targets`, int8 (n,)."""
        return self.roles[max(self.offset, 1) : self.length]

    def count(self, offset: int | None = None) -> int:
        """Targets that mlx-lm counts, padding token included, for this or another offset."""
        first = max(self.offset if offset is None else offset, 1)
        return max(0, self.length - first + int(self.padded))


class RowEncoder:
    """Tokenizes rows; holds what stays the same from row to row."""

    def __init__(
        self, tokenizer: Tokenizer, split: Split, mask_prompt: bool, max_seq_length: int
    ) -> None:
        self.tokenizer = tokenizer
        self.split = split
        # Of texts mlx-lm masks nothing: it refuses to.
        self.mask_prompt = mask_prompt and split.format != "text"
        self.max_seq_length = max_seq_length
        self.ends = np.array(tokenizer.eos_token_ids, dtype=np.int32)
        self.terminator = () if split.format == "text" else self._terminator()

    def row(self, index: int, row: Row) -> SupervisedRow | str:
        """One row, or why mlx-lm can't tokenize it, as a clause."""
        try:
            return self._row(index, row)
        except KeyError as error:
            return f"it has no {error.args[0]!r}"
        except (TemplateFailure, TypeError, AttributeError, IndexError) as error:
            return str(error)

    def _row(self, index: int, row: Row) -> SupervisedRow:
        if self.split.format == "text":
            tokens = self._text(row[self.split.features.text])
            exchange = self.split.exchange(row)
            before = self.tokenizer.encode(exchange.before) if exchange else []
            return self._finish(index, tokens, tokens[: in_common(tokens, before)])
        messages = self.split.messages(row)
        return self._conversation(index, messages, row.get("tools"))

    def _text(self, text: object) -> list[int]:
        if not isinstance(text, str):
            raise TypeError("its text is not a string")
        tokens = self.tokenizer.encode(text)
        end = self.tokenizer.eos_token_id
        if not tokens:
            raise IndexError("its text is empty")
        if end is not None and tokens[-1] != end:
            tokens.append(end)
        return tokens

    def _conversation(self, index: int, messages: Messages, tools: Any) -> SupervisedRow:
        tokens = self.tokenizer.apply_chat_template(messages, tools)
        answers = answer_places(messages)
        to_answer = bool(answers) and answers[-1] == len(messages) - 1
        prompt: list[int] = []
        if self.mask_prompt or len(messages) > 1:
            try:
                prompt = self.tokenizer.apply_chat_template(messages[:-1], tools, to_answer)
            except TemplateFailure:
                if self.mask_prompt:
                    raise
        earlier = self._earlier_answers(tokens, messages, answers, tools)
        return self._finish(index, tokens, prompt, earlier, len(answers))

    def _earlier_answers(
        self, tokens: list[int], messages: Messages, answers: list[int], tools: Any
    ) -> list[tuple[int, int]]:
        spans = []
        earlier = [place for place in answers if 0 < place < len(messages) - 1]
        for place in earlier[:MOST_EARLIER]:
            with suppress(TemplateFailure):
                before = self.tokenizer.apply_chat_template(messages[:place], tools, True)
                if len(before) >= self.max_seq_length:  # from here on nothing is trained
                    break
                after = self.tokenizer.apply_chat_template(messages[: place + 1], tools)
                # Some templates rewrite earlier turns: then their place is not known.
                if tokens[: len(after)] == after and after[: len(before)] == before:
                    spans.append((len(before), len(after)))
        return spans

    def _finish(
        self,
        index: int,
        tokens: list[int],
        prompt: Sequence[int] = (),
        earlier: Sequence[tuple[int, int]] = (),
        answers: int = 0,
    ) -> SupervisedRow:
        array = np.array(tokens, dtype=np.int32)
        roles = np.full(len(array), Role.PROMPT, dtype=np.int8)
        for start, stop in earlier:
            roles[start:stop] = self._answer_roles(array[start:stop])
        if self.mask_prompt:
            roles = np.where(roles == Role.ANSWER, Role.EARLIER_ANSWER, Role.PROMPT).astype(np.int8)
        roles[len(prompt) :] = self._answer_roles(array[len(prompt) :])
        length = min(len(array), self.max_seq_length)
        offset = len(prompt) if self.mask_prompt else 0
        prefix_matches = tokens[: len(prompt)] == list(prompt)
        targets = roles[max(offset, 1) : length]
        has_ends = len(self.ends) > 0 and len(targets) > 0 and length == len(array)
        bos = self.tokenizer.bos_token_id
        problems = {
            "no-supervised-tokens": len(targets) == 0,
            "answers-truncated": bool(np.isin(roles[length:], (Role.ANSWER, Role.END)).any()),
            "end-token-missing": has_ends and Role.END not in targets,
            "offset-not-a-prefix": offset > 0 and not prefix_matches,
            "double-bos": bos is not None and tokens[:2] == [bos, bos],
            "earlier-answers-masked": offset > 0 and answers > 1,
        }
        array.setflags(write=False)
        roles.setflags(write=False)
        return SupervisedRow(
            index=index,
            tokens=array,
            offset=offset,
            prompt_length=len(prompt),
            length=length,
            roles=roles,
            padded=length < self.max_seq_length,
            prefix_matches=prefix_matches,
            problems=tuple(problem for problem, is_there in problems.items() if is_there),
        )

    def _answer_roles(self, answer: NDArray[np.int32]) -> NDArray[np.int8]:
        roles = np.full(len(answer), Role.ANSWER, dtype=np.int8)
        tail = len(self.terminator)
        if tail and tuple(answer[-tail:].tolist()) == self.terminator:
            roles[-tail:] = Role.OTHER
            start = len(answer) - tail
        else:
            # Plain text, or a template that ends another way: the last end token closes it.
            is_end = np.flatnonzero(np.isin(answer, self.ends))
            start = int(is_end[-1]) if len(is_end) else len(answer)
            roles[start:] = Role.OTHER
        roles[start:][np.isin(answer[start:], self.ends)] = Role.END
        return roles

    def _terminator(self) -> tuple[int, ...]:
        """What the template writes after an answer, in tokens."""
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}]
        try:
            text = self.tokenizer.render(messages)
        except TemplateFailure:
            return ()
        _, probe, after = text.rpartition(_PROBE)
        return tuple(self.tokenizer.encode(after, add_special_tokens=False)) if probe else ()
