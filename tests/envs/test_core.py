"""EnvSpec: its JSON form, identity and refusals; the small records around it."""

import copy
import json
import os
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from envs.core import (
    EXACT,
    Decision,
    EnvSpec,
    Field,
    Metric,
    NoiseSite,
    Outcome,
    Ports,
    Tolerance,
    noise_record,
)

BASE = dict(
    name="toy",
    version="1",
    observation_space=spaces.Box(-1, 1, (3,), np.float32),
    action_space=spaces.Discrete(4),
    reset_noise={"seed": NoiseSite("bits", (2,)), "start": NoiseSite("uniform", (), -1.0, 1.0)},
    step_noise={"slip": NoiseSite("integers", (), 0, 4)},
    parameters={"frameskip": 8, "wind": 0.5, "mode": "hard"},
    state={
        "x": Field((2,), "float32", Tolerance(rel=1e-6), -1.0, 1.0, (0.0, 0.5)),
        "count": Field((), "int32", low=0, high=9),
    },
    privileged_space=spaces.Box(0, 1, (1,), np.float32),
    num_agents=2,
    has_legal_actions=True,
    truncates=True,
    max_episode_steps=10,
    metrics={"length": Metric("int32", "steps"), "won": Metric("bool", "winner", per_agent=True)},
    events=("bump", "fall"),
    ports=Ports(cpu=("rust", "jax"), gpu=("jax",)),
)

# One changed value for every field of EnvSpec.
CHANGES = dict(
    name="toy2",
    version="2",
    observation_space=spaces.Box(-1, 2, (3,), np.float32),
    action_space=spaces.Discrete(5),
    reset_noise={"seed": NoiseSite("bits", (2,)), "start": NoiseSite("uniform", (), -1.0, 2.0)},
    step_noise={"slide": NoiseSite("integers", (), 0, 4)},
    parameters={"frameskip": 4, "wind": 0.5, "mode": "hard"},
    state=BASE["state"] | {"x": replace(BASE["state"]["x"], tolerance=Tolerance(rel=2e-6))},
    privileged_space=None,
    num_agents=3,
    has_legal_actions=False,
    truncates=None,
    max_episode_steps=11,
    metrics={"length": Metric("int64", "steps"), "won": Metric("bool", "winner", per_agent=True)},
    events=("fall", "bump"),
    ports=Ports(cpu=("jax", "rust"), gpu=("jax",)),
)


def spec(**changes):
    return EnvSpec(**BASE | changes)


# --- JSON and identity ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "one", [spec(), spec(privileged_space=None, step_noise={}), envs.make_spec("cartpole")]
)
def test_json_round_trip_gives_an_equal_spec(one):
    again = EnvSpec.from_json(json.loads(json.dumps(one.to_json())))
    assert again == one
    assert hash(again) == hash(one)
    assert again.digest == one.digest
    assert again.observation_space == one.observation_space
    assert again.action_space == one.action_space
    assert again.privileged_space == one.privileged_space
    for name in ("parameters", "state", "reset_noise", "step_noise", "metrics"):
        assert dict(getattr(again, name)) == dict(getattr(one, name))
    assert (again.events, again.ports) == (one.events, one.ports)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
)
def test_a_spec_can_be_copied_and_pickled(copied):
    assert copied(spec()) == spec()
    assert copied(spec()).state["x"] == BASE["state"]["x"]


def test_every_field_has_a_change_below():
    assert set(CHANGES) == set(EnvSpec.__dataclass_fields__)


@pytest.mark.parametrize("name", CHANGES)
def test_digest_changes_with_every_field(name):
    changes = {name: CHANGES[name]}
    if name == "truncates":
        changes = dict(truncates=False, max_episode_steps=None)
        assert spec(**changes).digest != spec(max_episode_steps=None).digest
    other = spec(**changes)
    assert other != spec()
    assert other.digest != spec().digest
    assert hash(other) != hash(spec())


@pytest.mark.parametrize(
    "site",
    [
        NoiseSite("bits", (3,)),
        NoiseSite("normal", (2,)),
        NoiseSite("uniform", (2,), 0.0, 1.5),
        NoiseSite("uniform", (2,), -0.5, 1.0),
    ],
)
def test_digest_changes_with_every_property_of_a_noise_site(site):
    base = spec(step_noise={"s": NoiseSite("uniform", (2,), 0.0, 1.0)})
    assert spec(step_noise={"s": site}).digest != base.digest


@pytest.mark.parametrize(
    "change",
    [
        dict(shape=(3,)),
        dict(dtype="float64"),
        dict(tolerance=Tolerance(abs=1e-6, rel=1e-6)),
        dict(tolerance=Tolerance(rel=1e-6, pass_rate=0.99)),
        dict(low=-2.0),
        dict(high=2.0),
        dict(special=(0.0,)),
    ],
    ids=lambda change: next(iter(change)),
)
def test_digest_changes_with_every_property_of_a_state_field(change):
    state = BASE["state"] | {"x": replace(BASE["state"]["x"], **change)}
    assert spec(state=state).digest != spec().digest


def test_order_of_events_and_sites_matters_but_that_of_parameters_does_not():
    backwards = dict(reversed(BASE["parameters"].items()))
    assert spec(parameters=backwards) == spec()
    assert spec(events=("fall", "bump")) != spec()


def test_digest_is_the_same_in_another_process():
    program = "import envs; print(envs.make_spec('cartpole').digest)"
    for hash_seed in ("1", "2"):
        environment = dict(os.environ, PYTHONHASHSEED=hash_seed)
        command = [sys.executable, "-c", program]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert run.stdout.strip() == envs.make_spec("cartpole").digest


def test_specs_work_as_keys_and_differ_from_other_things():
    assert {spec(): 1}[spec()] == 1
    assert spec() != "toy"
    assert len({spec(), spec(), spec(version="2")}) == 2


@given(
    st.dictionaries(
        st.text("abc", min_size=1, max_size=3),
        st.integers(-100, 100) | st.booleans() | st.text(max_size=3) | st.floats(-1, 1) | st.none(),
        max_size=4,
    ),
    st.lists(st.integers(1, 3), max_size=2).map(tuple),
)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_any_plain_parameters_and_shapes_survive_the_round_trip(parameters, shape):
    one = spec(parameters=parameters, state={"x": Field(shape, "float32")})
    again = EnvSpec.from_json(json.loads(json.dumps(one.to_json())))
    assert again == one
    assert dict(again.parameters) == parameters


def test_a_spec_can_not_be_changed():
    one = spec()
    with pytest.raises(FrozenInstanceError):
        one.name = "other"
    with pytest.raises(TypeError):
        one.parameters["frameskip"] = 1
    parameters = {"frameskip": 8}
    one = spec(parameters=parameters)
    parameters["frameskip"] = 1  # the caller's mapping is not the spec's
    assert one.parameters["frameskip"] == 8


# --- refusals -------------------------------------------------------------------------------------

BAD_SPECS = {
    "no reset noise": (dict(reset_noise={}), "reset_noise is empty"),
    "a limit that can't end anything": (dict(truncates=False), "truncates is False"),
    "legal actions of a box": (
        dict(action_space=spaces.Box(-1, 1, (2,), np.float32)),
        "need a Discrete",
    ),
}


@pytest.mark.parametrize("case", BAD_SPECS)
def test_bad_spec_is_refused(case):
    changes, message = BAD_SPECS[case]
    with pytest.raises(ValueError, match=f"toy: .*{message}"):
        spec(**changes)


BAD_SITES = {
    "unknown": (("gaussian",), "unknown noise distribution 'gaussian'; choose from uniform"),
    "empty domain": (("uniform", (), 1.0, 1.0), r"low < high, got \[1.0, 1.0\)"),
    "reversed domain": (("integers", (), 3, 1), "low < high"),
    "NaN domain": (("uniform", (), float("nan"), 1.0), "low < high"),
    "broken integers": (("integers", (), 0.5, 3), "int32 bounds"),
    "wide integers": (("integers", (), 0, 2**31), "int32 bounds"),
}


@pytest.mark.parametrize("case", BAD_SITES)
def test_bad_noise_site_is_refused(case):
    arguments, message = BAD_SITES[case]
    with pytest.raises(ValueError, match=message):
        NoiseSite(*arguments)


BAD_JSON = {
    "no state": (lambda d: d.pop("state"), KeyError),
    "no spaces": (lambda d: d.pop("action_space"), KeyError),
    "unknown key": (lambda d: d.update(colour="red"), TypeError),
    "unknown key of a site": (lambda d: d["reset_noise"]["seed"].update(mean=0), TypeError),
    "unknown space": (lambda d: d["action_space"].update(kind="Sphere"), ValueError),
    "unknown distribution": (
        lambda d: d["reset_noise"]["seed"].update(distribution="cauchy"),
        ValueError,
    ),
}


@pytest.mark.parametrize("case", BAD_JSON)
def test_malformed_description_is_refused(case):
    damage, error = BAD_JSON[case]
    data = json.loads(json.dumps(spec().to_json()))
    damage(data)
    with pytest.raises(error):
        EnvSpec.from_json(data)


# --- small records --------------------------------------------------------------------------------


def test_tolerance_is_exact_unless_it_says_otherwise():
    assert EXACT.exact
    assert not Tolerance(abs=1e-9).exact
    assert not Tolerance(rel=1e-9).exact


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("uniform", "float32"), ("normal", "float32"), ("integers", "int32"), ("bits", "uint32")],
)
def test_dtype_of_a_site_follows_its_distribution(kind, dtype):
    assert NoiseSite(kind).dtype == np.dtype(dtype)


def test_noise_records_have_the_sites_as_fields_and_are_one_type_per_names():
    one = spec()
    assert one.ResetNoise._fields == ("seed", "start")
    assert one.StepNoise._fields == ("slip",)
    assert spec(version="9").ResetNoise is one.ResetNoise
    assert noise_record("ResetNoise", ("seed",)) is not one.ResetNoise
    assert spec(step_noise={}).StepNoise() == ()


@pytest.mark.parametrize(("agents", "rows"), [(1, (5,)), (2, (5, 2))])
def test_rows_have_a_seat_axis_only_with_several_agents(agents, rows):
    assert spec(num_agents=agents).rows(5) == rows


def test_decisions_and_outcomes_pass_through_jit_with_their_absent_parts():
    decision = Decision(jnp.zeros((2, 3)), jnp.ones(2, bool))
    flags = jnp.zeros(2, bool)
    outcome = Outcome(jnp.zeros(2), flags, flags, {"length": jnp.ones(2)}, flags, final=decision)
    again = jax.jit(lambda *records: records)(decision, outcome)
    assert jax.tree.structure(again) == jax.tree.structure((decision, outcome))
    assert again[0].legal_actions is None
    assert again[1].events is None
    np.testing.assert_array_equal(again[1].metrics["length"], [1, 1])
