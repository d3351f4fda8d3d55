"""Environments whose optimal policy and value function are known, for tests of the trainer."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from envs.adapters.vectorize import vectorize
from envs.core import (
    Array,
    Decision,
    EnvSpec,
    Field,
    FunctionalEnv,
    NoiseSite,
    Outcome,
    VectorFunctionalEnv,
)

KINDS = ("terminate", "truncate", "choice", "delay")
DELAY = 2


class State(NamedTuple):
    sign: Array  # float32, -1 or 1
    chosen: Array  # int32, the first action of the episode
    steps: Array  # int32


class Diagnostic(FunctionalEnv):
    """One of:

    - ``terminate``, ``truncate``: reward 1 and the end in every step; the value is 1, or
      1 / (1 - gamma).
    - ``choice``: reward 1 for action 1 where the observed sign is positive and for action 0
      elsewhere.
    - ``delay``: the first of DELAY + 1 actions is rewarded after the last.
    """

    State = State

    def __init__(self, kind: str) -> None:
        assert kind in KINDS
        self.kind = kind
        super().__init__(
            EnvSpec(
                name=f"diagnostic-{kind}",
                version="1",
                observation_space=spaces.Box(-1.0, float(DELAY), (2,), np.float32),
                action_space=spaces.Discrete(2),
                truncates=kind == "truncate",
                max_episode_steps=1 if kind == "truncate" else None,
                reset_noise={"sign": NoiseSite("integers", (), 0, 2)},
                state={
                    "sign": Field((), "float32", low=-1, high=1),
                    "chosen": Field((), "int32", low=0, high=1),
                    "steps": Field((), "int32", low=0, high=DELAY),
                },
            )
        )

    def init(self, reset_noise: Any) -> State:
        sign = 2.0 * reset_noise.sign.astype(jnp.float32) - 1.0
        return State(sign, jnp.int32(0), jnp.int32(0))

    def observe(self, state: State) -> Decision:
        seen = jnp.stack([state.sign, state.steps.astype(jnp.float32)])
        # Where the value is what is asked for, the last observation equals the first.
        constant = self.kind in ("terminate", "truncate")
        return Decision(jnp.zeros(2) if constant else seen, jnp.bool_(True))

    def advance(self, state: State, action: Array, step_noise: Any) -> tuple[State, Outcome]:
        chosen = jnp.where(state.steps == 0, action, state.chosen)
        right = (chosen == 1) == (state.sign > 0)
        last = state.steps == (DELAY if self.kind == "delay" else 0)
        pays = right & last if self.kind in ("choice", "delay") else jnp.bool_(True)
        end = last if self.kind == "delay" else jnp.bool_(True)
        truncates = self.kind == "truncate"
        outcome = Outcome(
            reward=pays.astype(jnp.float32),
            terminated=end & (not truncates),
            truncated=end & truncates,
            metrics={},
            invalid=jnp.bool_(False),
            events=jnp.zeros(0, bool),
        )
        return State(state.sign, chosen.astype(jnp.int32), state.steps + 1), outcome


def make(kind: str, num_envs: int) -> VectorFunctionalEnv:
    """A batch of one kind."""
    return vectorize(Diagnostic(kind), num_envs)
