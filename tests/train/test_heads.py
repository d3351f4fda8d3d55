"""Action distributions: against scipy, by simulation, and the mask's promises."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from gymnasium import spaces

from envs.noise import draw_uniform
from train.policies.heads import Categorical, Gaussian, make_head

RNG = np.random.default_rng(0)


def test_categorical_log_prob_and_entropy_are_those_of_the_softmax() -> None:
    outputs = RNG.normal(size=(7, 5)).astype(np.float32)
    action = RNG.integers(0, 5, 7)
    table = scipy.special.log_softmax(outputs, -1)
    head = Categorical(5)
    np.testing.assert_allclose(
        head.log_prob(outputs, None, action), table[np.arange(7), action], rtol=1e-5
    )
    expected = scipy.stats.entropy(np.exp(table), axis=-1)
    np.testing.assert_allclose(head.entropy(outputs, None), expected, rtol=1e-5)


def test_categorical_samples_follow_the_probabilities_and_never_the_mask() -> None:
    n, draws = 6, 40_000
    logits = RNG.normal(size=n).astype(np.float32)
    legal = np.array([False, True, True, False, True, False])
    uniforms = draw_uniform(1, 2, np.arange(draws, dtype=np.uint32))
    outputs = np.broadcast_to(logits, (draws, n))
    masks = np.broadcast_to(legal, (draws, n))
    sample = np.asarray(Categorical(n).sample(outputs, masks, uniforms))
    counts = np.bincount(sample, minlength=n)
    assert counts[~legal].sum() == 0
    expected = scipy.special.softmax(logits[legal]) * draws
    assert scipy.stats.chisquare(counts[legal], expected).pvalue > 1e-4


@pytest.mark.parametrize("edge", [0.0, np.float32(1 - 2**-24)])
def test_the_ends_of_the_uniform_choose_legal_actions(edge: float) -> None:
    n = 50
    outputs = (RNG.normal(size=(200, n)) * 20).astype(np.float32)
    legal = RNG.random((200, n)) < 0.3
    legal[:, 7] = True
    sample = Categorical(n).sample(outputs, legal, np.full((200, 1), edge, np.float32))
    assert np.take_along_axis(legal, np.asarray(sample)[:, None], 1).all()


def test_illegal_actions_have_probability_zero_and_finite_gradient_neutral_entropy() -> None:
    legal = np.array([[True, False, True], [False, True, False]])
    outputs = np.array([[0.3, 1e4, -0.2], [0.0, 1.0, 2.0]], np.float32)
    head = Categorical(3)
    probabilities = np.exp([head.log_prob(outputs, legal, np.full(2, a)) for a in range(3)]).T
    assert (probabilities[~legal] == 0).all()
    np.testing.assert_allclose(probabilities.sum(1), 1.0, rtol=1e-6)
    entropy = np.asarray(head.entropy(outputs, legal))
    expected = scipy.stats.entropy(scipy.special.softmax([0.3, -0.2]))
    np.testing.assert_allclose(entropy, [expected, 0.0], atol=1e-5)
    assert (np.asarray(head.mode(outputs, legal)) == [0, 1]).all()


def test_gaussian_is_a_normal_and_only_the_environment_sees_the_clip() -> None:
    box = spaces.Box(np.array([-0.5, -1.0], np.float32), np.array([0.5, 2.0], np.float32))
    head = Gaussian(box)
    mean, std = np.array([0.4, -0.3]), np.array([0.7, 1.5])
    outputs = np.broadcast_to(np.r_[mean, np.log(std)].astype(np.float32), (40_000, 4))
    uniforms = draw_uniform(0, 0, np.arange(40_000, dtype=np.uint32), head.num_uniforms)
    sample = np.asarray(head.sample(outputs, None, uniforms))
    for k in range(2):
        assert scipy.stats.kstest(sample[:, k], "norm", (mean[k], std[k])).pvalue > 1e-4
    assert abs(np.corrcoef(sample.T)[0, 1]) < 0.02
    log_prob = scipy.stats.norm.logpdf(sample, mean, std).sum(-1)
    np.testing.assert_allclose(head.log_prob(outputs, None, sample), log_prob, atol=1e-3)
    entropy = sum(scipy.stats.norm(scale=s).entropy() for s in std)
    np.testing.assert_allclose(head.entropy(outputs, None)[:3], entropy, rtol=1e-5)
    assert (np.abs(sample) > 2).any()
    assert all(box.contains(a) for a in np.asarray(head.to_env(jnp.asarray(sample)))[:500])


def test_an_action_space_without_a_head_is_named() -> None:
    with pytest.raises(ValueError, match="Discrete and Box"):
        make_head(spaces.MultiBinary(3))
