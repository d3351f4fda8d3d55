"""CartPole's constants against Gymnasium's own, and how the room offers its backends."""

import gymnasium
import numpy as np
import pytest
from scipy import stats

import envs
from envs.cartpole import contract as c

SPEC = envs.make_spec("cartpole")


@pytest.fixture(scope="module")
def original():
    return gymnasium.make("CartPole-v1")


def test_constants_are_those_of_gymnasium(original):
    core = original.unwrapped
    assert (core.gravity, core.masscart, core.masspole) == (c.GRAVITY, c.CART_MASS, c.POLE_MASS)
    assert (core.length, core.force_mag, core.tau) == (c.HALF_LENGTH, c.FORCE, c.TIME_STEP)
    assert (core.x_threshold, core.theta_threshold_radians) == (c.X_LIMIT, c.THETA_LIMIT)
    assert original.spec.max_episode_steps == c.MAX_EPISODE_STEPS


def test_spaces_are_those_of_gymnasium(original):
    assert original.observation_space == SPEC.observation_space
    assert original.action_space == SPEC.action_space


def test_starts_fill_the_range_of_gymnasium_and_no_more():
    env = gymnasium.make("CartPole-v1")
    observations = np.array([env.reset(seed=i)[0] for i in range(500)])
    assert abs(observations).max() <= c.START_RANGE
    assert (abs(observations).max(axis=0) > 0.99 * c.START_RANGE).all()


@pytest.mark.parametrize("column", range(4))
def test_start_states_of_both_backends_have_the_same_distribution(column):
    samples = []
    for backend in ("reference", "jax"):
        with envs.make("cartpole", backend, 500, interface="batched") as env:
            samples.append(env.reset(3).observation[:, column])
    assert stats.ks_2samp(*samples).pvalue > 1e-4


def test_reading_the_references_state_rounds_it_and_does_not_change_it():
    runs = []
    for read in (True, False):
        simulator = envs.make("cartpole", "reference", 2, interface="simulator")
        simulator.reset(SPEC.ResetNoise(np.full((2, 4), 0.03, np.float32)))
        for _ in range(5):
            noise = SPEC.ResetNoise(np.zeros((2, 4), np.float32))
            simulator.step(np.array([0, 1]), SPEC.StepNoise(), noise)
            if read:
                assert simulator.get_state()["x"].dtype == np.float32
        runs.append([env.unwrapped.state for env in simulator._rows.envs])
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0] != np.float32(runs[0])).any()


def test_backends_and_preferred_port():
    assert envs.list_backends("cartpole") == ["reference", "jax"]
    assert envs.resolve_backend("cartpole", "generated", "gpu") == "jax"


@pytest.mark.parametrize("option", ["gravity", "sutton_barto_reward", "low", "high", "options"])
@pytest.mark.parametrize("backend", ["reference", "jax"])
def test_there_are_no_rule_parameters(backend, option):
    with pytest.raises(envs.UnknownName, match=option):
        envs.make("cartpole", backend, **{option: 1})


@pytest.mark.parametrize("interface", ["batched", "simulator"])
def test_reset_takes_no_options(interface):
    with (
        envs.make("cartpole", "reference", interface=interface) as env,
        pytest.raises(TypeError, match="options"),
    ):
        env.reset(0, options={"low": -0.1, "high": 0.1})


@pytest.mark.parametrize("backend", ["reference", "jax"])
def test_every_face_can_be_had(backend):
    with envs.make("cartpole", backend, 3, interface="batched") as env:
        assert env.reset(0).observation.shape == (3, 4)
    simulator = envs.make("cartpole", backend, 3, interface="simulator")
    assert simulator.spec == SPEC
