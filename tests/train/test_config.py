"""From typed words to numbers that fit: accepted spellings, and a table of refusals."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException

import envs
from tests.train.composing import CONFIGS, compose_run
from train.config import ConfigError
from train.policies.policy import MLPPolicy, count_parameters

SIZES = {"100k": 100_000, "2m": 2_000_000, "20m": 20_000_000}


@pytest.mark.parametrize("spelling", ["1e6", "1000000", "1_000_000", "10e5"])
def test_whole_numbers_may_be_spelled_as_people_do(spelling: str) -> None:
    config = compose_run(f"total_steps={spelling}")
    assert config.total_steps == 1_000_000
    assert isinstance(config.total_steps, int)


@pytest.mark.parametrize("env", envs.list_environments())
def test_every_rule_parameter_can_be_typed_without_a_plus(env: str) -> None:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        listed = compose("config", [f"env={env}"]).env.parameters
    assert set(listed) == set(envs.make_spec(env).parameters)


@pytest.mark.parametrize("env", envs.list_environments())
def test_every_registered_environment_has_a_config_that_composes(env: str) -> None:
    config = compose_run(f"env={env}")
    assert config.env == env
    spec = envs.make_spec(env, **config.parameters)
    assert config.gap.metric in ("return", "length", *spec.metrics)


def test_the_command_line_wins_over_the_environments_defaults() -> None:
    config = compose_run("env=pong", "env.parameters.frameskip=1", "horizon=64", "gamma=0.5")
    assert config.parameters["frameskip"] == 1
    assert (config.ppo.horizon, config.ppo.gamma) == (64, 0.5)


def test_updates_reach_total_steps_and_intervals_are_whole_updates() -> None:
    config = compose_run("env=cartpole", "total_steps=1000", "num_envs=16", "horizon=32")
    assert config.steps_per_update == 512
    assert config.num_updates == 2
    assert config.updates_between(0) == 0
    assert config.updates_between(1) == 1
    assert config.updates_between(5 * 512) == 5


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("total_steps=abc", "total_steps must be a whole number, got 'abc'"),
        ("total_steps=1.5", "total_steps must be a whole number"),
        ("total_steps=0", "total_steps must be between 1"),
        ("total_steps=-5", "total_steps must be between 1"),
        ("total_steps=inf", "total_steps must be a whole number"),
        ("total_steps=nan", "total_steps must be a whole number"),
        ("total_steps=true", "total_steps must be a whole number"),
        ("num_envs=10", "num_envs=10 is not divisible by num_minibatches=4"),
        ("num_envs=0", "num_envs must be between 1"),
        ("horizon=null", "horizon must be a whole number, got None"),
        ("learning_rate=fast", "learning_rate must be a number, got 'fast'"),
        ("learning_rate=nan", "learning_rate must be between"),
        ("gamma=1.5", "gamma must be between 0.0 and 1.0"),
        ("clip_eps=-1", "clip_eps must be between"),
        ("schedule=cosine", "unknown schedule 'cosine'; choose from constant, linear"),
        ("trainer=tensorflow", "unknown trainer 'tensorflow'; choose from jax"),
        ("normalize_observations=maybe", "normalize_observations must be true or false"),
        ("eval.episodes=1", "eval.episodes must be between 2"),
        ("eval.greedy=no-thanks", "eval.greedy must be true or false"),
        ("env.gap.margin=0", "env.gap.margin must be between"),
        ("seed=-1", "seed must be between 0"),
        ("model.depth=0", "model.depth must be between 1"),
        ("model.width=0", "model needs a width, or the number of parameters"),
        ("+learning_rat=1e-3", "unknown option 'learning_rat'; did you mean learning_rate?"),
        ("+eval.episode=3", "unknown option 'eval.episode'; did you mean episodes?"),
        ("+logger.colour=red", "unknown option 'logger.colour'; choose from"),
        ("checkpoint=5", "checkpoint must be names and values, got 5"),
    ],
)
def test_refusals_name_the_option_and_what_would_fit(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose_run("env=cartpole", override)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("override", "choices"),
    [
        ("env=tetris", "cartpole"),
        ("model=7b", "100k"),
        ("logger=papyrus", "wandb"),
        ("num_env=4", "num_env"),
    ],
)
def test_unknown_groups_list_the_choices_and_unknown_keys_are_named(
    override: str, choices: str
) -> None:
    with pytest.raises(ConfigCompositionException) as error:
        compose_run(override)
    assert choices in str(error.value) or choices in str(error.value.__cause__)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("env", envs.list_environments())
def test_a_models_name_is_its_size_within_two_percent(env: str, name: str) -> None:
    import jax

    config = compose_run(f"env={env}", f"model={name}")
    policy = MLPPolicy(envs.make_spec(env, **config.parameters), config.model)
    size = count_parameters(jax.eval_shape(policy.init, 0))
    assert abs(size - SIZES[name]) <= 0.02 * SIZES[name]


def test_every_model_config_is_covered_here() -> None:
    names = {path.stem for path in (CONFIGS / "model").glob("*.yaml")}
    assert names == {"small", *SIZES}
