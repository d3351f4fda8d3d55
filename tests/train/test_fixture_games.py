"""PPO on the games that the contract must carry: two players, turns, images, no termination."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.adapters.numpy_faces import FunctionalBatched
from envs.adapters.opponent import Opponent
from envs.adapters.vectorize import vectorize
from envs.core import Array
from tests.fixtures import continuous, image_state, simultaneous, turn_based
from train.config import PPOConfig
from train.episodes import summarize
from train.host_loop import HostTrainer
from train.policies.policy import MLPPolicy, ModelConfig
from train.ppo_jax import PPO, FusedTrainer, RunnerState, Trajectory

pytestmark = pytest.mark.slow


def make_trainer(env: Any, **changes: Any) -> FusedTrainer:
    settings = dict(
        num_envs=env.num_envs,
        horizon=32,
        num_minibatches=4,
        epochs=4,
        learning_rate=3e-3,
        gamma=0.97,
        gae_lambda=0.9,
    )
    config = PPOConfig(**(settings | changes))
    policy = MLPPolicy(env.spec, ModelConfig("small", 2, 32))
    return FusedTrainer(PPO(env.spec, policy, config, num_updates=200), env)


def train(trainer: FusedTrainer, updates: int) -> tuple[RunnerState, dict, dict]:
    chunk = jax.jit(trainer.chunk)
    state, _, _ = chunk(trainer.init(0), np.int32(updates))
    state, metrics, totals = chunk(state, np.int32(10))
    return state, metrics, summarize(totals)


def uniform_legal(params: Any, observation: Array, legal: Array, uniform: Array) -> Array:
    """The k-th legal action, k drawn evenly."""
    order = jnp.cumsum(legal, axis=-1) - 1
    wanted = jnp.floor(uniform * legal.sum(-1)).astype(jnp.int32)
    return jnp.argmax(legal & (order == wanted[:, None]), axis=-1).astype(jnp.int32)


@pytest.mark.parametrize(
    ("game", "random_wins", "needed"),
    [
        (simultaneous.NameYourHand, 0.5, 0.95),
        (turn_based.WindyNim, 0.5, 0.72),
    ],
)
def test_ppo_beats_a_random_player(game: type, random_wins: float, needed: float) -> None:
    module = simultaneous if game is simultaneous.NameYourHand else turn_based
    seats = np.arange(64) % 2
    env = Opponent(vectorize(game(module.make_spec()), 64), uniform_legal, None, seat=seats)
    _, metrics, episodes = train(make_trainer(env), 60)
    assert episodes["winner_mean"] > needed > random_wins
    assert abs(float(metrics["first_ratio_max"]) - 1) < 1e-3


@pytest.mark.parametrize(
    "env",
    [
        simultaneous.NameYourHand(simultaneous.make_spec()),
        turn_based.WindyNim(turn_based.make_spec()),
    ],
    ids=["simultaneous", "turn_based"],
)
def test_self_play_learns_from_the_acting_rows_of_both_seats(env: Any) -> None:
    trainer = make_trainer(vectorize(env, 32))
    _, metrics, episodes = train(trainer, 60)
    assert trainer.ppo.num_rows == 64
    assert abs(episodes["return_mean"]) < 1e-3  # zero-sum
    assert metrics["entropy"] < 0.8 * np.log(env.spec.action_space.n)
    trajectory = rollout(trainer, trainer.init(0))
    acting = np.asarray(trajectory.acting)
    assert 0.3 < acting.mean() < 0.95
    legal = np.asarray(trajectory.legal_actions)
    taken = np.take_along_axis(legal, np.asarray(trajectory.action)[..., None], -1)
    assert taken.all()  # rows that don't act take action 0, their only legal one


def test_what_rows_without_a_decision_hold_changes_no_gradient() -> None:
    env = vectorize(turn_based.WindyNim(turn_based.make_spec()), 16)
    trainer = make_trainer(env)
    state = trainer.init(0)
    trajectory = rollout(trainer, state)
    last = ((), (), state.rollout.decision)
    idle = ~np.asarray(trajectory.acting)
    assert idle.any()

    def poison(x: Array) -> Array:
        mask = idle.reshape(idle.shape + (1,) * (x.ndim - 2))
        return jnp.where(mask, jnp.asarray(5, x.dtype), x)

    dirty = trajectory._replace(
        observation=poison(trajectory.observation), log_prob=poison(trajectory.log_prob)
    )
    clean_result = trainer.ppo.learn(state.learner, trajectory, *last)[0].params
    dirty_result = trainer.ppo.learn(state.learner, dirty, *last)[0].params
    for a, b in zip(*map(jax.tree.leaves, (clean_result, dirty_result)), strict=True):
        np.testing.assert_array_equal(a, b)


def rollout(trainer: FusedTrainer, state: RunnerState) -> Trajectory:
    return jax.lax.scan(lambda s, _: trainer.step(state.learner, s), state.rollout, length=16)[1]


def test_continuous_control_without_terminations() -> None:
    env = vectorize(continuous.PointMass(continuous.make_spec()), 64)
    trainer = make_trainer(env, normalize_observations=True)
    _, _, first = train(trainer, 0)
    _, _, later = train(trainer, 80)
    assert later["return_mean"] > 0.6 * first["return_mean"]  # returns are negative costs


def test_images_train_through_both_loops() -> None:
    env = vectorize(image_state.FindTheLamp(image_state.make_spec()), 4, reset="compact")
    trainer = make_trainer(env, horizon=4, num_minibatches=2, epochs=1)
    state, metrics, _ = train(trainer, 1)
    assert np.isfinite(float(metrics["loss"]))
    assert state.rollout.decision.observation.dtype == np.uint8
    host = HostTrainer(trainer.ppo, FunctionalBatched(env), seed=0)
    metrics, _ = host.chunk(1)
    assert np.isfinite(metrics["loss"])


def test_two_player_games_train_through_the_host_loop() -> None:
    env = vectorize(simultaneous.NameYourHand(simultaneous.make_spec()), 8)
    trainer = make_trainer(env, num_minibatches=2)
    host = HostTrainer(trainer.ppo, FunctionalBatched(env), seed=0)
    _, totals = host.chunk(2)
    state, _, fused_totals = jax.jit(trainer.chunk)(trainer.init(0), np.int32(2))
    assert int(totals.episodes) == int(fused_totals.episodes) > 0
    np.testing.assert_allclose(totals.return_sum, fused_totals.return_sum)
    for a, b in zip(
        jax.tree.leaves(state.learner.params), jax.tree.leaves(host.learner.params), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=5e-3, atol=5e-5)
