"""Evaluation: first episodes, caps, matched noise, and the figures made from them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import envs
from envs.adapters.gymnasium_reference import row_seeds
from train.backends import evaluate_backends
from train.checkpoint import TrainedPolicy
from train.config import EvalConfig, GapConfig
from train.evaluation import EpisodeResults, play_episodes
from train.policies.policy import MLPPolicy, ModelConfig


def trained(seed: int = 0, scale: float = 1.0) -> TrainedPolicy:
    spec = envs.make_spec("cartpole")
    policy = MLPPolicy(spec, ModelConfig("small", 1, 16))
    params = jax.tree.map(lambda x: scale * x, policy.init(seed))
    return TrainedPolicy(spec, policy, params, None)


def play(policy: TrainedPolicy, backend: str, interface: str, **options: Any) -> EpisodeResults:
    options = dict(max_steps=500, greedy=True, seed=5) | options
    with envs.make("cartpole", backend, 24, interface=interface) as env:
        return play_episodes(policy, env, **options)


def test_returns_are_those_of_gymnasium_driven_by_hand() -> None:
    import gymnasium

    policy = trained()
    results = play(policy, "reference", "batched")
    env = gymnasium.make("CartPole-v1")
    for row, seed in enumerate(row_seeds(5, 5)):
        observation, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            outputs = policy.policy.apply(policy.params, (), observation[None], np.zeros(1, bool))
            observation, reward, terminated, truncated, _ = env.step(int(outputs[0].argmax()))
            total, over = total + reward, terminated or truncated
        assert results.returns[row] == results.lengths[row] == total


def test_equal_seeds_meet_equal_episodes_on_both_backends_and_repeat() -> None:
    port = play(trained(), "jax", "simulator")
    reference = play(trained(), "reference", "simulator")
    np.testing.assert_array_equal(port.lengths, reference.lengths)
    np.testing.assert_array_equal(port.returns, play(trained(), "jax", "simulator").returns)
    other = play(trained(), "jax", "simulator", seed=6)
    assert not np.array_equal(port.returns, other.returns)


def test_sampled_play_differs_from_greedy_play_and_repeats_with_its_seed() -> None:
    greedy = play(trained(), "jax", "simulator")
    sampled = play(trained(), "jax", "simulator", greedy=False)
    again = play(trained(), "jax", "simulator", greedy=False)
    np.testing.assert_array_equal(sampled.returns, again.returns)
    assert not np.array_equal(sampled.returns, greedy.returns)


def test_capped_episodes_are_counted_apart_and_left_out_of_the_means() -> None:
    results = play(trained(), "jax", "simulator", max_steps=9)
    finished = results.finished
    summary = results.summary()
    assert summary["episodes_capped"] == (~finished).sum() > 0
    assert summary["episodes_finished"] + summary["episodes_capped"] == 24
    if finished.sum():
        assert summary["return_mean"] == results.returns[finished].mean()
    assert (results.lengths[~finished] == 9).all()


def test_without_a_finished_episode_there_is_no_mean_and_no_gap_but_a_note() -> None:
    results = play(trained(), "jax", "simulator", max_steps=2)
    assert results.summary()["return_mean"] is None
    config, gap = EvalConfig(episodes=8, max_steps=2), GapConfig("return", 25.0)
    judged = evaluate_backends(trained(), "jax", config, gap, quiet())
    assert judged.gap is None
    assert judged.gap_matched is None
    assert any("fewer than two finished" in note for note in judged.notes)


def test_both_comparisons_of_a_port_with_its_reference() -> None:
    config, gap = EvalConfig(episodes=30, max_steps=500), GapConfig("return", 25.0)
    judged = evaluate_backends(trained(), "jax", config, gap, quiet())
    assert set(judged.results) == {"jax", "reference"}
    assert judged.gap["design"] == "independent"
    assert judged.gap["between"] == ["jax", "reference"]
    a, b = judged.results["jax"].returns, judged.results["reference"].returns
    assert judged.gap["difference"] == pytest.approx(a.mean() - b.mean())
    assert judged.gap_matched["design"] == "paired"
    assert judged.gap_matched["difference"] == 0.0
    assert judged.gap_matched["verdict"] == "EQUIVALENT"


def test_a_missing_reference_is_a_note_and_the_port_is_still_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import envs.cartpole.reference as reference

    def missing(spec: Any, num_envs: int) -> Any:
        raise envs.MissingDependency("gymnasium is gone; install it with: make setup")

    monkeypatch.setattr(reference, "make_batched", missing)
    config, gap = EvalConfig(episodes=8, max_steps=500), GapConfig("return", 25.0)
    judged = evaluate_backends(trained(), "jax", config, gap, quiet())
    assert set(judged.results) == {"jax"}
    assert judged.gap is None
    assert judged.notes == [
        "reference was not evaluated: gymnasium is gone; install it with: make setup"
    ]


def test_a_policy_of_other_parameters_is_refused() -> None:
    policy = trained()
    with (
        envs.make("pong", "jax", 2, interface="simulator") as env,
        pytest.raises(ValueError, match="trained on cartpole"),
    ):
        play_episodes(policy, env, max_steps=1, greedy=True, seed=0)


def test_metrics_are_named_when_unknown() -> None:
    with pytest.raises(KeyError, match="choose from return, length"):
        play(trained(), "jax", "simulator", max_steps=1).values("score")


def quiet() -> Any:
    import io

    from rich.console import Console

    return Console(file=io.StringIO())
