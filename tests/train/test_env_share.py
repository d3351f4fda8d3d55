"""The null environment takes out the rules and nothing else."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import envs
from envs.core import VectorFunctionalEnv
from train.config import PPOConfig
from train.env_share import NullBatched, NullEnv, measure_share
from train.policies.policy import MLPPolicy, ModelConfig
from train.ppo_jax import PPO, FusedTrainer

CONFIG = PPOConfig(
    num_envs=8,
    horizon=16,
    num_minibatches=2,
    epochs=1,
    learning_rate=1e-3,
    gamma=0.99,
    gae_lambda=0.95,
)
WIDTH = 32


def make_trainer(env: VectorFunctionalEnv) -> FusedTrainer:
    policy = MLPPolicy(env.spec, ModelConfig("small", 2, WIDTH))
    return FusedTrainer(PPO(env.spec, policy, CONFIG, num_updates=10), env)


def flops(program: Any, *arguments: Any) -> float:
    return jax.jit(program).lower(*arguments).compile().cost_analysis()["flops"]


def rollout_of(trainer: FusedTrainer) -> Any:
    def rollout(learner: Any, start: Any) -> Any:
        return lax.scan(lambda carry, _: trainer.step(learner, carry), start, length=CONFIG.horizon)

    return rollout


def products_in_loop(env: VectorFunctionalEnv) -> int:
    """Operations of the compiled rollout's loop that came from matrix products."""
    trainer = make_trainer(env)
    state = trainer.init(0)
    text = jax.jit(rollout_of(trainer)).lower(state.learner, state.rollout).compile().as_text()
    (body,) = {part.split(",")[0].split(" ")[0] for part in text.split("body=%")[1:]}
    start = text.index(f"\n%{body} ")
    lines = text[start : text.index("\n}", start)].splitlines()
    return sum("dot_general" in line for line in lines)


def test_the_policy_is_evaluated_in_every_step():
    env = envs.make("cartpole", "jax", CONFIG.num_envs)
    real = products_in_loop(env)
    assert real >= 3
    assert products_in_loop(NullEnv(env)) == real


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cartpole", "pong"])
def test_the_learner_keeps_all_its_work(name: str):
    real = envs.make(name, "jax", CONFIG.num_envs)
    work = []
    for env in (real, NullEnv(real)):
        trainer = make_trainer(env)
        state = trainer.init(0)
        alone = flops(rollout_of(trainer), state.learner, state.rollout)
        work.append(flops(trainer.update, state) - alone)
    assert work[1] == pytest.approx(work[0], rel=0.02)


def test_the_null_environment_repeats_its_first_decision():
    env = envs.make("cartpole", "jax", CONFIG.num_envs)
    trainer = make_trainer(NullEnv(env))
    start = trainer.init(0)
    after, _ = jax.jit(trainer.update)(start)
    np.testing.assert_array_equal(
        after.rollout.decision.observation, start.rollout.decision.observation
    )
    assert int(after.rollout.totals.episodes) == 0


def test_the_batched_null_environment_repeats_its_first_decision():
    with envs.make("cartpole", "jax", 4, interface="batched") as env:
        first = env.reset(0)
        null = NullBatched(env, first)
        null.reset(0)
        decision, outcome = null.step(np.zeros(4, np.int32))
    np.testing.assert_array_equal(decision.observation, first.observation)
    assert not outcome.terminated.any()
    assert not outcome.reward.any()


def test_the_share_is_what_the_null_program_saves(monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]

    def spend(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    measured = measure_share(lambda: spend(4.0), lambda: spend(3.0), repeats=5)
    assert measured["share"] == pytest.approx(0.25)
    assert not measured["below_noise"]
    slower = measure_share(lambda: spend(3.0), lambda: spend(4.0), repeats=5)
    assert slower["below_noise"]
