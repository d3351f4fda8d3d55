"""What share of training time does the environment cost?

Measured, not guessed: the same training program is run with a null environment in place of the
real one (same shapes, no rules), interleaved with the real program; the share is what the null
environment saves. Where there is a host loop its clocks give a second reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from envs.batched import BatchedEnv
from envs.core import Array, Decision, Outcome, VectorFunctionalEnv
from envs.noise import draw_reset_noise, draw_step_noise, draw_uniform
from envs.spaces import action_bounds, action_dtype
from verification.statistics import share_interval


class NullEnv(VectorFunctionalEnv):
    """Hands out the wrapped environment's first decision for ever; no episode ends."""

    def __init__(self, env: VectorFunctionalEnv) -> None:
        self._env = env
        self.spec, self.num_envs = env.spec, env.num_envs

    def reset(self, reset_noise: Any) -> tuple[Any, Decision]:
        decision = self._env.reset(reset_noise)[1]
        return decision, decision

    def step(
        self, state: Decision, action: Array, step_noise: Any, reset_noise: Any
    ) -> tuple[Any, Decision, Outcome]:
        # Through the barrier with the action, or the compiler would lift the policy, whose input
        # no longer changes, out of the rollout's loop.
        state, _ = lax.optimization_barrier((state, action))
        return state, state, _null_outcome(self.spec, self.num_envs, state, jnp)

    def observe(self, state: Decision) -> Decision:
        return state

    def state_fields(self, state: Any) -> dict[str, Array]:
        raise NotImplementedError("a null environment has no canonical state")

    def state_from_fields(self, fields: Mapping[str, Array]) -> Any:
        raise NotImplementedError("a null environment has no canonical state")


class NullBatched(BatchedEnv):
    """The same for the host loop."""

    def __init__(self, env: BatchedEnv, decision: Decision) -> None:
        super().__init__(env.spec, env.num_envs, copy=False)
        self._first = jax.tree.map(np.array, decision)
        self._outcome = _null_outcome(self.spec, self.num_envs, self._first, np)

    def _reset(self, seed: int) -> Decision:
        return self._first

    def _step(self, actions: np.ndarray) -> tuple[Decision, Outcome]:
        return self._first, self._outcome


def _null_outcome(spec: Any, num_envs: int, final: Decision, xp: Any) -> Outcome:
    rows = spec.rows(num_envs)
    metrics = {
        name: xp.zeros(rows if m.per_agent else num_envs, m.dtype)
        for name, m in spec.metrics.items()
    }
    return Outcome(
        reward=xp.zeros(rows, xp.float32),
        terminated=xp.zeros(num_envs, bool),
        truncated=xp.zeros(num_envs, bool),
        metrics=metrics,
        invalid=xp.zeros(rows, bool),
        final=final,
        events=xp.zeros((num_envs, len(spec.events)), bool),
    )


def measure_share(
    real: Callable[[], None], null: Callable[[], None], repeats: int = 9
) -> dict[str, Any]:
    """The share of ``real``'s time that ``null`` saves, from interleaved repetitions.

    Args:
        real, null: run a fixed amount of training and return when it is finished; both are
            called once beforehand.

    Returns:
        ``share``, ``ci95`` (two floats), ``below_noise`` (the interval covers 0), and the
        medians in seconds.
    """
    real()
    null()
    seconds = np.array([[_timed(real), _timed(null)] for _ in range(repeats)])
    interval = share_interval(seconds[:, 0], seconds[:, 1])
    medians = np.median(seconds, axis=0)
    return dict(
        share=interval.estimate,
        ci95=[interval.low, interval.high],
        below_noise=interval.covers_zero or interval.estimate < 0.0,
        real_seconds=float(medians[0]),
        null_seconds=float(medians[1]),
        repeats=repeats,
    )


def _timed(run: Callable[[], None]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def environment_rate(env: VectorFunctionalEnv, steps: int, seed: int = 0) -> float:
    """Steps per second of the environment alone under ``lax.scan`` with random actions."""
    spec, rows = env.spec, np.arange(env.num_envs, dtype=np.uint32)

    def run(state: Any, decision: Decision, seed: Array) -> Any:
        def one(carry: tuple, t: Array) -> tuple:
            state, decision, total = carry
            action = random_actions(spec, decision, seed, t, jnp)
            state, decision, outcome = env.step(
                state,
                action,
                draw_step_noise(spec, seed, t, rows, jnp),
                draw_reset_noise(spec, seed, t + 1, rows, jnp),
            )
            return (state, decision, total + outcome.reward.sum()), None

        times = jnp.arange(steps, dtype=jnp.uint32)
        return lax.scan(one, (state, decision, jnp.float32(0)), times)[0]

    state, decision = env.reset(draw_reset_noise(spec, np.uint32(seed), 0, rows, jnp))
    program = jax.jit(run).lower(state, decision, np.uint32(seed)).compile()

    def once() -> None:
        jax.block_until_ready(program(state, decision, np.uint32(seed)))

    once()
    return env.num_envs * steps / float(np.median([_timed(once) for _ in range(5)]))


def random_actions(spec: Any, decision: Decision, seed: Any, step: Any, xp: Any) -> Any:
    """Uniform actions ``[N(,A), ...]`` from the counter hash; legality is not looked at."""
    leading = decision.acting.shape
    rows = np.arange(int(np.prod(leading)), dtype=np.uint32)
    size = int(np.prod(spec.action_space.shape, dtype=int))
    u = draw_uniform(seed, step, rows, max(size, 1), stream=2, xp=xp)
    u = u.reshape(*leading, *spec.action_space.shape)
    low, high = action_bounds(spec.action_space)
    if action_dtype(spec.action_space).kind == "i":
        return (low + xp.floor(u * (high - low + 1))).astype(np.int32)
    return (low + u * (high - low)).astype(action_dtype(spec.action_space))
