"""Playing whole episodes with a trained policy on any backend, one result per episode.

Row i plays exactly its first episode, so long episodes count as often as short ones. Under a
Simulator every draw is a function of (seed, step, row): two backends evaluated with one seed
meet the same starts and the same noise, and their episodes can be compared in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs.batched import BatchedEnv
from envs.core import ActionError, Decision, Outcome
from envs.noise import draw_reset_noise, draw_step_noise, draw_uniform
from envs.simulator import Simulator
from train.checkpoint import TrainedPolicy
from train.normalize import normalize
from train.rows import from_rows, per_row, to_rows
from verification.statistics import mean_interval

# Training samples its actions from stream 0 of the same counters.
EVALUATION_STREAM = 1


@dataclass(frozen=True)
class EpisodeResults:
    """Per episode, ``[E]`` each: the return (mean over agents), the length in steps, whether it
    ended within the step limit, and the environment's own metrics (mean over agents). Entries of
    unfinished episodes hold what was reached when the limit came; their metrics are NaN."""

    returns: np.ndarray
    lengths: np.ndarray
    finished: np.ndarray
    metrics: dict[str, np.ndarray] = field(default_factory=dict)

    def values(self, metric: str) -> np.ndarray:
        """``[E]`` of one metric: "return", "length" or one of the environment's.

        Raises:
            KeyError: an unknown metric, with the choices.
        """
        known = {"return": self.returns, "length": self.lengths.astype(float), **self.metrics}
        if metric not in known:
            raise KeyError(f"unknown metric {metric!r}; choose from {', '.join(known)}")
        return known[metric]

    def summary(self) -> dict[str, Any]:
        """Means over the finished episodes, with how many there were and how many were capped."""
        finished = int(self.finished.sum())
        result: dict[str, Any] = dict(
            episodes_finished=finished, episodes_capped=int((~self.finished).sum())
        )
        for name in ("return", "length", *self.metrics):
            values = self.values(name)[self.finished]
            interval = mean_interval(values) if finished > 1 else None
            result[f"{name}_mean"] = float(values.mean()) if finished else None
            result[f"{name}_ci95"] = None if interval is None else [interval.low, interval.high]
        return result


class Actor:
    """A trained policy as a function of decisions; the same compiled program for every backend,
    so that equal observations give equal actions."""

    def __init__(self, trained: TrainedPolicy, num_envs: int, greedy: bool, seed: int) -> None:
        self.trained, self.greedy = trained, greedy
        self.num_rows = num_envs * trained.spec.num_agents
        self._rows = np.arange(self.num_rows, dtype=np.uint32)
        self._seed = np.uint32(seed)
        self._program = jax.jit(self._act)

    def init_carry(self) -> Any:
        """The policy's carry at the start of episodes."""
        return self.trained.policy.init_carry(self.num_rows)

    def __call__(
        self, carry: Any, decision: Decision, is_first: np.ndarray, step: int
    ) -> tuple[np.ndarray, Any]:
        """Actions ``[N(,A), ...]`` and the next carry."""
        params, statistics = self.trained.params, self.trained.statistics
        actions, carry = self._program(
            params, statistics, carry, decision, is_first, np.uint32(step)
        )
        return np.asarray(actions), carry

    def _act(
        self, params: Any, statistics: Any, carry: Any, decision: Decision, is_first: Any, step: Any
    ) -> Any:
        spec, policy = self.trained.spec, self.trained.policy
        observation, legal, _ = to_rows(spec, decision)
        observation = normalize(statistics, observation)
        outputs, _, carry = policy.apply(params, carry, observation, is_first)
        if self.greedy:
            action = policy.head.mode(outputs, legal)
        else:
            draws = policy.head.num_uniforms
            uniforms = draw_uniform(self._seed, step, self._rows, draws, EVALUATION_STREAM, xp=jnp)
            action = policy.head.sample(outputs, legal, uniforms)
        return from_rows(spec, policy.head.to_env(action)), carry


def rollout(
    actor: Actor, env: BatchedEnv | Simulator, seed: int
) -> Iterator[tuple[Decision, np.ndarray, Outcome]]:
    """Endless steps of the actor: (decision, actions taken in it, outcome)."""
    spec = env.spec
    rows = np.arange(env.num_envs, dtype=np.uint32)
    carry, step = actor.init_carry(), 0
    is_first = np.ones(actor.num_rows, bool)
    if isinstance(env, Simulator):
        decision = env.reset(draw_reset_noise(spec, seed, 0, rows))
    else:
        decision = env.reset(seed)
    while True:
        actions, carry = actor(carry, decision, is_first, step)
        if isinstance(env, Simulator):
            step_noise = draw_step_noise(spec, seed, step, rows)
            following, outcome = env.step(
                actions, step_noise, draw_reset_noise(spec, seed, step + 1, rows)
            )
        else:
            following, outcome = env.step(actions)
        yield decision, actions, outcome
        is_first = per_row(spec, outcome.ended)
        decision, step = following, step + 1


def play_episodes(
    trained: TrainedPolicy,
    env: BatchedEnv | Simulator,
    *,
    max_steps: int,
    greedy: bool,
    seed: int,
    progress: Callable[[int, int], None] = lambda finished, step: None,
) -> EpisodeResults:
    """The first episode of each of the environment's rows.

    Args:
        env: a fresh environment with as many rows as episodes are wanted.
        max_steps: cap of an episode in steps.
        progress: called after each step with the episodes finished and the steps made.
    """
    if env.spec != trained.spec:
        raise ValueError(
            f"the policy was trained on {trained.spec.name} {dict(trained.spec.parameters)}, "
            f"this is {env.spec.name} {dict(env.spec.parameters)}"
        )
    actor = Actor(trained, env.num_envs, greedy, seed)
    returns = np.zeros(env.num_envs)
    lengths = np.zeros(env.num_envs, np.int64)
    finished = np.zeros(env.num_envs, bool)
    metrics = {name: np.full(env.num_envs, np.nan) for name in env.spec.metrics}
    for step, (_, _, outcome) in enumerate(rollout(actor, env, seed), 1):
        if outcome.invalid.any():
            raise ActionError(f"{env.spec.name}: the policy sent an invalid action")
        returns[~finished] += _agent_mean(outcome.reward)[~finished]
        lengths[~finished] += 1
        ended = outcome.ended & ~finished
        for name, values in metrics.items():
            values[ended] = _agent_mean(outcome.metrics[name])[ended]
        finished |= ended
        progress(int(finished.sum()), step)
        if finished.all() or step >= max_steps:
            break
    return EpisodeResults(returns, lengths, finished, metrics)


def _agent_mean(x: np.ndarray) -> np.ndarray:
    return x if x.ndim == 1 else x.mean(-1)
