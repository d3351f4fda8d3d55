"""What a conformance run found: plain data that prints, and that JSON holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

PASS, FAIL, NOT_APPLICABLE = "pass", "fail", "not_applicable"
SCHEMA = 1


@dataclass(frozen=True)
class CheckResult:
    """One check of one backend.

    ``problems`` is filled when it failed, ``reason`` when it does not apply.
    """

    check: str
    question: str
    status: str
    problems: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Report:
    """All checks of one backend behind one face.

    ``coverage`` says what the run saw: steps, episodes by ending, lengths, and how often each
    event fired. An event with zero hits is no fault, but nothing was learned about it.
    """

    target: str
    face: str
    environment: str
    spec_digest: str
    num_envs: int
    results: tuple[CheckResult, ...]
    coverage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """No check failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        return tuple(result for result in self.results if result.status == FAIL)

    def status(self, check: str) -> str:
        """The status of one check; KeyError when it did not run for this face."""
        return {result.check: result.status for result in self.results}[check]

    def to_json(self) -> dict[str, Any]:
        """Only dicts, lists, strings, numbers, booleans and None."""
        results = [dict(asdict(r), problems=list(r.problems)) for r in self.results]
        data = {k: v for k, v in vars(self).items() if k not in ("results", "coverage")}
        return dict(
            schema=SCHEMA,
            **data,
            passed=self.passed,
            results=results,
            coverage=dict(self.coverage),
        )

    def text(self) -> str:
        """For people: one line a check, problems and reasons below the ones that need them."""
        counts = {s: sum(r.status == s for r in self.results) for s in (PASS, FAIL, NOT_APPLICABLE)}
        lines = [
            f"{self.target} ({self.face}, {self.environment}): {counts[PASS]} passed, "
            f"{counts[FAIL]} failed, {counts[NOT_APPLICABLE]} not applicable"
        ]
        for result in self.results:
            lines.append(f"  {result.status:15}{result.check}: {result.question}")
            lines += [f"      - {problem}" for problem in result.problems]
            lines += [f"      ({result.reason})"] if result.reason else []
        return "\n".join(lines)
