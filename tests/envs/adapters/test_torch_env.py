import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from envs.adapters.numpy_faces import FunctionalBatched
from envs.adapters.torch_env import TorchVectorEnv, to_jax, to_torch
from envs.core import ActionError, LifecycleError
from tests.envs.adapters import tiny

N = 4


@pytest.fixture(scope="module")
def walk():
    return TorchVectorEnv(tiny.walk(N, dict_observation=True))


@pytest.mark.parametrize(
    "make",
    [lambda: tiny.walk(N), lambda: tiny.walk(N, dict_observation=True), lambda: tiny.game(N)],
    ids=["walk", "walk with dict", "game"],
)
def test_tensors_hold_the_episodes_of_the_numpy_face(make):
    numpy_face, env = FunctionalBatched(make()), TorchVectorEnv(make())
    rng = np.random.default_rng(0)
    expected, decision = numpy_face.reset(3), env.reset(3)
    ends = 0
    for _ in range(20):
        leaves = jax.tree.leaves(decision)
        assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
        tiny.assert_equal(jax.tree.map(lambda t: t.numpy(), decision), expected)
        legal = expected.legal_actions
        action = (rng.random(legal.shape) * legal).argmax(-1)
        expected, outcome = numpy_face.step(action)
        decision, got = env.step(torch.from_numpy(action))
        got = jax.tree.map(lambda t: t.numpy(), got)
        tiny.assert_equal(tiny.masked(got), tiny.masked(outcome))
        ends += (outcome.terminated | outcome.truncated).sum()
    assert ends > N


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool"])
def test_both_directions_share_memory(dtype):
    array = jax.jit(lambda: jnp.arange(128).reshape(2, 64).astype(dtype))()
    tensor = to_torch(array)
    assert tensor.data_ptr() == array.unsafe_buffer_pointer()
    np.testing.assert_array_equal(tensor.numpy(), array)
    back = to_jax(tensor)
    assert back.unsafe_buffer_pointer() == tensor.data_ptr()
    assert (back.shape, back.dtype) == (array.shape, array.dtype)


def test_a_tensor_that_is_not_contiguous_or_that_carries_gradients_is_read_all_the_same():
    tensor = torch.arange(12.0, requires_grad=True).reshape(3, 4).T
    np.testing.assert_array_equal(to_jax(tensor), tensor.detach().numpy())


def test_a_step_hands_over_jax_memory(walk, monkeypatch):
    given = []
    compiled = walk._jit_step

    def watched(*arguments):
        results = compiled(*arguments)
        given.append(jax.tree.leaves(results[1:]))
        return results

    monkeypatch.setattr(walk, "_jit_step", watched)
    walk.reset(0)
    results = jax.tree.leaves(walk.step(torch.full((N,), 2, dtype=torch.int32)))
    pairs = list(zip(results, given[0], strict=True))
    assert len(pairs) > 10
    for tensor, array in pairs:
        assert tensor.data_ptr() == array.unsafe_buffer_pointer()


def test_tensors_may_be_kept_and_written_to(walk):
    action = torch.full((N,), 2)
    runs = []
    for write in (False, True):
        decision, results = walk.reset(1), []
        for _ in range(10):
            results.append(jax.tree.map(torch.clone, (decision,)))
            if write:
                jax.tree.map(lambda t: t.zero_(), decision)
            kept = decision
            before = jax.tree.map(torch.clone, kept)
            decision, outcome = walk.step(action)
            results.append(jax.tree.map(torch.clone, (decision, outcome._replace(final=None))))
            tiny.assert_equal(kept, before)
            if write:
                action.fill_(7)  # the tensor was only read during the step
                action.fill_(2)
                jax.tree.map(lambda t: t.zero_(), outcome)
        runs.append(results)
    tiny.assert_equal(*runs)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_any_integer_dtype_will_do(walk, dtype):
    walk.reset(0)
    expected, _ = walk.step(torch.full((N,), 2))
    walk.reset(0)
    decision, outcome = walk.step(torch.full((N,), 2, dtype=dtype))
    assert not outcome.invalid.any()
    tiny.assert_equal(decision, expected)


def test_invalid_actions_are_replaced_and_flagged_however_large(walk):
    walk.reset(0)
    expected, _ = walk.step(torch.tensor([1, 1, 1, 1]))
    start = walk.reset(0).observation["position"]
    wrong = torch.tensor([-1, 2**32 + 2, 2**31, 1])
    low = torch.where(start > 0, 0, 1)
    decision, outcome = walk.step(wrong)
    assert outcome.invalid.tolist() == [True, True, True, False]
    moved = decision.observation["position"] - start
    assert moved.tolist() == [*(low[:3] - 1).tolist(), 0]
    assert expected.observation["position"].tolist() == start.tolist()


BAD_ACTIONS = {
    "too few": (torch.zeros(N - 1, dtype=torch.int32), r"shape \(3,\), expected \(4,\)"),
    "a column": (torch.zeros((N, 1), dtype=torch.int32), r"shape \(4, 1\), expected \(4,\)"),
    "real": (torch.zeros(N), "dtype torch.float32, expected an integer one"),
    "bool": (torch.zeros(N, dtype=torch.bool), "dtype torch.bool"),
    "complex": (torch.zeros(N, dtype=torch.complex64), "dtype torch.complex64"),
    "an array": (np.zeros(N, np.int32), "actions are a ndarray, expected a tensor"),
    "a list": ([0, 0, 0, 0], "actions are a list, expected a tensor"),
}


@pytest.mark.parametrize(("action", "words"), BAD_ACTIONS.values(), ids=BAD_ACTIONS)
def test_bad_actions_are_refused_and_nothing_is_stepped(walk, action, words):
    walk.reset(0)
    expected, _ = walk.step(torch.full((N,), 2))
    walk.reset(0)
    with pytest.raises(ActionError, match=f"walk: .*{words}"):
        walk.step(action)
    decision, _ = walk.step(torch.full((N,), 2))
    tiny.assert_equal(decision, expected)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "1", None])
def test_seeds_outside_their_range(walk, seed):
    with pytest.raises(ValueError, match=r"seed must be an integer in \[0, 2\*\*32\)"):
        walk.reset(seed)


def test_a_step_before_reset():
    with pytest.raises(LifecycleError, match="walk: step before reset"):
        TorchVectorEnv(tiny.walk(N)).step(torch.zeros(N, dtype=torch.int32))
