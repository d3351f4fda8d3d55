"""The trainer as a whole: what it learns where the answer is known, and what must never change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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


def test_both_reset_forms_train_alike() -> None:
    results = []
    for form in ("cond", "compact"):
        env = vectorize(diagnostic_envs.Diagnostic("delay"), 8, reset=form)
        results.append(train(make_trainer(env), 3)[0].learner.params)
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
