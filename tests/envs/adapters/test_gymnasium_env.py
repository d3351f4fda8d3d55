import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import envs
from envs.adapters.gymnasium_env import GymnasiumEnv, GymnasiumVectorEnv
from envs.adapters.gymnasium_reference import row_seeds
from envs.adapters.numpy_faces import FunctionalBatched
from envs.core import ActionError, Capabilities, LifecycleError
from tests.envs.adapters import tiny

BACKENDS = ["reference", "jax"]


def cartpole(backend):
    return envs.make("cartpole", backend, interface="gymnasium")


def mute(batched):
    """The same environment behind a backend that can't tell how episodes terminated."""
    batched.capabilities = Capabilities(final_on_termination=False)
    return batched


@pytest.fixture(scope="module")
def walk_batch():
    return FunctionalBatched(tiny.walk(1))


@pytest.fixture
def walk(walk_batch):
    return GymnasiumEnv(walk_batch)


# --- gymnasium.Env --------------------------------------------------------------------------------


def check(spec):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(gymnasium.make(spec).unwrapped)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("backend", BACKENDS)
def test_gymnasiums_checker_is_content(backend):
    # With a spec, as gymnasium.make sets it, the checker compares seeded resets as well.
    spec = EnvSpec(
        "twinrl/CartPole-v1",
        entry_point="envs.registry:make",
        kwargs={"name": "cartpole", "backend": backend, "interface": "gymnasium"},
    )
    # CartPole's velocities have no bounds, in Gymnasium's own environment neither.
    assert [w for w in check(spec) if "infinity" not in w] == []


@pytest.mark.parametrize("dict_observation", [False, True])
def test_gymnasiums_checker_is_content_with_masks_and_dicts(dict_observation, walk_batch):
    class Lawful(GymnasiumEnv):
        """The checker samples without the mask, so only legal actions are left to it."""

        def __init__(self):
            env = tiny.walk(1, dict_observation=True) if dict_observation else None
            super().__init__(FunctionalBatched(env) if env else walk_batch)
            self.action_space = gymnasium.spaces.Discrete(2)

        def step(self, action):
            return super().step(action + 1)

        def close(self):
            pass

    found = check(EnvSpec("Walk-v1", entry_point=Lawful))
    assert [w for w in found if "infinity" not in w] == []


def test_the_step_that_ends_an_episode_shows_its_last_observation(walk):
    reference = FunctionalBatched(tiny.walk(1))
    first, _ = walk.reset(seed=2)
    decision = reference.reset(2)
    np.testing.assert_array_equal(first, decision.observation[0])
    ends = 0
    for _ in range(30):
        observation, reward, terminated, truncated, info = walk.step(2)
        decision, outcome = reference.step([2])
        ended = outcome.terminated[0] or outcome.truncated[0]
        assert (reward, terminated, truncated) == (
            outcome.reward[0],
            outcome.terminated[0],
            outcome.truncated[0],
        )
        assert (type(reward), type(terminated), type(truncated)) == (float, bool, bool)
        shown = outcome.final if ended else decision
        np.testing.assert_array_equal(observation, shown.observation[0])
        if ended:
            ends += 1
            assert info == {
                "metrics": {k: v[0].item() for k, v in outcome.metrics.items()},
            }
            observation, info = walk.reset()  # the episode that is open already
            np.testing.assert_array_equal(observation, decision.observation[0])
        np.testing.assert_array_equal(info["action_mask"], decision.legal_actions[0])
        assert info["action_mask"].dtype == np.int8
    assert ends > 3


def test_without_a_last_observation_the_next_episodes_first_is_shown(walk):
    env = GymnasiumEnv(mute(FunctionalBatched(tiny.walk(1))))
    shown = {"terminated": 0, "truncated": 0}
    for seed in range(6):
        env.reset(seed=seed)
        walk.reset(seed=seed)
        action, ended = seed % 2 + 1, False  # staying is truncated, going right terminates
        while not ended:
            observation, _, terminated, truncated, _ = env.step(action)
            true, *_ = walk.step(action)
            ended = terminated or truncated
        first, _ = env.reset()
        np.testing.assert_array_equal(observation, first if terminated else true)
        assert observation is not first
        shown["terminated" if terminated else "truncated"] += 1
    assert min(shown.values()) == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_resets(backend):
    env = cartpole(backend)
    first, _ = env.reset(seed=5)
    env.step(0)
    second, _ = env.reset()  # in mid-episode: a new one
    third, _ = env.reset()  # not even a step: a new one
    again, _ = env.reset(seed=5)
    np.testing.assert_array_equal(again, first)
    np.testing.assert_array_equal(env.reset()[0], second)  # np_random is seeded too
    np.testing.assert_array_equal(env.reset()[0], third)
    distinct = {tuple(observation) for observation in (first, second, third)}
    assert len(distinct) == 3
    assert len({tuple(cartpole(backend).reset()[0]) for _ in range(2)}) == 2  # entropy


def test_a_seed_restarts_even_when_the_next_episode_is_open(walk):
    first, _ = walk.reset(seed=1)
    while not any(walk.step(2)[2:4]):
        pass
    again, _ = walk.reset(seed=1)
    np.testing.assert_array_equal(again, first)


def test_nothing_handed_out_is_shared_with_the_environment():
    env = GymnasiumEnv(FunctionalBatched(tiny.walk(1, dict_observation=True), copy=False))
    observations = [env.reset(seed=0)[0], env.step(2)[0], env.step(2)[0]]
    before = [o["all"].copy() for o in observations]
    observations[0]["all"][:] = 7
    for observation, old in zip(observations[1:], before[1:], strict=True):
        np.testing.assert_array_equal(observation["all"], old)
        assert type(observation["position"]) is np.int64


BAD_RESETS = {
    "negative": ({"seed": -1}, gymnasium.error.Error, "-1"),
    "too large": ({"seed": 2**32}, ValueError, r"\[0, 2\*\*32\)"),
    "options": ({"options": {"low": 1}}, ValueError, r"takes no options, got \['low'\]"),
}


@pytest.mark.parametrize(("arguments", "error", "words"), BAD_RESETS.values(), ids=BAD_RESETS)
@pytest.mark.parametrize("interface", ["gymnasium", "vector"])
def test_bad_resets(interface, arguments, error, words):
    env = envs.make("cartpole", "reference", 1, interface=interface)
    with pytest.raises(error, match=words):
        env.reset(**arguments)


BAD_ACTIONS = {
    "outside": (3, "action 3 of row 0 is outside"),
    "illegal": (0, r"action 0 of row 0 is not legal; legal there: \[1, 2\]"),
    "real": (1.0, "dtype float64"),
    "a list": ([1], r"shape \(1, 1\)"),
    "nothing": (None, "dtype object"),
}


@pytest.mark.parametrize(("action", "words"), BAD_ACTIONS.values(), ids=BAD_ACTIONS)
def test_bad_actions(walk, action, words):
    seed = next(s for s in range(50) if walk.reset(seed=s)[0][0] == 0)
    walk.reset(seed=seed)
    expected = walk.step(1)
    walk.reset(seed=seed)
    with pytest.raises(ActionError, match=words):
        walk.step(action)
    np.testing.assert_array_equal(walk.step(1)[0], expected[0])  # nothing was stepped


def test_lifecycle():
    env = cartpole("reference")
    refused = pytest.raises(LifecycleError, match="step without an open episode")
    with refused:
        env.step(0)
    env.reset(seed=0)
    while not env.step(0)[2]:
        pass
    with refused:
        env.step(0)
    env.reset()
    env.step(0)
    env.close()
    env.close()
    with refused:
        env.step(0)
    with pytest.raises(LifecycleError, match="used after close"):
        env.reset()


def test_several_agents_or_environments_are_refused():
    game = FunctionalBatched(tiny.game(1))
    for export in (GymnasiumEnv, GymnasiumVectorEnv):
        with pytest.raises(ValueError, match=r"game has 2 agents, .* fill the other seats first"):
            export(game)
    with pytest.raises(ValueError, match="num_envs=1, got 2"):
        GymnasiumEnv(FunctionalBatched(tiny.walk(2)))


# --- gymnasium.vector.VectorEnv -------------------------------------------------------------------


def sync(num_envs):
    return SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1")] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP
    )


def assert_same(a, b):
    """Equal down to types, dtypes and the None of object arrays."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, tuple):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, np.ndarray):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.dtype == object:
            for x, y in zip(a.flat, b.flat, strict=True):
                assert_same(x, y)
        else:
            np.testing.assert_array_equal(a, b)
    else:
        assert a == b


@pytest.mark.parametrize("wrap", [lambda env: env, RecordEpisodeStatistics], ids=["bare", "stats"])
def test_the_reference_is_gymnasiums_sync_vector_env(wrap):
    n = 4
    ours, theirs = wrap(envs.make("cartpole", "reference", n, interface="vector")), wrap(sync(n))
    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"]
    for name in ("observation_space", "action_space", "single_observation_space", "num_envs"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert_same(ours.reset(seed=17), theirs.reset(seed=row_seeds(17, n)))
    rng = np.random.default_rng(0)
    ends = 0
    for _ in range(250):
        action = rng.integers(0, 2, n)
        *ours_now, our_info = ours.step(action)
        *theirs_now, their_info = theirs.step(action)
        for info in (our_info, their_info):
            info.get("episode", {}).pop("t", None)  # seconds
        for a, b in zip(ours_now, theirs_now, strict=True):
            assert_same(a, b)
        assert_same(our_info, their_info)
        ends += len(our_info) > 0
    assert ends > 10
    ours.close()


def test_truncations_carry_the_last_observation_as_well():
    ours, theirs = envs.make("cartpole", "reference", 2, interface="vector"), sync(2)
    ours.reset(seed=0)
    truncations = 0
    observation = theirs.reset(seed=row_seeds(0, 2))[0]
    for _ in range(520):  # a hand-written controller that never falls
        x, v, angle, spin = observation.T
        action = (angle + 0.3 * spin + 0.01 * x + 0.05 * v > 0).astype(int)
        observation, *rest = theirs.step(action)
        got, *others = ours.step(action)
        assert_same(got, observation)
        for a, b in zip(others, rest, strict=True):
            assert_same(a, b)
        truncations += int(rest[2].sum())
    assert truncations >= 2


def test_infos_with_metrics_and_masks():
    n = 3
    reference = FunctionalBatched(tiny.walk(n))
    env = GymnasiumVectorEnv(FunctionalBatched(tiny.walk(n)))
    decision = reference.reset(0)
    observation, infos = env.reset(seed=0)
    ends = 0
    for _ in range(15):
        np.testing.assert_array_equal(observation, decision.observation)
        assert_same(infos["action_mask"], decision.legal_actions.astype(np.int8))
        assert_same(infos["_action_mask"], np.ones(n, bool))
        observation, _, terminated, truncated, infos = env.step(np.full(n, 2))
        decision, outcome = reference.step(np.full(n, 2))
        ended = terminated | truncated
        assert ("final_info" in infos) == ended.any()
        if ended.any():
            metrics = infos["final_info"]["metrics"]
            assert_same(infos["final_info"]["_metrics"], ended)
            assert_same(metrics["_length"], ended)
            np.testing.assert_array_equal(
                metrics["length"], np.where(ended, outcome.metrics["length"], 0)
            )
            np.testing.assert_allclose(
                metrics["tilt"], np.where(ended, outcome.metrics["tilt"], 0), rtol=1e-6
            )
            ends += ended.sum()
    assert ends > n


def test_without_last_observations_of_terminations_only_those_are_missing():
    env = GymnasiumVectorEnv(mute(FunctionalBatched(tiny.walk(4))))
    env.reset(seed=0)
    seen = np.zeros(2, int)
    for _ in range(16):
        *_, terminated, truncated, infos = env.step(np.array([1, 2, 2, 1]))
        if (terminated | truncated).any():
            assert_same(infos["_final_info"], terminated | truncated)
            assert_same(infos.get("_final_obs", np.zeros(4, bool)), truncated)
        seen += terminated.sum(), truncated.sum()
    assert (seen > 0).all()


def test_statistics_of_a_jax_batch_agree_with_its_metrics():
    env = RecordEpisodeStatistics(GymnasiumVectorEnv(FunctionalBatched(tiny.walk(4))))
    env.reset(seed=0)
    ends = 0
    for _ in range(20):
        *_, infos = env.step(np.array([1, 2, 2, 1]))
        if "episode" in infos:
            lengths = infos["final_info"]["metrics"]["length"]
            np.testing.assert_array_equal(infos["episode"]["l"], lengths)
            ends += 1
    assert ends > 3


def test_resets_of_a_vector_env():
    env = envs.make("cartpole", "jax", 3, interface="vector")
    first, infos = env.reset(seed=4)
    assert infos == {}
    env.step(np.zeros(3, int))
    second, _ = env.reset()
    np.testing.assert_array_equal(env.reset(seed=4)[0], first)
    np.testing.assert_array_equal(env.reset()[0], second)
    assert not np.array_equal(first, second)
    with pytest.raises(ValueError, match=r"one integer seeds all rows, got \[1, 2, 3\]"):
        env.reset(seed=[1, 2, 3])
    with pytest.raises(ValueError, match="reset_mask"):
        env.reset(options={"reset_mask": np.array([True, False, False])})
    with pytest.raises(ActionError, match=r"shape \(2,\), expected \(3,\)"):
        env.step([0, 1])
    env.close()
    env.close()
    with pytest.raises(LifecycleError, match="used after close"):
        env.step([0, 1, 0])
