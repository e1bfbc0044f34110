"""The one error a user sees: which field, what it held, and what to type instead."""

from __future__ import annotations


class InputError(ValueError):
    """Something a person stated cannot be used as it stands.

    Args:
        field: the flag, file or config field at fault, as written: ``--depth``, ``config.json: vocab_size``.
        problem: what is wrong, including the offending value.
        hint: what to type instead.
    """

    def __init__(self, field: str, problem: str, hint: str = "") -> None:
        self.field = field
        self.problem = problem
        self.hint = hint
        super().__init__(f"{field}: {problem}" + (f"; {hint}" if hint else ""))
