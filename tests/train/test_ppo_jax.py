"""The trainer as a whole: what it learns where the answer is known, and what must never change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import envs
from envs.adapters.numpy_faces import FunctionalBatched
from envs.adapters.vectorize import vectorize
from envs.core import VectorFunctionalEnv
from tests.train import diagnostic_envs
from train.config import PPOConfig
from train.host_loop import HostTrainer
from train.policies.policy import MLPPolicy, ModelConfig
from train.ppo_jax import PPO, FusedTrainer, RunnerState
from train.ppo_math import Advantages

SMALL = ModelConfig("small", 2, 32)
CONFIG = PPOConfig(
    num_envs=16,
    horizon=16,
    num_minibatches=4,
    epochs=4,
    learning_rate=3e-3,
    gamma=0.9,
    gae_lambda=0.95,
)
UPDATES = 300


def make_trainer(env: VectorFunctionalEnv, config: PPOConfig = CONFIG, **changes: Any) -> Any:
    config = replace(config, num_envs=env.num_envs, **changes)
    ppo = PPO(env.spec, MLPPolicy(env.spec, SMALL), config, num_updates=UPDATES)
    return FusedTrainer(ppo, env)


def train(trainer: FusedTrainer, updates: int, seed: int = 0) -> tuple[RunnerState, dict, Any]:
    return jax.jit(trainer.chunk)(trainer.init(seed), np.int32(updates))


# --- what it learns ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value"), [("terminate", 1.0), ("truncate", 1.0 / (1.0 - CONFIG.gamma))]
)
def test_a_constant_rewards_value_tells_termination_from_truncation(
    kind: str, value: float
) -> None:
    trainer = make_trainer(diagnostic_envs.make(kind, 16), schedule="linear")
    state, _, _ = train(trainer, UPDATES)
    values = trainer.ppo.value(state.learner, (), state.rollout.decision)
    np.testing.assert_allclose(values, value, rtol=0.05)


@pytest.mark.parametrize("kind", ["choice", "delay"])
def test_the_rewarded_action_is_found(kind: str) -> None:
    trainer = make_trainer(diagnostic_envs.make(kind, 16))
    state, _, _ = train(trainer, 80)
    _, metrics, totals = jax.jit(trainer.chunk)(state, np.int32(5))
    assert float(totals.return_sum) / int(totals.episodes) > 0.95
    assert metrics["entropy"] < 0.6


@pytest.mark.slow
def test_cartpole_is_learned() -> None:
    env = envs.make("cartpole", "jax", 16)
    trainer = make_trainer(env, horizon=32, learning_rate=2e-3, gamma=0.99)
    state, _, _ = train(trainer, 180)
    _, _, totals = jax.jit(trainer.chunk)(state, np.int32(40))
    assert float(totals.return_sum) / int(totals.episodes) > 200


# --- invariants -------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [False, True])
def test_in_the_first_minibatch_the_policy_is_still_the_one_that_acted(normalize: bool) -> None:
    """Ratio 1 and KL 0 to rounding, after many updates too: nothing that the policy's input
    depends on may change between rollout and learning."""
    trainer = make_trainer(envs.make("cartpole", "jax", 16), normalize_observations=normalize)
    state = trainer.init(0)
    step = jax.jit(trainer.chunk)
    for _ in range(3):
        state, metrics, _ = step(state, np.int32(3))
        assert abs(float(metrics["first_approx_kl"])) < 1e-6
        assert abs(float(metrics["first_ratio_max"]) - 1) < 1e-4
        assert float(metrics["approx_kl"]) > 1e-6  # later minibatches do move
    if normalize:
        assert int(state.learner.statistics.samples) == 9 * 16 * 16


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not() -> None:
    trainer = make_trainer(envs.make("cartpole", "jax", 16))
    first, again, other = (train(trainer, 3, seed)[0].learner.params for seed in (0, 0, 1))
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, first, again)))
    assert not all(jax.tree.leaves(jax.tree.map(np.array_equal, first, other)))


def test_many_chunks_are_one_chunk_bit_for_bit() -> None:
    trainer = make_trainer(envs.make("cartpole", "jax", 16), schedule="linear")
    step = jax.jit(trainer.chunk)
    whole, _, _ = step(trainer.init(0), np.int32(6))
    state = trainer.init(0)
    for size in (1, 2, 3):
        state, _, _ = step(state, np.int32(size))
        # Through the host: nothing may hide outside the state.
        state = jax.tree.map(jnp.asarray, jax.device_get(state))
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, whole.learner, state.learner)))


def test_a_rows_play_does_not_depend_on_how_many_rows_there_are() -> None:
    def states(num_envs: int) -> np.ndarray:
        trainer = make_trainer(envs.make("cartpole", "jax", num_envs), num_minibatches=1)
        learner, state = trainer.init(0)
        step = jax.jit(trainer.step)
        for _ in range(40):
            state, _ = step(learner, state)
        return np.asarray(state.decision.observation)

    np.testing.assert_allclose(states(5)[:4], states(4), rtol=1e-4, atol=1e-5)


def test_host_loop_and_fused_program_are_one_algorithm() -> None:
    """The same noise, so the same run: after two updates the parameters agree to rounding."""
    config = replace(CONFIG, num_envs=8, num_minibatches=2, normalize_observations=True)
    env = envs.make("cartpole", "jax", 8)
    fused = make_trainer(env, config)
    state, _, totals = train(fused, 2, seed=3)
    host = HostTrainer(fused.ppo, FunctionalBatched(env), seed=3)
    _, host_totals = host.chunk(2)
    assert int(totals.episodes) == int(host_totals.episodes) > 0
    np.testing.assert_allclose(totals.return_sum, host_totals.return_sum)
    for a, b in zip(jax.tree.leaves(state.learner), jax.tree.leaves(host.learner), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-5)


class Overwriting(FunctionalBatched):
    """Hands out the same arrays in every step, overwritten in place, as C code does."""

    def _step(self, actions: np.ndarray) -> Any:
        decision, outcome = super()._step(actions)
        return self._keep(decision), outcome

    def _reset(self, seed: int) -> Any:
        self._held = jax.tree.map(np.array, super()._reset(seed))
        return self._held

    def _keep(self, decision: Any) -> Any:
        jax.tree.map(lambda held, new: np.copyto(held, new), self._held, decision)
        return self._held


def test_buffers_that_the_environment_overwrites_are_recorded_before() -> None:
    env = envs.make("cartpole", "jax", 8)
    ppo = make_trainer(env, num_minibatches=2).ppo
    runs = [HostTrainer(ppo, kind(env), seed=0) for kind in (FunctionalBatched, Overwriting)]
    for run in runs:
        run.chunk(2)
    for a, b in zip(*(jax.tree.leaves(run.learner) for run in runs), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_the_linear_schedule_ends_at_zero_and_the_constant_one_does_not_move() -> None:
    """Adam's step is proportional to the rate: the last of UPDATES updates hardly moves."""

    def last_move(schedule: str) -> float:
        trainer = make_trainer(envs.make("cartpole", "jax", 8), schedule=schedule)
        chunk = jax.jit(trainer.chunk)
        before, _, _ = chunk(trainer.init(0), np.int32(UPDATES - 1))
        after, _, _ = chunk(before, np.int32(1))
        moves = jax.tree.map(
            lambda a, b: float(jnp.abs(a - b).max()), before.learner.params, after.learner.params
        )
        return max(jax.tree.leaves(moves))

    assert last_move("linear") < 0.1 * last_move("constant")


@pytest.mark.slow
def test_each_update_and_epoch_permutes_its_rows_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(diagnostic_envs.make("choice", 16), num_minibatches=1, epochs=2)
    seen: list[np.ndarray] = []
    permutation = jax.random.permutation

    def spy(key: Any, n: int) -> Any:
        drawn = permutation(key, n)
        jax.debug.callback(lambda x: seen.append(np.array(x)), drawn, ordered=True)
        return drawn

    monkeypatch.setattr(jax.random, "permutation", spy)
    jax.block_until_ready(jax.jit(trainer.chunk)(trainer.init(0), np.int32(3)))
    jax.effects_barrier()
    assert len(seen) == 3 * 2
    assert len({tuple(order) for order in seen}) == 6
    assert all(sorted(order) == list(range(16)) for order in seen)


def test_the_objective_is_its_three_terms_with_their_signs() -> None:
    def loss(**changes: Any) -> tuple[float, dict]:
        trainer = make_trainer(envs.make("cartpole", "jax", 8), num_minibatches=1, **changes)
        learner, rollout = trainer.init(0)
        _, batch = jax.lax.scan(lambda s, _: trainer.step(learner, s), rollout, length=8)
        ones = jnp.ones_like(batch.value)
        gains = Advantages(jnp.arange(ones.size).reshape(ones.shape) * 1.0, 3 * ones, ones)
        # Another policy than the one that acted, so that no term is trivial.
        params = trainer.ppo.policy.init(1)
        total, metrics = trainer.ppo.loss(params, learner, batch, gains, ())
        return float(total), {k: float(v) for k, v in metrics.items()}

    total, terms = loss(vf_coef=0.7, ent_coef=0.3)
    expected = terms["policy_loss"] + 0.7 * terms["value_loss"] - 0.3 * terms["entropy"]
    assert total == pytest.approx(expected, rel=1e-5)
    assert terms["entropy"] > 0
    assert terms["value_loss"] > 0
    assert loss(vf_coef=0.0, ent_coef=0.0)[0] == pytest.approx(terms["policy_loss"], rel=1e-4)


def test_gradients_are_clipped_to_their_global_norm() -> None:
    ppo = make_trainer(envs.make("cartpole", "jax", 8), max_grad_norm=0.5).ppo
    clip = ppo._optimizer.init(ppo.policy.init(0))  # the chain's first part has no state
    grads = jax.tree.map(lambda x: 100.0 * jnp.ones_like(x), ppo.policy.init(0))
    # Adam divides the scale out again but for its eps: a clipped step equals a small one.
    step, _ = ppo._optimizer.update(grads, clip)
    tiny = jax.tree.map(lambda x: x * (0.5 / optax.tree.norm(grads)), grads)
    expected, _ = ppo._optimizer.update(tiny, clip)
    for a, b in zip(jax.tree.leaves(step), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_invalid_actions_are_counted_for_the_chunks_end() -> None:
    env = envs.make("cartpole", "jax", 4)
    trainer = make_trainer(env, num_minibatches=1)
    trainer.ppo.to_env = lambda action: jnp.full(4, 7)
    _, _, totals = train(trainer, 1)
    assert int(totals.invalid) == 4 * CONFIG.horizon


def test_an_environment_of_another_size_is_refused() -> None:
    ppo = make_trainer(envs.make("cartpole", "jax", 4), num_minibatches=1).ppo
    with pytest.raises(ValueError, match="8 rows, the config 4"):
        FusedTrainer(ppo, envs.make("cartpole", "jax", 8))


@pytest.mark.slow
def test_both_reset_forms_train_alike() -> None:
    results = []
    for form in ("cond", "compact"):
        env = vectorize(diagnostic_envs.Diagnostic("delay"), 8, reset=form)
        results.append(train(make_trainer(env), 3)[0].learner.params)
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
