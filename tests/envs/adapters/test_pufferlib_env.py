"""Where PufferLib is installed these tests run against it; elsewhere against a stand-in that
keeps the part of its contract (PufferEnv of version 3.0.0) that the adapter relies on."""

import dataclasses
import importlib
import importlib.util
import subprocess
import sys
import types
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector.utils import batch_space

import envs
from envs.adapters.numpy_faces import FunctionalBatched
from envs.adapters.vectorize import vectorize
from envs.core import ActionError, LifecycleError
from tests.envs.adapters import tiny

INSTALLED = importlib.util.find_spec("pufferlib") is not None
BUFFERS = ("observations", "rewards", "terminals", "truncations", "masks", "actions")


class StandIn:
    """What PufferEnv does: buffers, given or own, and the two halves of a step."""

    def __init__(self, buf=None):
        n, box = self.num_agents, self.single_observation_space
        self.action_space = batch_space(self.single_action_space, n)
        self.observation_space = batch_space(box, n)
        own = {
            "observations": np.zeros((n, *box.shape), box.dtype),
            "rewards": np.zeros(n, np.float32),
            "terminals": np.zeros(n, bool),
            "truncations": np.zeros(n, bool),
            "masks": np.ones(n, bool),
            "actions": np.zeros(self.action_space.shape, np.int32),
        }
        for name in BUFFERS:
            setattr(self, name, (buf or own)[name])
        self.agent_ids = np.arange(n)

    @property
    def driver_env(self):
        return self

    def async_reset(self, seed=None):
        _, self.infos = self.reset(seed)

    def send(self, actions):
        *_, self.infos = self.step(actions)

    def recv(self):
        arrays = (self.observations, self.rewards, self.terminals, self.truncations)
        return (*arrays, self.infos, self.agent_ids, self.masks)


@pytest.fixture(scope="module")
def puffer():
    """The adapter's module."""
    with pytest.MonkeyPatch.context() as patch:
        if not INSTALLED:
            stand_in = types.ModuleType("pufferlib")
            stand_in.PufferEnv = StandIn
            patch.setitem(sys.modules, "pufferlib", stand_in)
        patch.delitem(sys.modules, "envs.adapters.pufferlib_env", raising=False)
        yield importlib.import_module("envs.adapters.pufferlib_env")
        sys.modules.pop("envs.adapters.pufferlib_env")


class FreeGame(tiny.Game):
    """The game without legal actions, which PufferLib has no place for."""

    def observe(self, state):
        return super().observe(state)._replace(legal_actions=None)


def free_game(num_envs, simultaneous=True):
    spec = dataclasses.replace(tiny.game_spec(simultaneous=simultaneous), has_legal_actions=False)
    return FunctionalBatched(vectorize(FreeGame(spec), num_envs))


@pytest.mark.parametrize("backend", ["reference", "jax"])
def test_rows_are_those_of_the_batch(puffer, backend):
    batch = envs.make("cartpole", backend, 4, interface="batched")
    env = puffer.make_puffer("cartpole", backend, 4)
    assert (env.num_agents, env.agents_per_batch) == (4, 4)
    assert env.driver_env is env
    env.async_reset(3)
    decision = batch.reset(3)
    rng = np.random.default_rng(0)
    rewards, ends = np.zeros(4), np.zeros((2, 4), bool)
    for _ in range(60):
        observations, got_rewards, terminals, truncations, infos, ids, masks = env.recv()
        np.testing.assert_array_equal(observations, decision.observation)
        np.testing.assert_array_equal(got_rewards, rewards)
        np.testing.assert_array_equal([terminals, truncations], ends)
        np.testing.assert_array_equal(ids, [0, 1, 2, 3])
        assert masks.all()
        assert infos == []
        action = rng.integers(0, 2, 4)
        env.send(action)
        decision, outcome = batch.step(action)
        rewards, ends = outcome.reward, np.array([outcome.terminated, outcome.truncated])
    env.close()
    env.close()
    with pytest.raises(LifecycleError, match="used after close"):
        env.reset(0)


@pytest.mark.parametrize("simultaneous", [True, False])
def test_every_seat_is_a_row(puffer, simultaneous):
    n = 3
    batch, env = free_game(n, simultaneous), puffer.PufferVecEnv(free_game(n, simultaneous))
    assert env.num_agents == 2 * n
    decision = batch.reset(5)
    observations, infos = env.reset(5)
    assert infos == []
    rng = np.random.default_rng(0)
    lengths = []
    for _ in range(15):
        np.testing.assert_array_equal(observations, decision.observation.reshape(2 * n, 4))
        np.testing.assert_array_equal(env.masks, decision.acting.reshape(-1))
        action = rng.integers(0, 4, 2 * n)
        observations, rewards, terminals, truncations, infos = env.step(action)
        decision, outcome = batch.step(action.reshape(n, 2))
        np.testing.assert_array_equal(rewards, outcome.reward.reshape(-1))
        for seat in range(2):
            np.testing.assert_array_equal(terminals[seat::2], outcome.terminated)
            np.testing.assert_array_equal(truncations[seat::2], outcome.truncated)
        ended = outcome.terminated | outcome.truncated
        assert len(infos) == ended.any()
        for info in infos:
            assert info["length"] == outcome.metrics["length"][ended].tolist()
            assert info["score"] == outcome.metrics["score"][ended].reshape(-1).tolist()
            lengths += info["length"]
    assert len(lengths) >= n
    assert env.masks.all() == simultaneous


def test_everything_is_written_into_the_shared_buffers(puffer):
    n = 4
    shared = {
        "observations": np.full((2 * n, 4), np.nan, np.float32),
        "rewards": np.full(2 * n, np.nan, np.float32),
        "terminals": np.ones(2 * n, bool),
        "truncations": np.ones(2 * n, bool),
        "masks": np.zeros(2 * n, bool),
        "actions": np.zeros(2 * n, np.int32),
    }
    halves = [{k: v[i * n : (i + 1) * n] for k, v in shared.items()} for i in range(2)]
    pair = [puffer.make_puffer("cartpole", "reference", n, buf=half) for half in halves]
    alone = envs.make("cartpole", "reference", n, interface="batched")
    for i, env in enumerate(pair):
        env.reset(i)
    assert shared["masks"].all()
    assert not (shared["terminals"] | shared["truncations"]).any()
    assert (shared["rewards"] == 0).all()
    for env in pair:
        results = env.step(np.ones(n, np.int32))
        for name, array in zip(BUFFERS, results[:4], strict=False):
            assert np.shares_memory(array, shared[name])
    for i in range(2):
        alone.reset(i)
        decision, outcome = alone.step(np.ones(n, int))
        part = slice(i * n, (i + 1) * n)
        np.testing.assert_array_equal(shared["observations"][part], decision.observation)
        np.testing.assert_array_equal(shared["rewards"][part], outcome.reward)


def test_seeds(puffer):
    env = puffer.make_puffer("cartpole", "reference", 2, seed=9)
    first = env.reset()[0].copy()
    second = env.reset()[0].copy()
    np.testing.assert_array_equal(env.reset(9)[0], first)
    np.testing.assert_array_equal(env.reset()[0], second)
    assert not np.array_equal(first, second)
    with pytest.raises(ValueError, match=r"seed must be an integer in \[0, 2\*\*32\)"):
        env.reset(-1)


def with_spec(**changes):
    spec = dataclasses.replace(tiny.walk_spec(), has_legal_actions=False, **changes)
    batch = FunctionalBatched(tiny.walk(1))
    batch.spec = spec
    return batch


REFUSED = {
    "legal actions": (lambda: FunctionalBatched(tiny.walk(1)), "walk has legal actions"),
    "a dict": (
        lambda: with_spec(
            observation_space=tiny.walk_spec(dict_observation=True).observation_space
        ),
        "walk: PufferLib needs Box observations",
    ),
    "bits": (
        lambda: with_spec(action_space=gymnasium.spaces.MultiBinary(3)),
        r"walk: PufferLib has no MultiBinary\(3\) actions",
    ),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED)
def test_what_pufferlib_has_no_place_for(puffer, make, words):
    with pytest.raises(ValueError, match=words):
        puffer.PufferVecEnv(make())


@pytest.mark.parametrize("shape", [(3,), (2, 2), (4, 1), ()])
def test_actions_of_a_wrong_shape(puffer, shape):
    env = puffer.make_puffer("cartpole", "reference", 4)
    env.reset(0)
    with pytest.raises(ActionError, match=r"actions have shape .*, expected \(4,\)"):
        env.step(np.zeros(shape, np.int32))


def test_without_pufferlib_the_message_says_how_to_get_it():
    code = (
        "import sys; sys.modules['pufferlib'] = None\n"
        "from envs.core import MissingDependency\n"
        "try: import envs.adapters.pufferlib_env\n"
        "except MissingDependency as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = run.stdout.splitlines()
    assert "install pufferlib 3.0.0 with --no-deps" in line


def test_the_import_leaves_nothing_in_the_working_directory(tmp_path):
    """PufferLib's import makes a link there; a module of that habit stands for it."""
    package = tmp_path / "packages" / "pufferlib"
    package.mkdir(parents=True)
    package.joinpath("__init__.py").write_text(
        "import os\nos.symlink(__path__[0], 'resources')\nclass PufferEnv: pass\n"
    )
    working = tmp_path / "working"
    working.mkdir()
    (found,) = importlib.util.find_spec("envs").submodule_search_locations
    code = (
        f"import sys; sys.path[:0] = [{str(package.parent)!r}, {str(Path(found).parent)!r}]\n"
        "import envs.adapters.pufferlib_env, pufferlib; print(pufferlib.__file__)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=working,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == str(package / "__init__.py")
    assert list(working.iterdir()) == []
