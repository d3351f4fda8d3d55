"""Policy files: round trips, and everything that can be wrong with one."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import envs
from train.checkpoint import PolicyFileError, TrainedPolicy, load_policy, save_policy
from train.normalize import init_statistics, update_statistics
from train.policies.policy import MLPPolicy, ModelConfig


def trained(env: str = "cartpole", statistics: bool = False) -> TrainedPolicy:
    spec = envs.make_spec(env)
    policy = MLPPolicy(spec, ModelConfig("small", 2, 8))
    stats = None
    if statistics:
        x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
        stats = update_statistics(init_statistics((4,)), x, np.ones(50, np.float32))
    return TrainedPolicy(spec, policy, policy.init(3), stats)


@pytest.mark.parametrize("statistics", [False, True])
def test_what_is_loaded_acts_like_what_was_saved(tmp_path: Path, statistics: bool) -> None:
    original = trained(statistics=statistics)
    save_policy(tmp_path / "p.safetensors", original)
    loaded = load_policy(tmp_path / "p.safetensors")
    assert loaded.spec == original.spec
    assert loaded.policy.config == original.policy.config
    for a, b in zip(
        jax.tree.leaves((original.params, original.statistics)),
        jax.tree.leaves((loaded.params, loaded.statistics)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    observation = np.ones((3, 4), np.float32)
    first = np.zeros(3, bool)
    for a, b in zip(
        original.policy.apply(original.params, (), observation, first)[:2],
        loaded.policy.apply(loaded.params, (), observation, first)[:2],
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_the_file_is_plain_safetensors_with_input_by_output_kernels(tmp_path: Path) -> None:
    save_policy(tmp_path / "p.safetensors", trained())
    tensors = load_file(tmp_path / "p.safetensors")
    assert tensors["params/actor_0/kernel"].shape == (4, 8)
    assert tensors["params/critic_head/bias"].shape == (1,)


def test_saving_leaves_nothing_else_behind(tmp_path: Path) -> None:
    for _ in range(2):
        save_policy(tmp_path / "sub" / "p.safetensors", trained())
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["p.safetensors"]


def test_bad_files_are_refused_with_their_reason(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    with pytest.raises(PolicyFileError, match="no policy at"):
        load_policy(path)
    save_policy(path, trained())
    good = path.read_bytes()
    for damaged in (good[: len(good) // 2], b"", b"\x00" * 100, good[8:]):
        path.write_bytes(damaged)
        with pytest.raises(PolicyFileError, match="not a readable policy file"):
            load_policy(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"digest":"', b'"digest":"0', "another contract"),
        (b'\\"width\\": 8', b'\\"width\\": 9', "not those of a small policy"),
        (b'"env":"cartpole"', b'"env":"kartpole"', "unknown environment 'kartpole'"),
    ],
)
def test_a_file_of_another_contract_is_refused(
    tmp_path: Path, old: bytes, new: bytes, message: str
) -> None:
    path = tmp_path / "p.safetensors"
    save_policy(path, trained())
    data = path.read_bytes()
    assert old in data
    if len(new) > len(old):  # keep the header's length: overwrite the digest's first digit
        start = data.index(old) + len(old)
        digit = b"0" if data[start : start + 1] != b"0" else b"1"
        data = data[:start] + digit + data[start + 1 :]
    else:
        data = data.replace(old, new)
    path.write_bytes(data)
    with pytest.raises((PolicyFileError, envs.UnknownName), match=message):
        load_policy(path)
