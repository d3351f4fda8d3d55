"""Every declared draw site is used: changing its draws changes something."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from verification.conformance.check import check
from verification.conformance.compare import decision_leaves, first_difference
from verification.conformance.context import SEED, Context
from verification.conformance.play import Tape, begin, step_once


@check("simulator")
def noise_sites_used(context: Context) -> Iterator[str]:
    """Does every draw site of the spec change something when its draws change?"""
    sites = [("reset", name) for name in context.spec.reset_noise]
    sites += [("step", name) for name in context.spec.step_noise]
    for kind, name in sites:
        changed = dataclasses.replace(context.tape, other_seeds={(kind, name): SEED + 50})
        if not _departs(context, changed):
            yield (
                f"{kind} noise {name!r} changed nothing in {context.budget.search_steps} steps of "
                f"{context.budget.rows} rows; if it is that rare, raise the budget's search_steps"
            )


def _departs(context: Context, changed: Tape) -> bool:
    """Play both tapes side by side until something differs."""
    left, right = context.env(), context.env("other")
    before, other = begin(left, context.tape), begin(right, changed)
    if first_difference(decision_leaves(before), decision_leaves(other)):
        return True
    for count in range(context.budget.search_steps):
        a = step_once(left, context.tape, count, before, states=context.sets_state)
        b = step_once(right, changed, count, other, states=context.sets_state)
        if a.state is not None and b.state is not None and first_difference(a.state, b.state):
            return True
        if first_difference(a.leaves(context.capabilities), b.leaves(context.capabilities)):
            return True
        before, other = a.decision, b.decision
    return False
