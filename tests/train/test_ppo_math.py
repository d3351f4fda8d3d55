"""Each function of ppo_math against a plain NumPy loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train import ppo_math

GAMMA, LAMBDA = 0.9, 0.8


def trajectory(seed: int, steps: int = 24, rows: int = 40, *, all_act: bool = False) -> dict:
    rng = np.random.default_rng(seed)
    ends = rng.random((steps, rows))
    return dict(
        reward=rng.normal(size=(steps, rows)).astype(np.float32),
        value=rng.normal(size=(steps, rows)).astype(np.float32),
        acting=np.ones((steps, rows), bool) if all_act else rng.random((steps, rows)) < 0.6,
        terminated=ends < 0.1,
        truncated=(ends >= 0.1) & (ends < 0.2),
        final_value=rng.normal(size=(steps, rows)).astype(np.float32),
        final_acting=np.ones((steps, rows), bool) if all_act else rng.random((steps, rows)) < 0.5,
        last_value=rng.normal(size=rows).astype(np.float32),
        last_acting=np.ones(rows, bool) if all_act else rng.random(rows) < 0.5,
    )


def gae_of_one_row(t: dict, row: int, gamma: float, gae_lambda: float) -> tuple:
    """Decision by decision, looking forward: (advantage or None where unknown) per time."""
    steps = len(t["reward"])
    at = {name: values[:, row] for name, values in t.items() if values.ndim == 2}
    decisions = [i for i in range(steps) if at["acting"][i]]
    advantage: dict[int, float | None] = {}
    for i, following in reversed(list(zip(decisions, [*decisions[1:], None], strict=True))):
        until = steps if following is None else following
        end = next((k for k in range(i, until) if at["terminated"][k] or at["truncated"][k]), None)
        if end is not None:
            rewards, after = at["reward"][i : end + 1].sum(), 0.0
            bootstrap = 0.0 if at["terminated"][end] else at["final_value"][end]
            known = at["terminated"][end] or at["final_acting"][end]
        elif following is not None:
            rewards, bootstrap = at["reward"][i:until].sum(), at["value"][following]
            after, known = advantage[following] or 0.0, True
        else:
            rewards, bootstrap = at["reward"][i:].sum(), t["last_value"][row]
            after, known = 0.0, t["last_acting"][row]
        delta = rewards + gamma * bootstrap - at["value"][i]
        advantage[i] = delta + gamma * gae_lambda * after if known else None
    return tuple(advantage.get(i) for i in range(steps))


@pytest.mark.parametrize("all_act", [True, False], ids=["all act", "some act"])
@pytest.mark.parametrize("seed", range(5))
def test_gae_equals_the_loop_over_each_rows_own_decisions(seed: int, all_act: bool) -> None:
    t = trajectory(seed, all_act=all_act)
    result = jax.jit(ppo_math.gae, static_argnames=("gamma", "gae_lambda"))(
        **t, gamma=GAMMA, gae_lambda=LAMBDA
    )
    for row in range(t["reward"].shape[1]):
        expected = gae_of_one_row(t, row, GAMMA, LAMBDA)
        weight = np.array([value is not None for value in expected])
        np.testing.assert_array_equal(result.weight[:, row], weight)
        got, value = np.asarray(result.advantage)[weight, row], t["value"][weight, row]
        wanted = np.array([v for v in expected if v is not None])
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
        target = np.asarray(result.target)[weight, row]
        np.testing.assert_allclose(target, wanted + value, rtol=1e-4, atol=1e-5)


def test_gae_without_ends_is_the_textbook_sum() -> None:
    t = trajectory(0, all_act=True)
    t["terminated"][:] = t["truncated"][:] = False
    result = ppo_math.gae(**t, gamma=GAMMA, gae_lambda=LAMBDA)
    values = np.vstack([t["value"], t["last_value"]])
    deltas = t["reward"] + GAMMA * values[1:] - values[:-1]
    powers = (GAMMA * LAMBDA) ** np.arange(len(deltas))
    for i in range(len(deltas)):
        expected = (powers[: len(deltas) - i, None] * deltas[i:]).sum(0)
        np.testing.assert_allclose(result.advantage[i], expected, rtol=1e-4, atol=1e-5)


def test_a_chunks_edge_changes_no_one_step_target_and_leaves_open_at_most_one_decision() -> None:
    """lambda = 0 looks one own decision ahead: cut anywhere, every weighted target is that of
    the whole, and what a row loses at the edge is the one decision that is still open."""
    t = trajectory(3, steps=60, rows=200)
    t["last_acting"][:] = True
    whole = ppo_math.gae(**t, gamma=GAMMA, gae_lambda=0.0)
    for cut in (7, 20, 41):
        first = {k: v[:cut] for k, v in t.items() if v.ndim == 2}
        edge = dict(last_value=t["value"][cut], last_acting=t["acting"][cut])
        part = ppo_math.gae(**first, **edge, gamma=GAMMA, gae_lambda=0.0)
        weight = np.asarray(part.weight, bool)
        np.testing.assert_array_equal(
            np.asarray(part.target)[weight], np.asarray(whole.target)[:cut][weight]
        )
        lost = np.asarray(whole.weight[:cut], bool) & ~weight
        assert lost.sum(0).max() == 1
        assert lost.sum() > 10
        assert not (lost & t["acting"][cut]).any()


def test_nothing_reaches_across_an_episodes_end() -> None:
    t = trajectory(1, steps=10, rows=8, all_act=True)
    t["terminated"][:] = t["truncated"][:] = False
    t["terminated"][4, ::2] = t["truncated"][4, 1::2] = True
    before = ppo_math.gae(**t, gamma=GAMMA, gae_lambda=LAMBDA)
    t["reward"][5:] += 100.0
    t["value"][5:] -= 50.0
    after = ppo_math.gae(**t, gamma=GAMMA, gae_lambda=LAMBDA)
    np.testing.assert_array_equal(before.advantage[:5], after.advantage[:5])
    assert not np.allclose(before.advantage[5:], after.advantage[5:])


@pytest.mark.parametrize("garbage", [1e30, -1e30, np.nan])
def test_entries_without_weight_never_change_the_policy_loss(garbage: float) -> None:
    rng = np.random.default_rng(0)
    weight = (rng.random((6, 9)) < 0.5).astype(np.float32)
    new, old, advantage = rng.normal(size=(3, 6, 9)).astype(np.float32)
    dirty = [np.where(weight > 0, x, np.float32(garbage)) for x in (new, old)]
    clean_loss, clean = ppo_math.policy_loss(new, old, advantage, weight, 0.2)
    loss, metrics = ppo_math.policy_loss(*dirty, advantage, weight, 0.2)
    np.testing.assert_array_equal(loss, clean_loss)
    for name, value in clean.items():
        np.testing.assert_array_equal(metrics[name], value)


def test_padding_changes_no_mean_no_value_loss_and_no_normalised_entry() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 6, 9)).astype(np.float32)
    pad = np.full((6, 30), 1e3, np.float32)
    weight = np.ones((6, 9), np.float32)
    padded_weight = np.concatenate([weight, 0 * pad], axis=1)
    wide_x, wide_y = np.concatenate([x, pad], axis=1), np.concatenate([y, -pad], axis=1)
    np.testing.assert_allclose(
        ppo_math.masked_mean(wide_x, padded_weight), ppo_math.masked_mean(x, weight), rtol=1e-6
    )
    np.testing.assert_allclose(
        ppo_math.value_loss(wide_x, wide_y, padded_weight),
        ppo_math.value_loss(x, y, weight),
        rtol=1e-6,
    )
    normalized = np.asarray(ppo_math.masked_normalize(wide_x, padded_weight))
    expected = np.asarray(ppo_math.masked_normalize(x, weight))
    np.testing.assert_allclose(normalized[:, :9], expected, rtol=1e-5, atol=1e-6)
    assert (normalized[:, 9:] == 0).all()


def test_masked_statistics_are_those_of_the_selected_entries() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(2.0, 3.0, size=(50, 20)).astype(np.float32)
    weight = (rng.random(x.shape) < 0.3).astype(np.float32)
    chosen = x[weight > 0]
    np.testing.assert_allclose(ppo_math.masked_mean(x, weight), chosen.mean(), rtol=1e-5)
    normalized = np.asarray(ppo_math.masked_normalize(x, weight))
    expected = (chosen - chosen.mean()) / chosen.std()  # ddof 0
    np.testing.assert_allclose(normalized[weight > 0], expected, rtol=1e-3, atol=1e-4)
    assert float(ppo_math.masked_mean(x, 0 * weight)) == 0.0


def test_policy_loss_equals_the_papers_formula_entry_by_entry() -> None:
    rng = np.random.default_rng(2)
    new, old = rng.normal(size=(2, 400)) * 0.3
    advantage = rng.normal(size=400)
    losses, kls, clipped = [], [], 0
    for n, o, a in zip(new, old, advantage, strict=True):
        ratio = np.exp(n - o)
        bounded = min(max(ratio, 0.8), 1.2)
        losses.append(-min(ratio * a, bounded * a))
        kls.append(ratio - 1 - (n - o))
        clipped += abs(ratio - 1) > 0.2
    args = [jnp.asarray(x, jnp.float32) for x in (new, old, advantage)]
    loss, metrics = ppo_math.policy_loss(*args, jnp.ones(400), 0.2)
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-4)
    np.testing.assert_allclose(metrics["approx_kl"], np.mean(kls), rtol=1e-3)
    np.testing.assert_allclose(metrics["clip_fraction"], clipped / 400, rtol=1e-5)


def test_explained_variance_of_a_perfect_and_a_constant_critic() -> None:
    target = jnp.asarray(np.random.default_rng(0).normal(size=(5, 6)), jnp.float32)
    weight = jnp.ones((5, 6))
    assert float(ppo_math.explained_variance(target, target, weight)) == 1.0
    constant = ppo_math.explained_variance(jnp.full((5, 6), 3.0), target, weight)
    np.testing.assert_allclose(constant, 0.0, atol=1e-5)
