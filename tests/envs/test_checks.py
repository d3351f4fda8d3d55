"""Every bad input to an environment is refused by name, and good input arrives unchanged."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.checks import check_actions, check_fields, check_noise, check_num_envs, check_seed
from envs.core import ActionError, Decision, EnvSpec, Field, NoiseSite
from envs.noise import draw_reset_noise

N = 3
NAN = float("nan")


def make(action_space, **changes):
    return EnvSpec(
        name="toy",
        version="1",
        observation_space=spaces.Box(-1, 1, (1,), np.float32),
        action_space=action_space,
        reset_noise={
            "seed": NoiseSite("bits", (2,)),
            "start": NoiseSite("uniform", (2,), -0.05, 0.05),
            "side": NoiseSite("integers", (), 0, 3),
            "kick": NoiseSite("normal"),
        },
        state={"x": Field((2,), "float32"), "count": Field((), "uint8"), "seen": Field((), "bool")},
        **changes,
    )


DISCRETE = make(spaces.Discrete(4))
BOX = make(spaces.Box(np.array([-1, 0], np.float32), np.array([1, 2], np.float32)))
MULTI = make(spaces.MultiDiscrete([2, 3]))
BINARY = make(spaces.MultiBinary(2))
TEAM = make(spaces.Discrete(4), num_agents=2)
BOXED_TEAM = make(spaces.Box(-1, 1, (2,), np.float32), num_agents=2)
CARDS = make(spaces.Discrete(4), num_agents=2, has_legal_actions=True)


# --- actions ------------------------------------------------------------------------------------

GOOD_ACTIONS = {
    "discrete": (DISCRETE, np.array([0, 3, 1]), "int32"),
    "unsigned": (DISCRETE, np.array([0, 3, 1], np.uint8), "int32"),
    "list": (DISCRETE, [0, 3, 1], "int32"),
    "box": (BOX, np.array([[-1, 0], [1, 2], [0.5, 0.5]]), "float32"),
    "whole numbers for a box": (BOX, [[0, 0], [1, 2], [-1, 1]], "float32"),
    "multidiscrete": (MULTI, [[0, 0], [1, 2], [0, 1]], "int32"),
    "multibinary": (BINARY, [[0, 1], [1, 1], [0, 0]], "int32"),
    "team": (TEAM, [[0, 1], [2, 3], [3, 0]], "int32"),
}


@pytest.mark.parametrize("case", GOOD_ACTIONS)
def test_good_actions_arrive_with_the_spaces_dtype(case):
    spec, actions, dtype = GOOD_ACTIONS[case]
    got = check_actions(spec, actions, N)
    assert got.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(got, np.asarray(actions))


class Broken:
    """What a foreign array type may do when it is asked for its values."""

    def __array__(self, *args, **kwargs):
        raise RuntimeError("broken")


BAD_ACTIONS = {
    "scalar": (DISCRETE, 1, r"shape \(\), expected \(3,\)"),
    "nothing": (DISCRETE, None, "shape"),
    "too few": (DISCRETE, [0, 1], r"shape \(2,\), expected \(3,\)"),
    "extra axis": (DISCRETE, [[0], [1], [2]], "shape"),
    "ragged": (BOX, [[0.0], [0.0, 1.0], [1.0]], "no array"),
    "floats": (DISCRETE, [0.0, 1.0, 2.0], "dtype float64, expected an integer"),
    "booleans": (DISCRETE, [True, False, True], "dtype bool"),
    "text": (DISCRETE, ["0", "1", "2"], "dtype <U1"),
    "objects": (DISCRETE, np.array([0, 1, None]), "dtype object"),
    "too high": (DISCRETE, [0, 1, 4], "action 4 of row 2 is outside Discrete"),
    "negative": (DISCRETE, [0, -1, 4], "action -1 of row 1"),
    "past int32": (DISCRETE, [0, 1, 2**32], "action 4294967296 of row 2"),
    "past int64": (DISCRETE, np.array([0, 2**64 - 1, 0], np.uint64), "of row 1"),
    "box above": (BOX, [[0, 0], [0, 2.1], [0, 0]], "of row 1 is outside Box"),
    "box below": (BOX, [[0, 0], [0, 0], [-1.1, 0]], "of row 2 is outside Box"),
    "box NaN": (BOX, [[NAN, 0], [0, 0], [0, 0]], "of row 0"),
    "box infinite": (BOX, [[np.inf, 0], [0, 0], [0, 0]], "of row 0"),
    "box complex": (BOX, np.zeros((3, 2), complex), "dtype complex128, expected float32"),
    "box booleans": (BOX, np.zeros((3, 2), bool), "dtype bool, expected float32"),
    "box flat": (BOX, [0.0, 0.0, 0.0], r"shape \(3,\), expected \(3, 2\)"),
    "second digit": (MULTI, [[0, 0], [0, 3], [0, 0]], r"action \[0 3\] of row 1"),
    "binary two": (BINARY, [[0, 2], [0, 0], [0, 0]], r"action \[0 2\] of row 0"),
    "seat": (TEAM, [[0, 0], [0, 4], [0, 0]], r"action 4 of row \(1, 1\)"),
    "an object that breaks": (DISCRETE, Broken(), "no array \\(broken\\)"),
    "seats forgotten": (TEAM, [0, 0, 0], r"expected \(3, 2\)"),
}


@pytest.mark.parametrize("case", BAD_ACTIONS)
def test_bad_actions_are_refused_by_name(case):
    spec, actions, message = BAD_ACTIONS[case]
    with pytest.raises(ActionError, match=f"toy: .*{message}"):
        check_actions(spec, actions, N)


def decision(acting, legal=None):
    return Decision(np.zeros((*np.shape(acting), 1), np.float32), np.asarray(acting), legal)


def test_seats_that_do_not_act_may_send_anything_and_get_the_lowest_action():
    acting = [[True, False], [False, True], [True, True]]
    got = check_actions(TEAM, [[3, 99], [-7, 2], [1, 1]], N, decision(acting))
    np.testing.assert_array_equal(got, [[3, 0], [0, 2], [1, 1]])
    actions = np.full((N, 2, 2), 0.5)
    actions[0, 1], actions[1, 0] = NAN, 1e300
    got = check_actions(BOXED_TEAM, actions, N, decision(acting))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got[[0, 1], [1, 0]], [[-1, -1], [-1, -1]])
    np.testing.assert_array_equal(got[2], 0.5)


def test_seats_that_act_are_checked_beside_those_that_do_not():
    with pytest.raises(ActionError, match=r"action 5 of row \(1, 1\)"):
        check_actions(
            TEAM, [[0, 9], [0, 5], [0, 0]], N, decision([[True, False], [True, True], [True, True]])
        )


LEGAL = np.array([[[1, 0, 0, 1], [0, 1, 0, 0]]] * N, bool)


def test_legal_actions_pass_and_illegal_ones_name_the_choices():
    open_decision = decision(np.ones((N, 2), bool), LEGAL)
    np.testing.assert_array_equal(
        check_actions(CARDS, [[0, 1], [3, 1], [0, 1]], N, open_decision), [[0, 1], [3, 1], [0, 1]]
    )
    with pytest.raises(
        ActionError, match=r"action 2 of row \(1, 0\) is not legal; legal there: \[0, 3\]"
    ):
        check_actions(CARDS, [[0, 1], [2, 1], [0, 0]], N, open_decision)
    # Without the decision nothing is known of legality, only of the space.
    check_actions(CARDS, [[0, 1], [2, 1], [0, 0]], N)


def test_illegal_actions_of_seats_that_do_not_act_are_ignored():
    acting = np.array([[True, False]] * N)
    got = check_actions(CARDS, [[3, 2]] * N, N, decision(acting, LEGAL))
    np.testing.assert_array_equal(got, [[3, 0]] * N)


@given(st.lists(st.integers(-(2**40), 2**40) | st.integers(-2, 5), min_size=N, max_size=N))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_integer_actions_pass_exactly_when_the_space_contains_them(actions):
    contained = all(0 <= a < 4 for a in actions)
    if contained:
        np.testing.assert_array_equal(check_actions(DISCRETE, actions, N), actions)
    else:
        with pytest.raises(ActionError, match="outside"):
            check_actions(DISCRETE, actions, N)


# --- numbers of environments --------------------------------------------------------------------


@pytest.mark.parametrize("value", [1, 4096, np.int64(3), np.uint8(7)])
def test_num_envs_becomes_an_int(value):
    assert check_num_envs(value) == int(value)
    assert type(check_num_envs(value)) is int


@pytest.mark.parametrize("value", [0, -1, 1.5, 2.0, "3", None, NAN, [1], True, np.True_])
def test_bad_num_envs_is_refused_with_its_value(value):
    with pytest.raises(ValueError, match="num_envs must be a positive integer, got"):
        check_num_envs(value)


@pytest.mark.parametrize("value", [0, 2**32 - 1, np.int64(3), np.uint8(7)])
def test_seed_becomes_an_int(value):
    assert check_seed(value) == int(value)
    assert type(check_seed(value)) is int


@pytest.mark.parametrize("value", [-1, 2**32, 1.0, "3", None, NAN, [1], True])
def test_bad_seed_is_refused_with_its_value(value):
    with pytest.raises(ValueError, match=r"seed must be an integer in \[0, 2\*\*32\), got"):
        check_seed(value)


# --- fields -------------------------------------------------------------------------------------


def fields(**changes):
    good = {
        "x": np.ones((N, 2), np.float32),
        "count": np.array([0, 1, 255], np.uint8),
        "seen": np.array([True, False, True]),
    }
    return {name: value for name, value in (good | changes).items() if value is not None}


def test_good_fields_are_copied_with_the_specs_dtypes():
    given_fields = fields(x=np.ones((N, 2)))  # float64 narrows
    got = check_fields(DISCRETE, given_fields, N)
    assert [v.dtype.name for v in got.values()] == ["float32", "uint8", "bool"]
    assert list(got) == ["x", "count", "seen"]
    given_fields["count"][:] = 9
    np.testing.assert_array_equal(got["count"], [0, 1, 255])


BAD_FIELDS = {
    "missing": (dict(x=None), r"missing: \['x'\], unknown: \[\]"),
    "unknown": (dict(y=np.zeros(N)), r"missing: \[\], unknown: \['y'\]"),
    "too few rows": (dict(seen=np.ones(2, bool)), r"seen has shape \(2,\), expected \(3,\)"),
    "wrong shape": (
        dict(x=np.zeros((N, 3), np.float32)),
        r"x has shape \(3, 3\), expected \(3, 2\)",
    ),
    "scalar": (dict(count=np.uint8(1)), r"count has shape \(\)"),
    "float for integer": (dict(count=np.zeros(N)), "count has dtype float64, not uint8"),
    "signed for unsigned": (dict(count=np.zeros(N, int)), "count has dtype int64, not uint8"),
    "integer for bool": (dict(seen=np.zeros(N, int)), "seen has dtype int64, not bool"),
    "complex": (dict(x=np.zeros((N, 2), complex)), "x has dtype complex128, not float32"),
    "text": (dict(x=np.full((N, 2), "1")), "x has dtype <U1"),
    "past the dtype": (
        dict(count=np.array([0, 1, 256], np.uint16)),
        "count holds values that are not uint8",
    ),
}


@pytest.mark.parametrize("case", BAD_FIELDS)
def test_bad_fields_are_refused_by_name(case):
    changes, message = BAD_FIELDS[case]
    with pytest.raises(ValueError, match=f"toy: .*{message}"):
        check_fields(DISCRETE, fields(**changes), N)


# --- noise --------------------------------------------------------------------------------------


def noise(**changes):
    return draw_reset_noise(DISCRETE, 0, 0, np.arange(N, dtype=np.uint32))._replace(**changes)


def check(record, spec=DISCRETE):
    return check_noise(spec.ResetNoise, spec.reset_noise, record, N)


def test_drawn_noise_passes_unchanged():
    for got, expected in zip(check(noise()), noise(), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_the_ends_of_the_domains_pass():
    low, high = np.float32(-0.05), np.float32(0.05)
    ends = np.array([[low, high]] * N)  # a float64 draw of a reference may round to high
    check(noise(start=ends, side=np.array([0, 2, 1], np.int32)))
    check(noise(seed=np.full((N, 2), 2**32 - 1, np.uint32), kick=np.full(N, -9.0, np.float32)))


def test_bounds_may_be_float64_numbers():
    site = NoiseSite("uniform", (), np.float64(-0.05), np.float64(0.05))
    spec = EnvSpec(**{**vars(DISCRETE), "reset_noise": {"start": site}})
    check(draw_reset_noise(spec, 0, 0, np.arange(N, dtype=np.uint32)), spec)
    check(spec.ResetNoise(np.full(N, np.float32(-0.05))), spec)


BAD_NOISE = {
    "no record": (lambda: None, "must be a ResetNoise with the sites"),
    "plain tuple": (lambda: tuple(noise()), "must be a ResetNoise"),
    "another record": (lambda: DISCRETE.StepNoise(), "must be a ResetNoise"),
    "too few rows": (
        lambda: noise(side=np.zeros(2, np.int32)),
        r"site side is int32\(2,\), expected",
    ),
    "wrong shape": (lambda: noise(start=np.zeros(N, np.float32)), r"expected float32\(3, 2\)"),
    "wide floats": (lambda: noise(start=np.zeros((N, 2))), "site start is float64"),
    "wide integers": (lambda: noise(side=np.zeros(N, int)), "site side is int64"),
    "signed words": (lambda: noise(seed=np.zeros((N, 2), np.int32)), "site seed is int32"),
    "below": (lambda: noise(start=np.full((N, 2), -0.06, np.float32)), "start leaves its domain"),
    "above": (lambda: noise(start=np.full((N, 2), 0.06, np.float32)), "start leaves its domain"),
    "NaN": (lambda: noise(start=np.full((N, 2), NAN, np.float32)), "start leaves its domain"),
    "integer at high": (lambda: noise(side=np.full(N, 3, np.int32)), r"leaves its domain \[0, 3\)"),
    "integer below": (lambda: noise(side=np.full(N, -1, np.int32)), "side leaves its domain"),
    "normal NaN": (lambda: noise(kick=np.full(N, NAN, np.float32)), "of finite numbers"),
    "normal infinite": (lambda: noise(kick=np.full(N, np.inf, np.float32)), "of finite numbers"),
}


@pytest.mark.parametrize("case", BAD_NOISE)
def test_bad_noise_is_refused_by_site(case):
    make_noise, message = BAD_NOISE[case]
    with pytest.raises(ValueError, match=message):
        check(make_noise())
