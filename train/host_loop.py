"""PPO on environments that live outside the jitted program: the host loop.

The algorithm is train/ppo_jax.PPO, the same as in the fused trainer; only the stepping is here,
with a clock on each part.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np

from envs.batched import BatchedEnv
from envs.core import Decision, Outcome
from train.episodes import EpisodeTotals, count_episodes, init_totals
from train.ppo_jax import PPO, LearnerState, Trajectory
from train.rows import per_row, to_rows

PHASES = ("environment", "policy", "learner", "other")


class HostTrainer:
    """Trains on a BatchedEnv. ``seconds`` accumulates wall time by phase.

    Args:
        ppo: the algorithm.
        env: stepped in place; its ``copy`` is switched off, since what is needed of an array is
            copied before the next step.
    """

    def __init__(self, ppo: PPO, env: BatchedEnv, seed: int) -> None:
        env.copy = False
        self.ppo, self.env = ppo, env
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.learner: LearnerState = ppo.init(seed)
        self.totals: EpisodeTotals = init_totals(ppo.spec, env.num_envs, np)
        self.decision: Decision = env.reset(seed)
        self._carry = ppo.policy.init_carry(ppo.num_rows)
        self._is_first = np.ones(ppo.num_rows, bool)
        self._step = 0
        started = time.perf_counter()
        self._compile()
        self.compile_seconds = time.perf_counter() - started

    def _compile(self) -> None:
        """The programs and the rollout buffer, from the shapes at hand."""

        def act(learner: LearnerState, carry: Any, decision: Decision, first: Any, t: Any) -> Any:
            action = self.ppo.act(learner, carry, decision, first, t)
            return action, self.ppo.to_env(action.action)

        now = (self.learner, self._carry, self.decision, self._is_first, np.uint32(0))
        self._act: Any = jax.jit(act).lower(*now).compile()
        action, _ = jax.eval_shape(act, *now)
        real, flag = np.zeros(self.ppo.num_rows, np.float32), np.zeros(self.ppo.num_rows, bool)
        observation, legal, acting = to_rows(self.ppo.spec, self.decision)
        choice = (action.action, action.log_prob, action.value)
        outcome = (real, flag, flag, real, flag)
        step = Trajectory(observation, legal, acting, flag, *choice, *outcome)
        horizon = self.ppo.config.horizon
        self._buffer = jax.tree.map(lambda x: np.zeros((horizon, *x.shape), x.dtype), step)
        self._learn: Any = (
            jax.jit(self.ppo.learn)
            .lower(self.learner, self._buffer, self._carry, self._carry, self.decision)
            .compile()
        )
        if self.ppo.spec.truncates:
            value = jax.jit(self.ppo.value)
            self._value: Any = value.lower(self.learner, self._carry, self.decision).compile()

    def update(self) -> dict[str, Any]:
        """One rollout and the learning from it; returns the learner's metrics."""
        started = time.perf_counter()
        before = sum(self.seconds.values())
        first_carry = self._carry
        for t in range(self.ppo.config.horizon):
            self._rollout_step(t)
        with _Timer(self.seconds, "learner"):
            self.learner, metrics = self._learn(
                self.learner, self._buffer, first_carry, self._carry, self.decision
            )
            # The buffer is written again right after: the program may read it in place.
            jax.block_until_ready(self.learner)
        counted = sum(self.seconds.values()) - before
        self.seconds["other"] += time.perf_counter() - started - counted
        return metrics

    def chunk(self, updates: int) -> tuple[dict[str, float], EpisodeTotals]:
        """``updates`` updates; means of their metrics, totals over the chunk's episodes."""
        self.totals = self.totals.cleared(np)
        history = [self.update() for _ in range(updates)]
        means = {name: float(np.mean([m[name] for m in history])) for name in history[0]}
        return means, self.totals

    def _rollout_step(self, t: int) -> None:
        # The environment may overwrite its decision in the next step: keep a copy to record.
        decision, is_first = jax.tree.map(np.array, self.decision), self._is_first
        with _Timer(self.seconds, "policy"):
            action, env_action = self._act(
                self.learner, self._carry, decision, is_first, np.uint32(self._step)
            )
            actions = np.asarray(env_action)
        with _Timer(self.seconds, "environment"):
            self.decision, outcome = self.env.step(actions)
        final_value = self._final_value(action.carry, outcome)
        step = self.ppo.record(decision, is_first, action, outcome, final_value)
        self._write(t, step)
        self._is_first = per_row(self.ppo.spec, outcome.ended)
        self._carry = action.carry
        self._step = (self._step + 1) % 2**32
        self.totals = count_episodes(self.ppo.spec, self.totals, outcome, np)

    def _final_value(self, carry: Any, outcome: Outcome) -> np.ndarray:
        if not outcome.truncated.any():
            return np.zeros(self.ppo.num_rows, np.float32)
        with _Timer(self.seconds, "policy"):
            return np.asarray(self._value(self.learner, carry, outcome.final))

    def _write(self, t: int, step: Trajectory) -> None:
        def put(buffer: np.ndarray, x: Any) -> None:
            buffer[t] = x

        jax.tree.map(put, self._buffer, step)


class _Timer:
    def __init__(self, seconds: dict[str, float], phase: str) -> None:
        self._seconds, self._phase = seconds, phase

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        self._seconds[self._phase] += time.perf_counter() - self._start
