"""Run the conformance suite (level L0) on one target."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from envs.core import MissingDependency
from verification.conformance import checks  # noqa: F401  (registers them)
from verification.conformance.check import CHECKS, Check, NotApplicableError
from verification.conformance.context import BrokenPlayError, Context
from verification.conformance.report import FAIL, NOT_APPLICABLE, PASS, CheckResult, Report
from verification.conformance.target import Budget, Target

_MOST_PROBLEMS = 5
DEFAULT_BUDGET = Budget()


def run_conformance(
    target: Target, budget: Budget = DEFAULT_BUDGET, only: Iterable[str] | None = None
) -> Report:
    """Ask a backend every question that its face can be asked.

    Args:
        only: names of checks; all where None.

    Raises:
        ValueError: ``only`` names a check that does not exist.
        MissingDependency: the backend needs something that is not installed or built.
        Exception: whatever making the environment raises.
    """
    names = list(CHECKS) if only is None else list(only)
    unknown = set(names) - set(CHECKS)
    if unknown:
        raise ValueError(f"unknown checks {sorted(unknown)}; choose from {', '.join(CHECKS)}")
    context = Context(target, budget)
    try:
        chosen = [CHECKS[name] for name in names if target.face in CHECKS[name].faces]
        results = tuple(run_check(check, context) for check in chosen)
        coverage = {} if target.face == "functional" else _coverage(context)
        return Report(
            target=target.name,
            face=target.face,
            environment=f"{context.spec.name} {context.spec.version}",
            spec_digest=context.spec.digest,
            num_envs=budget.rows,
            results=results,
            coverage=coverage,
        )
    finally:
        context.close()


def run_check(check: Check, context: Context) -> CheckResult:
    """The result of one check; an exception inside it is a failure, with its message."""
    reason = next(filter(None, (need(context) for need in check.needs)), "")
    problems: list[str] = []
    if not reason:
        try:
            problems += islice(check.run(context), _MOST_PROBLEMS)
        except NotApplicableError as error:
            reason = str(error)
        except MissingDependency:
            raise
        except BrokenPlayError as error:
            problems.append(f"can't be judged: {error}")
        except Exception as error:
            problems.append(f"raised {type(error).__name__}: {error}")
    status = FAIL if problems else NOT_APPLICABLE if reason else PASS
    return CheckResult(check.name, check.question, status, tuple(problems), reason)


def _coverage(context: Context) -> dict[str, object]:
    try:
        return context.coverage()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
