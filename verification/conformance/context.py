"""What the checks of one run share: environments, one recorded play, episodes that ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from envs.core import Capabilities, EnvSpec
from envs.simulator import Simulator
from verification.conformance.check import NotApplicableError
from verification.conformance.compare import Leaves, decision_leaves, first_difference, take
from verification.conformance.play import Play, Step, Tape, begin, play, step_once
from verification.conformance.target import Budget, Target

SEED = 20
_FAR = 4  # the play is stretched to an episode's limit that is at most so many times longer


class BrokenPlayError(Exception):
    """The recorded play ended in an exception, so a check that needs all of it can't judge."""


@dataclass(frozen=True)
class Ending:
    """A step in which episodes ended."""

    count: int
    step: Step
    lengths: np.ndarray  # int64 [N], steps of each row's episode, this step included
    tape: Tape
    state_after: Leaves | None


class Context:
    """Lazily made material of one run; every environment is closed by :meth:`close`."""

    def __init__(self, target: Target, budget: Budget) -> None:
        self.target, self.budget = target, budget
        self._envs: dict[tuple[str, int], Any] = {}
        first = self.env()
        self.spec: EnvSpec = first.spec
        self.capabilities: Capabilities = getattr(first, "capabilities", Capabilities())
        self.tape = Tape(self.spec, SEED, np.arange(budget.rows, dtype=np.uint32))
        self.lengths: Counter[str] = Counter()

    def env(self, slot: str = "main", num_envs: int | None = None) -> Any:
        """A kept environment; another slot is another instance."""
        key = (slot, num_envs or self.budget.rows)
        if key not in self._envs:
            self._envs[key] = self.target.make(key[1])
        return self._envs[key]

    def close(self) -> None:
        for env in self._envs.values():
            if hasattr(env, "close"):
                env.close()

    @property
    def sets_state(self) -> bool:
        return self.target.face == "simulator" and self.capabilities.set_state

    @cached_property
    def jitted(self) -> tuple[Any, Any]:
        """``reset`` and ``step`` of a functional environment, compiled."""
        import jax

        env = self.env()
        return jax.jit(env.reset), jax.jit(env.step)

    # --- the recorded play ----------------------------------------------------------------

    @cached_property
    def steps(self) -> int:
        """Length of the recorded play."""
        limit = self.spec.max_episode_steps
        near = limit is not None and limit + 2 <= _FAR * self.budget.steps
        return max(self.budget.steps, limit + 2) if near and limit else self.budget.steps

    @cached_property
    def recorded(self) -> Play:
        """The play of the tape by a new environment, possibly broken off; with states."""
        return play(self.env(), self.tape, self.steps, states=self.sets_state)

    @property
    def baseline(self) -> Play:
        """The recorded play; a check that needs all of it fails where it is broken off."""
        error = self.recorded.error
        if error is not None:
            raise BrokenPlayError(
                f"step {len(self.recorded.steps)} of legal play raised "
                f"{type(error).__name__}: {error}"
            )
        return self.recorded

    # --- episodes that ended --------------------------------------------------------------

    @cached_property
    def endings(self) -> list[Ending]:
        """Steps in which episodes ended: of the recorded play, else of a longer search."""
        found = list(self._watch(self.tape, self.steps))
        if sum(e.step.ended.sum() for e in found) < self.budget.endings:
            tape = Tape(self.spec, SEED + 1, self.tape.rows)
            found += self._watch(tape, self.budget.search_steps, self.budget.endings)
        return found

    def require_endings(self) -> list[Ending]:
        if not self.endings:
            steps = self.budget.search_steps
            raise NotApplicableError(f"no episode ended in {steps} steps of random play")
        return self.endings

    def _watch(self, tape: Tape, steps: int, enough: float = np.inf) -> Iterator[Ending]:
        """Play a tape and pass on the steps in which something ended."""
        env, lengths = self.env(), np.zeros(self.budget.rows, np.int64)
        before = begin(env, tape)
        for count in range(steps):
            step = step_once(env, tape, count, before)
            before, lengths = step.decision, lengths + 1
            if step.ended.any():
                state = env.get_state() if self.sets_state else None
                yield Ending(count, step, lengths.copy(), tape, state)
                self._count(step, lengths)
                lengths[step.ended] = 0
                enough -= int(step.ended.sum())
                if enough <= 0:
                    return

    def _count(self, step: Step, lengths: np.ndarray) -> None:
        self.lengths["terminated"] += int(np.sum(step.outcome.terminated))
        self.lengths["truncated"] += int(np.sum(step.outcome.truncated))
        longest = int(lengths[step.ended].max())
        self.lengths["longest"] = max(self.lengths["longest"], longest)

    def coverage(self) -> dict[str, Any]:
        """What the checks that have run have seen, for the report."""
        made = vars(self)  # nothing is played for the report's sake
        steps = list(self.recorded.steps) if "recorded" in made else []
        if "endings" in made:
            steps += [e.step for e in self.endings if e.tape is not self.tape]
        seen: dict[str, Any] = {"steps": len(steps) * self.budget.rows}
        seen["episodes"] = dict(self.lengths)
        if not self.capabilities.events:
            return {**seen, "events": None}
        hits = np.zeros(len(self.spec.events), int)
        for step in steps:
            hits += np.asarray(step.outcome.events).sum(0)
        seen["events"] = dict(zip(self.spec.events, hits.tolist(), strict=True))
        return seen

    # --- comparing with the recorded play -------------------------------------------------

    def expected(self, count: int) -> Leaves:
        """What step ``count`` of the recorded play gave."""
        return self.baseline.steps[count].leaves(self.capabilities)

    def departure(self, other: Play, rows: Any = slice(None), start: int = 0) -> str:
        """Where a play departs from the recorded one, whose rows ``rows`` it should repeat.

        Args:
            other: a play of all steps from ``start`` on; exactly equal, or the answer says where.
        """
        if other.error is not None:
            return f"raised {type(other.error).__name__}: {other.error}"
        if start == 0:
            first = take(decision_leaves(self.baseline.first), rows)
            problem = first_difference(first, decision_leaves(other.first))
            if problem:
                return f"after reset, {problem}"
        for count, step in enumerate(other.steps, start):
            problem = first_difference(
                take(self.expected(count), rows), step.leaves(self.capabilities)
            )
            if problem:
                return f"in step {count}, {problem}"
        return ""

    def sampled_counts(self, number: int) -> list[int]:
        """Steps of the recorded play, spread evenly, those that ended episodes preferred."""
        count = len(self.baseline.steps)
        ended = [i for i, step in enumerate(self.baseline.steps) if step.ended.any()]
        spread = np.linspace(0, count - 1, min(number, count)).astype(int).tolist()
        return sorted({*spread, *ended[: number // 2]})

    def is_simulator(self) -> bool:
        return isinstance(self.env(), Simulator)
