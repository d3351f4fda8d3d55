"""What share of training time does the environment cost?

Measured, not guessed: the same training program is run with a null environment in place of the
real one (same shapes, no rules), interleaved with the real program; the share is what the null
environment saves. Where there is a host loop its clocks give a second reading.

The interval covers the noise of timing, not what compiling does: two programs whose learners are
equal instruction for instruction can still differ by 10 % where XLA's CPU threads hand small
operations to each other (16 CartPoles on two cores; with NPROC=1 in the environment, one thread,
the difference is gone). A share below that, or a negative one, means: too small to tell.
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
    real: Callable[[], object], null: Callable[[], object], repeats: int = 9
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


def _timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
