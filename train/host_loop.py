"""PPO on environments that live outside the jitted program: the host loop.

The algorithm is train/ppo_jax.PPO, the same as in the fused trainer; only the stepping is here,
with a clock on each part.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs.batched import BatchedEnv
from envs.core import Decision, Outcome
from train.episodes import EpisodeTotals, count_episodes, init_totals
from train.ppo_jax import PPO, LearnerState, Trajectory, to_rows

PHASES = ("environment", "policy", "learner", "other")


class HostTrainer:
    """Trains on a BatchedEnv. ``seconds`` accumulates wall time by phase.

    Args:
        ppo: the algorithm.
        env: stepped in place; its ``copy`` is switched off, since every array is copied into
            the rollout buffer before the next step.
    """

    def __init__(self, ppo: PPO, env: BatchedEnv, seed: int) -> None:
        env.copy = False
        self.ppo, self.env = ppo, env
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.learner: LearnerState = ppo.init(seed)
        self._act: Any = jax.jit(self._act_program)
        self._learn: Any = jax.jit(self._learn_program)
        self._value: Any = jax.jit(ppo.value)
        self._carry = ppo.policy.init_carry(ppo.num_rows)
        self._is_first = np.ones(ppo.num_rows, bool)
        self._step = 0
        self._buffer: Trajectory | None = None
        self.totals: EpisodeTotals = init_totals(ppo.spec, env.num_envs, np)
        self._decision: Decision = env.reset(seed)

    def _act_program(
        self, learner: LearnerState, carry: Any, decision: Decision, is_first: Any, step: Any
    ) -> Any:
        action = self.ppo.act(learner, carry, decision, is_first, step)
        return action, self.ppo.to_env(action.action)

    def _learn_program(
        self,
        learner: LearnerState,
        trajectory: Trajectory,
        first_carry: Any,
        carry: Any,
        decision: Decision,
    ) -> Any:
        last_value = self.ppo.value(learner, carry, decision)
        last_acting = jnp.reshape(decision.acting, -1)
        return self.ppo.learn(learner, trajectory, first_carry, last_value, last_acting)

    @property
    def decision(self) -> Decision:
        """The open decision."""
        return self._decision

    def compile(self) -> float:
        """Compile the programs on the present shapes, without a step; returns the seconds."""
        started = time.perf_counter()
        step = np.uint32(0)
        arguments = (self.learner, self._carry, self._decision, self._is_first, step)
        action, _ = jax.eval_shape(self._act_program, *arguments)
        self._act = self._act.lower(*arguments).compile()
        outcome_value = np.zeros(self.ppo.num_rows, np.float32)
        ends = np.zeros(self.ppo.num_rows, bool)
        observation, legal, acting = to_rows(self.ppo.spec, self._decision)
        one = Trajectory(
            observation, legal, acting, ends, action.action, action.log_prob, action.value,
            outcome_value, ends, ends, outcome_value, ends,
        )  # fmt: skip
        self._allocate(one)
        self._learn = self._learn.lower(
            self.learner, self._buffer, self._carry, self._carry, self._decision
        ).compile()
        if self.ppo.spec.truncates:
            self._value = self._value.lower(self.learner, self._carry, self._decision).compile()
        return time.perf_counter() - started

    def update(self) -> dict[str, Any]:
        """One rollout and the learning from it; returns the learner's metrics."""
        started = time.perf_counter()
        before = sum(self.seconds.values())
        first_carry = self._carry
        for t in range(self.ppo.config.horizon):
            self._rollout_step(t)
        with _Timer(self.seconds, "learner"):
            self.learner, metrics = self._learn(
                self.learner, self._buffer, first_carry, self._carry, self._decision
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
        decision, is_first = self._decision, self._is_first
        with _Timer(self.seconds, "policy"):
            action, env_action = self._act(
                self.learner, self._carry, decision, is_first, np.uint32(self._step)
            )
            actions = np.asarray(env_action)
        recorded_before = jax.tree.map(np.array, decision)
        with _Timer(self.seconds, "environment"):
            self._decision, outcome = self.env.step(actions)
        final_value = self._final_value(action.carry, outcome)
        step = self.ppo.record(recorded_before, is_first, action, outcome, final_value)
        self._write(t, step)
        ended = outcome.terminated | outcome.truncated
        self._is_first = np.repeat(ended, self.ppo.spec.num_agents)
        self._carry = action.carry
        self._step = (self._step + 1) % 2**32
        self.totals = count_episodes(self.ppo.spec, self.totals, outcome, np)

    def _final_value(self, carry: Any, outcome: Outcome) -> np.ndarray:
        if not outcome.truncated.any():
            return np.zeros(self.ppo.num_rows, np.float32)
        with _Timer(self.seconds, "policy"):
            return np.asarray(self._value(self.learner, carry, outcome.final))

    def _allocate(self, step: Any) -> None:
        horizon = self.ppo.config.horizon
        self._buffer = jax.tree.map(lambda x: np.zeros((horizon, *x.shape), x.dtype), step)

    def _write(self, t: int, step: Trajectory) -> None:
        if self._buffer is None:
            self._allocate(step)

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
