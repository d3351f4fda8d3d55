"""Policy files: round trips, and everything that can be wrong with one."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save

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


def rewrite(path: Path, tensors: dict[str, np.ndarray], **metadata: str | None) -> None:
    """The file again with other metadata (None leaves a key out) or tensors."""
    with safe_open(path, framework="numpy") as file:
        merged = file.metadata() | metadata
    kept = {key: value for key, value in merged.items() if value is not None}
    path.write_bytes(save(load_file(path) | tensors, kept))


BAD_CONTENT = {
    "no environment": (dict(env=None), "not a readable policy file"),
    "no digest": (dict(digest=None), "not a readable policy file"),
    "another format": (dict(format="99"), "format '99', this version reads '1'"),
    "parameters are a list": (dict(parameters="[1]"), "not a readable policy file"),
    "unknown environment": (dict(env="kartpole"), "unknown environment 'kartpole'"),
    "unknown parameter": (dict(parameters='{"gravity": 1}'), "unknown parameter 'gravity'"),
    "model is no model": (dict(model='{"size": 3}'), "not a readable policy file"),
    "depth is a word": (dict(model='{"name": "x", "depth": "a"}'), "not a readable policy file"),
    "another width": (
        dict(model='{"name": "small", "depth": 2, "width": 9}'),
        "not those of a small policy",
    ),
    "another contract": (dict(digest="0" * 64), "under another contract of cartpole"),
}


@pytest.mark.parametrize(("metadata", "message"), BAD_CONTENT.values(), ids=BAD_CONTENT)
def test_foreign_metadata_is_refused(tmp_path: Path, metadata: dict, message: str) -> None:
    path = tmp_path / "p.safetensors"
    save_policy(path, trained())
    rewrite(path, {}, **metadata)
    with pytest.raises(PolicyFileError, match=re.escape(message)):
        load_policy(path)


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (np.full(8, np.nan, np.float32), "not finite"),
        (np.zeros(8, np.int32), "not those of a small policy"),
        (np.zeros(9, np.float32), "not those of a small policy"),
    ],
)
def test_foreign_tensors_are_refused(tmp_path: Path, bias: np.ndarray, message: str) -> None:
    path = tmp_path / "p.safetensors"
    save_policy(path, trained())
    rewrite(path, {"params/actor_0/bias": bias})
    with pytest.raises(PolicyFileError, match=message):
        load_policy(path)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.safetensors"
    save_policy(path, trained())
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        save_policy(path, trained(statistics=True))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["p.safetensors"]
