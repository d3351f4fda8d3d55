"""Proximal policy optimisation in JAX, top to bottom.

``PPO`` is the algorithm: how a row acts and how a batch is learned from. ``FusedTrainer`` runs
rollout and learning of a functional environment as one jitted program; train/host_loop.py drives
the same ``PPO`` with environments that live outside of it.

``N`` environments, ``A`` agents, ``R = N * A`` rows, ``T`` steps of a rollout.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from envs.core import Decision, EnvSpec, Outcome, VectorFunctionalEnv
from envs.noise import draw_reset_noise, draw_step_noise, draw_uniform
from train import ppo_math
from train.config import PPOConfig
from train.episodes import EpisodeTotals, count_episodes, init_totals
from train.normalize import RunningStatistics, init_statistics, normalize, update_statistics
from train.policies.policy import MLPPolicy
from train.rows import from_rows, per_row, to_rows

Array = Any  # a JAX array, or a NumPy one on its way into a program


class LearnerState(NamedTuple):
    """What learning changes. ``statistics`` is None without observation normalisation."""

    params: Any
    opt_state: Any
    statistics: RunningStatistics | None
    update: Array  # int32, updates so far; also what minibatch permutations are drawn from
    seed: Array  # uint32


class Trajectory(NamedTuple):
    """A rollout ``[T, R, ...]``, or one step of it ``[R, ...]``.

    ``action`` is as sampled, before ``head.to_env``; ``reward`` and the ends follow the decision
    of the same index; ``final_value`` is the critic's value of ``Outcome.final`` where truncated.
    """

    observation: Array
    legal_actions: Array | None
    acting: Array
    is_first: Array
    action: Array
    log_prob: Array
    value: Array
    reward: Array
    terminated: Array
    truncated: Array
    final_value: Array
    final_acting: Array


class Action(NamedTuple):
    """One step's choice ``[R, ...]`` and the policy's next carry."""

    action: Array
    log_prob: Array
    value: Array
    carry: Any


class PPO:
    """The algorithm for one environment, policy and configuration; all methods are pure.

    Args:
        num_updates: of the whole run, for the learning-rate schedule.
    """

    def __init__(
        self, spec: EnvSpec, policy: MLPPolicy, config: PPOConfig, num_updates: int
    ) -> None:
        self.spec, self.policy, self.config = spec, policy, config
        self.num_rows = config.num_envs * spec.num_agents
        self._rows = np.arange(self.num_rows, dtype=np.uint32)
        steps = num_updates * config.epochs * config.num_minibatches
        rate: Any = config.learning_rate
        if config.schedule == "linear":
            rate = optax.linear_schedule(rate, 0.0, steps)
        self._optimizer = optax.chain(
            optax.clip_by_global_norm(config.max_grad_norm), optax.adam(rate, eps=1e-5)
        )

    def init(self, seed: int) -> LearnerState:
        """A fresh learner."""
        params = self.policy.init(seed)
        statistics = None
        if self.config.normalize_observations:
            statistics = init_statistics(self.spec.observation_space.shape)
        opt_state = self._optimizer.init(params)
        return LearnerState(params, opt_state, statistics, jnp.int32(0), jnp.uint32(seed))

    # --- acting -----------------------------------------------------------------------------

    def act(
        self, learner: LearnerState, carry: Any, decision: Decision, is_first: Array, step: Array
    ) -> Action:
        """Sample every row's action; the draws are a function of (seed, step, row)."""
        observation, legal, _ = to_rows(self.spec, decision)
        observation = normalize(learner.statistics, observation)
        head = self.policy.head
        outputs, value, carry = self.policy.apply(learner.params, carry, observation, is_first)
        uniforms = draw_uniform(learner.seed, step, self._rows, head.num_uniforms, xp=jnp)
        action = head.sample(outputs, legal, uniforms)
        return Action(action, head.log_prob(outputs, legal, action), value, carry)

    def to_env(self, action: Array) -> Array:
        """Sampled actions ``[R, ...]`` as the environment takes them, ``[N(,A), ...]``."""
        return from_rows(self.spec, self.policy.head.to_env(action))

    def value(self, learner: LearnerState, carry: Any, decision: Decision) -> Array:
        """The critic's value ``[R]`` of a decision inside a running episode."""
        observation, _, acting = to_rows(self.spec, decision)
        is_first = jnp.zeros(acting.shape, bool)
        observation = normalize(learner.statistics, observation)
        return self.policy.apply(learner.params, carry, observation, is_first)[1]

    def final_value(self, learner: LearnerState, carry: Any, outcome: Outcome) -> Array:
        """``[R]``: values to bootstrap truncated rows from; computed only when there are some."""
        if not self.spec.truncates:
            return jnp.zeros(self.num_rows)
        final = outcome.final
        assert final is not None  # obligatory for truncations
        return lax.cond(
            outcome.truncated.any(),
            lambda: self.value(learner, carry, final),
            lambda: jnp.zeros(self.num_rows),
        )

    def record(
        self,
        decision: Decision,
        is_first: Array,
        action: Action,
        outcome: Outcome,
        final_value: Array,
    ) -> Trajectory:
        """One step of the trajectory."""
        observation, legal, acting = to_rows(self.spec, decision)
        final_acting = acting  # read only where truncated, and there a final is obligatory
        if outcome.final is not None:
            final_acting = per_row(self.spec, outcome.final.acting)
        return Trajectory(
            observation=observation,
            legal_actions=legal,
            acting=acting,
            is_first=is_first,
            action=action.action,
            log_prob=action.log_prob,
            value=action.value,
            reward=per_row(self.spec, outcome.reward),
            terminated=per_row(self.spec, outcome.terminated),
            truncated=per_row(self.spec, outcome.truncated),
            final_value=final_value,
            final_acting=final_acting,
        )

    # --- learning ---------------------------------------------------------------------------

    def learn(
        self,
        learner: LearnerState,
        trajectory: Trajectory,
        first_carry: Any,
        last_carry: Any,
        last: Decision,
    ) -> tuple[LearnerState, dict[str, Array]]:
        """All epochs over one rollout.

        Args:
            first_carry: the policy's carry before the first step.
            last_carry, last: carry and decision after the last step.

        Returns:
            The new learner and scalar metrics: means over all minibatches, and
            ``first_approx_kl`` and ``first_ratio_max`` of the first one, where the policy is
            still the one that acted.
        """
        c = self.config
        advantages = ppo_math.gae(
            reward=trajectory.reward,
            value=trajectory.value,
            acting=trajectory.acting,
            terminated=trajectory.terminated,
            truncated=trajectory.truncated,
            final_value=trajectory.final_value,
            final_acting=trajectory.final_acting,
            # Rows whose episode has just ended don't read this: the end cuts the bootstrap.
            last_value=self.value(learner, last_carry, last),
            last_acting=per_row(self.spec, last.acting),
            gamma=c.gamma,
            gae_lambda=c.gae_lambda,
        )
        key = jax.random.fold_in(jax.random.key(learner.seed), learner.update)

        def minibatch(carry: tuple, index: Array) -> tuple[tuple, dict]:
            params, opt_state = carry
            batch, gains = jax.tree.map(lambda x: x[:, index], (trajectory, advantages))
            starts = jax.tree.map(lambda x: x[index], first_carry)
            gradient = jax.grad(self.loss, has_aux=True)
            grads, metrics = gradient(params, learner, batch, gains, starts)
            metrics["grad_norm"] = optax.tree.norm(grads)
            updates, opt_state = self._optimizer.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), metrics

        def epoch(carry: tuple, key: Array) -> tuple[tuple, dict]:
            permutation = jax.random.permutation(key, self.num_rows)
            return lax.scan(minibatch, carry, permutation.reshape(c.num_minibatches, -1))

        (params, opt_state), stacked = lax.scan(
            epoch, (learner.params, learner.opt_state), jax.random.split(key, c.epochs)
        )
        metrics = {name: values.mean() for name, values in stacked.items()}
        metrics["first_approx_kl"] = stacked["approx_kl"][0, 0]
        metrics["first_ratio_max"] = stacked["ratio_max"][0, 0]
        metrics["explained_variance"] = ppo_math.explained_variance(
            trajectory.value, advantages.target, advantages.weight
        )
        statistics = learner.statistics
        if statistics is not None:
            weight = trajectory.acting.astype(jnp.float32)
            statistics = update_statistics(statistics, trajectory.observation, weight)
        learner = learner._replace(
            params=params, opt_state=opt_state, statistics=statistics, update=learner.update + 1
        )
        return learner, metrics

    def loss(
        self,
        params: Any,
        learner: LearnerState,
        batch: Trajectory,
        advantages: ppo_math.Advantages,
        first_carry: Any,
    ) -> tuple[Array, dict[str, Array]]:
        """The PPO objective on ``[T, rows]``; ``learner`` gives the frozen normaliser only."""
        c, head = self.config, self.policy.head
        observation = normalize(learner.statistics, batch.observation)
        outputs, value = self.policy.unroll(params, first_carry, observation, batch.is_first)
        log_prob = head.log_prob(outputs, batch.legal_actions, batch.action)
        weight = advantages.weight
        normalized = ppo_math.masked_normalize(advantages.advantage, weight)
        surrogate, metrics = ppo_math.policy_loss(
            log_prob, batch.log_prob, normalized, weight, c.clip_eps
        )
        critic = ppo_math.value_loss(value, advantages.target, weight)
        entropy = ppo_math.masked_mean(head.entropy(outputs, batch.legal_actions), weight)
        total = surrogate + c.vf_coef * critic - c.ent_coef * entropy
        metrics.update(loss=total, policy_loss=surrogate, value_loss=critic, entropy=entropy)
        return total, metrics


class RolloutState(NamedTuple):
    """Where the environments stand between two updates."""

    env_state: Any
    decision: Decision
    carry: Any
    is_first: Array  # [R] bool
    step: Array  # uint32, steps since the first reset
    totals: EpisodeTotals


class RunnerState(NamedTuple):
    """Everything a run needs to go on."""

    learner: LearnerState
    rollout: RolloutState


class FusedTrainer:
    """Rollout and learning of a functional environment as one program.

    ``chunk(state, updates)`` is the program to jit; its metrics are reduced on the device.
    """

    def __init__(self, ppo: PPO, env: VectorFunctionalEnv) -> None:
        if env.num_envs != ppo.config.num_envs:
            raise ValueError(
                f"the environment has {env.num_envs} rows, the config {ppo.config.num_envs}"
            )
        self.ppo, self.env = ppo, env
        self._rows = np.arange(env.num_envs, dtype=np.uint32)

    def init(self, seed: int) -> RunnerState:
        """A fresh run."""
        spec = self.ppo.spec
        env_state, decision = self.env.reset(
            draw_reset_noise(spec, np.uint32(seed), 0, self._rows, jnp)
        )
        rollout = RolloutState(
            env_state=env_state,
            decision=decision,
            carry=self.ppo.policy.init_carry(self.ppo.num_rows),
            is_first=jnp.ones(self.ppo.num_rows, bool),
            step=jnp.uint32(0),
            totals=init_totals(spec, self.env.num_envs, jnp),
        )
        # A state may hold its observation, and donation takes every buffer once only.
        return jax.tree.map(jnp.copy, RunnerState(self.ppo.init(seed), rollout))

    def compile(self, state: RunnerState) -> Any:
        """The program of :meth:`chunk` for states like this one, whose buffers it takes over."""
        return jax.jit(self.chunk, donate_argnums=0).lower(state, np.int32(1)).compile()

    def step(self, learner: LearnerState, state: RolloutState) -> tuple[RolloutState, Trajectory]:
        """One step of all environments under the present policy."""
        ppo, spec = self.ppo, self.ppo.spec
        action = ppo.act(learner, state.carry, state.decision, state.is_first, state.step)
        env_state, decision, outcome = self.env.step(
            state.env_state,
            ppo.to_env(action.action),
            draw_step_noise(spec, learner.seed, state.step, self._rows, jnp),
            draw_reset_noise(spec, learner.seed, state.step + 1, self._rows, jnp),
        )
        final_value = ppo.final_value(learner, action.carry, outcome)
        recorded = ppo.record(state.decision, state.is_first, action, outcome, final_value)
        state = RolloutState(
            env_state=env_state,
            decision=decision,
            carry=action.carry,
            is_first=per_row(spec, outcome.ended),
            step=state.step + 1,
            totals=count_episodes(spec, state.totals, outcome, jnp),
        )
        return state, recorded

    def update(self, state: RunnerState) -> tuple[RunnerState, dict[str, Array]]:
        """One rollout and the learning from it."""
        learner, start = state
        rollout, trajectory = lax.scan(
            lambda carry, _: self.step(learner, carry), start, length=self.ppo.config.horizon
        )
        learner, metrics = self.ppo.learn(
            learner, trajectory, start.carry, rollout.carry, rollout.decision
        )
        return RunnerState(learner, rollout), metrics

    def chunk(
        self, state: RunnerState, updates: Array
    ) -> tuple[RunnerState, dict[str, Array], EpisodeTotals]:
        """``updates`` updates; metrics are their means, totals cover the chunk's episodes.

        The number is an argument of the compiled program, so one compilation serves all chunks.
        """
        rollout = state.rollout
        state = state._replace(rollout=rollout._replace(totals=rollout.totals.cleared(jnp)))
        shapes = jax.eval_shape(self.update, state)[1]
        sums = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        def one(_: Array, carry: tuple) -> tuple:
            state, sums = carry
            state, metrics = self.update(state)
            return state, jax.tree.map(jnp.add, sums, metrics)

        state, sums = lax.fori_loop(0, updates, one, (state, sums))
        return state, {k: v / updates for k, v in sums.items()}, state.rollout.totals
