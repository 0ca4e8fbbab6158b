"""A function that models answer, and what it has answered so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlxdoctor.safety.errors import InputError


class OnDemand:
    """Stands for a measuring function in evidence: what was asked once is not asked again.

    Attributes:
        answers: by question: what was measured, or the error that measuring ended with.
        is_new: whether any of them was measured since this was made.
        remake: makes the function again where it is needed and was only read back.
    """

    def __init__(
        self,
        question: Callable[[tuple[Any, ...]], str],
        function: Callable[..., Any] | None = None,
        answers: Mapping[str, Any] | None = None,
        left_out: Mapping[str, str] | None = None,
    ) -> None:
        """Remember answers.

        Args:
            question: the name under which the answer to these arguments is remembered.
            function: what is asked; None where `remake` makes it.
            answers: what is known already.
            left_out: what was not measured for them, as clauses.
        """
        self._question = question
        self._function = function
        self._left_out = dict(left_out or {})
        self.answers = dict(answers or {})
        self.is_new = False
        self.remake: Callable[[], Callable[..., Any]] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """The answer.

        Raises:
            InputError: as the function does, or it can't be made again.
        """
        question = self._question(arguments)
        if question not in self.answers:
            if self._function is None and self.remake is not None:
                self._function = self.remake()
            if self._function is None:
                raise InputError(None, "it was not measured")
            self.is_new = True
            try:
                self.answers[question] = self._function(*arguments)
            except InputError as error:
                self.answers[question] = error
        answer = self.answers[question]
        if isinstance(answer, InputError):
            raise answer
        return answer

    @property
    def left_out(self) -> dict[str, str]:
        """What the time budget did not allow, as clauses by whatever the function names them."""
        return {**self._left_out, **getattr(self._function, "left_out", {})}
