"""Level L0: does a backend behave like an environment at all? No reference is needed.

from verification.conformance import registered_targets, run_conformance

for target in registered_targets("cartpole"):
    print(run_conformance(target).text())
"""

from verification.conformance.check import CHECKS, Check
from verification.conformance.report import CheckResult, Report
from verification.conformance.run import run_conformance
from verification.conformance.target import Budget, Target, registered_targets, room_targets

__all__ = [
    "CHECKS",
    "Budget",
    "Check",
    "CheckResult",
    "Report",
    "Target",
    "registered_targets",
    "room_targets",
    "run_conformance",
]
