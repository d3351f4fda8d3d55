"""Playing a backend with noise and actions that are functions of (seed, step, row).

Rows are named by numbers: a batch that plays the rows ``[2, 0]`` gets the noise and the action
words of the rows 2 and 0 of any other batch with the same seed. Permuting a batch, playing one of
its rows alone, or changing one row only are then choices of row numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.batched import BatchedEnv
from envs.core import Capabilities, Decision, EnvSpec, Outcome
from envs.noise import draw_reset_noise, draw_step_noise, draw_uniform
from envs.simulator import Simulator
from envs.spaces import action_bounds, action_dtype
from verification.conformance.compare import Leaves, decision_leaves, outcome_leaves

_WIDE = 10.0  # stands for an infinite bound of an action


@dataclass(frozen=True)
class Tape:
    """All that a play needs from outside.

    Args:
        rows: uint32 ``[N]``, whose noise and actions the batch's rows play.
        action_rows, action_seed: whose actions, where that is not the same.
        restart_seed: another seed for the resets inside the play (not for the first one).
        other_seeds: (kind, site) -> seed, for single draw sites; kind is "reset" or "step".
    """

    spec: EnvSpec
    seed: int
    rows: np.ndarray
    action_rows: np.ndarray | None = None
    action_seed: int | None = None
    restart_seed: int | None = None
    other_seeds: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def with_rows(self, rows: Sequence[int] | np.ndarray) -> Tape:
        """The same tape for other rows."""
        return replace(self, rows=np.asarray(rows, np.uint32))

    def reset_noise(self, count: int) -> Any:
        """Of the first reset (count 0), or of the resets in step ``count - 1``."""
        seed = self.seed if count == 0 or self.restart_seed is None else self.restart_seed
        return self._with_other_seeds("reset", draw_reset_noise, seed, count)

    def step_noise(self, step: int) -> Any:
        return self._with_other_seeds("step", draw_step_noise, self.seed, step)

    def _with_other_seeds(self, kind: str, draw: Callable[..., Any], seed: int, count: int) -> Any:
        noise = draw(self.spec, seed, count, self.rows)
        for (of, site), other in self.other_seeds.items():
            if of == kind:
                changed = getattr(draw(self.spec, other, count, self.rows), site)
                noise = noise._replace(**{site: changed})
        return noise

    def actions(self, step: int, decision: Decision) -> np.ndarray:
        """Random legal actions ``[N(,A), ...]``; bounds and zero are frequent in Boxes."""
        rows = self.rows if self.action_rows is None else self.action_rows
        seed = self.seed if self.action_seed is None else self.action_seed
        return draw_actions(self.spec, decision, seed, step, rows)


def draw_actions(
    spec: EnvSpec, decision: Decision, seed: int, step: int, rows: np.ndarray
) -> np.ndarray:
    """Legal actions ``[N(,A), ...]``, uniform over what is legal."""
    space = spec.action_space
    shape = (*spec.rows(len(rows)), *space.shape)
    size = math.prod(shape[1:])
    draws = draw_uniform(seed, step, rows, 2 * size)
    first, second = draws[:, :size], draws[:, size:]
    uniform, kind = first.reshape(shape), second.reshape(shape)
    if spec.has_legal_actions:
        legal = np.asarray(decision.legal_actions)
        choice = np.floor(uniform * legal.sum(-1))
        return (np.cumsum(legal, -1) > choice[..., None]).argmax(-1).astype(np.int32)
    low, high = action_bounds(space)
    if not isinstance(space, spaces.Box):
        return np.floor(low + uniform * (high - low + 1)).astype(np.int32)
    bounds = np.clip(low, -_WIDE, None), np.clip(high, None, _WIDE)
    values = bounds[0] + uniform * (bounds[1] - bounds[0])
    values = np.select([kind < 0.1, kind < 0.2, kind < 0.25], [*bounds, 0 * values], values)
    return np.clip(values, low, high).astype(action_dtype(space))


@dataclass(frozen=True)
class Step:
    """One step: the decision before, what was sent, and what came back.

    ``state`` holds the canonical fields before the step, where they were recorded.
    """

    before: Decision
    actions: np.ndarray
    decision: Decision
    outcome: Outcome
    state: Leaves | None = None

    def leaves(self, capabilities: Capabilities) -> Leaves:
        """Everything that came back, comparable."""
        return {
            **decision_leaves(self.decision),
            **outcome_leaves(self.outcome, capabilities),
        }

    @property
    def ended(self) -> np.ndarray:
        return np.asarray(self.outcome.ended)


@dataclass(frozen=True)
class Play:
    """A first decision and the steps after it; ``error`` tells why it stopped early."""

    first: Decision
    steps: tuple[Step, ...]
    error: Exception | None = None


Alter = Callable[[Decision, np.ndarray], np.ndarray]


def copied(value: Any) -> Any:
    """A record with arrays of its own, out of reach of a backend that reuses its buffers."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (Decision, Outcome)):
        return type(value)(*(copied(item) for item in value))
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return value


def begin(env: Simulator | BatchedEnv, tape: Tape) -> Decision:
    """The first reset of a tape."""
    if isinstance(env, Simulator):
        return copied(env.reset(tape.reset_noise(0)))
    return copied(env.reset(tape.seed))


def send(env: Simulator | BatchedEnv, tape: Tape, count: int, actions: Any) -> Any:
    """Step ``count`` of a tape with these actions; the arrays are those of the backend."""
    if isinstance(env, Simulator):
        return env.step(actions, tape.step_noise(count), tape.reset_noise(count + 1))
    return env.step(actions)


def step_once(
    env: Simulator | BatchedEnv,
    tape: Tape,
    count: int,
    before: Decision,
    *,
    actions: Any = None,
    states: bool = False,
) -> Step:
    """Step ``count`` of a tape from the open decision, with other actions where they are given."""
    state = env.get_state() if states and isinstance(env, Simulator) else None
    if actions is None:
        actions = tape.actions(count, before)
    decision, outcome = send(env, tape, count, actions)
    return Step(before, actions, copied(decision), copied(outcome), state)


def play(
    env: Simulator | BatchedEnv,
    tape: Tape,
    steps: int,
    *,
    start: int = 0,
    decision: Decision | None = None,
    alter: Alter | None = None,
    states: bool = False,
) -> Play:
    """The steps ``start`` to ``steps`` of a tape.

    Args:
        decision: go on from this open decision; without it the environment is reset.
        alter: changes the actions before they are sent.
        states: record the canonical fields before every step.
    """
    first = begin(env, tape) if decision is None else decision
    taken: list[Step] = []
    before = first
    try:
        for count in range(start, steps):
            actions = None if alter is None else alter(before, tape.actions(count, before))
            taken.append(step_once(env, tape, count, before, actions=actions, states=states))
            before = taken[-1].decision
    except Exception as error:
        return Play(first, tuple(taken), error)
    return Play(first, tuple(taken))
