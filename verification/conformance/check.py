"""Checks: functions that look at one backend and yield what is wrong, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verification.conformance.context import Context


class NotApplicableError(Exception):
    """A check can't say anything about this backend; the message says why."""


Run = Callable[["Context"], Iterator[str]]
Need = Callable[["Context"], str]
"""Empty when the check applies, else the reason why it doesn't."""


@dataclass(frozen=True)
class Check:
    """One question to a backend; ``faces`` are those that can be asked."""

    name: str
    question: str
    faces: tuple[str, ...]
    needs: tuple[Need, ...]
    run: Run


CHECKS: dict[str, Check] = {}
NUMPY_FACES = ("batched", "simulator")


def check(*faces: str, needs: tuple[Need, ...] = ()) -> Callable[[Run], Run]:
    """Register a check under its function's name; its docstring's first line is the question."""

    def register(run: Run) -> Run:
        if run.__name__ in CHECKS:
            raise ValueError(f"two checks are called {run.__name__}")
        question = (run.__doc__ or "").strip().splitlines()[0]
        CHECKS[run.__name__] = Check(run.__name__, question, faces, needs, run)
        return run

    return register


def can_set_state(context: Context) -> str:
    return "" if context.capabilities.set_state else "the backend declares set_state=False"


def can_snapshot(context: Context) -> str:
    return "" if context.capabilities.snapshot else "the backend declares snapshot=False"


def has_independent_rows(context: Context) -> str:
    independent = context.capabilities.independent_rows
    return "" if independent else "the backend declares independent_rows=False"


def gives_final(context: Context) -> str:
    if context.spec.truncates or context.capabilities.final_on_termination:
        return ""
    return "the backend declares final_on_termination=False, and nothing truncates"
