"""Spaces as JSON and back, and the arrays of actions that belong to them."""

import json

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.spaces import action_bounds, action_dtype, space_from_json, space_to_json

SPACES = {
    "box": spaces.Box(-1.0, 2.0, (3, 2), np.float32),
    "box float64": spaces.Box(-0.1, 0.1, (2,), np.float64),
    "box with bounds of its own": spaces.Box(
        np.array([-4.8, -np.inf], np.float32), np.array([4.8, np.inf], np.float32)
    ),
    "unbounded box": spaces.Box(-np.inf, np.inf, (4,), np.float32),
    "image": spaces.Box(0, 255, (84, 84, 4), np.uint8),
    "integer box": spaces.Box(-5, 5, (2,), np.int16),
    "scalar box": spaces.Box(0.0, 1.0, (), np.float32),
    "discrete": spaces.Discrete(7),
    "discrete from 3": spaces.Discrete(7, start=3),
    "discrete int32": spaces.Discrete(7, dtype=np.int32),
    "multidiscrete": spaces.MultiDiscrete([2, 3, 4]),
    "multidiscrete from 1": spaces.MultiDiscrete([2, 3], start=[1, 0]),
    "multidiscrete grid": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "multidiscrete int32": spaces.MultiDiscrete([2, 3], dtype=np.int32),
    "multibinary": spaces.MultiBinary(5),
    "multibinary grid": spaces.MultiBinary([2, 3]),
    "dict": spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(0, 1, (2,), np.float32)}),
}


@pytest.mark.parametrize("name", SPACES)
def test_json_round_trip_gives_an_equal_space(name):
    space = SPACES[name]
    text = json.dumps(space_to_json(space))
    again = space_from_json(json.loads(text))
    assert again == space
    assert again.dtype == space.dtype
    assert json.dumps(space_to_json(again)) == text
    again.seed(0)
    assert space.contains(again.sample())


def test_image_space_has_a_short_description():
    assert len(json.dumps(space_to_json(SPACES["image"]))) < 120


@given(
    st.lists(st.integers(1, 4), max_size=3).map(tuple),
    st.sampled_from(["float32", "float64", "int32", "uint8"]),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_any_box_survives_the_round_trip(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    low = rng.integers(0, 100, shape).astype(dtype)
    high = (low + rng.integers(1, 100, shape)).astype(dtype)
    if np.dtype(dtype).kind == "f":
        low, high = (np.asarray(v / 7.0, dtype) for v in (low, high))
    space = spaces.Box(low, high, shape, np.dtype(dtype).type)
    assert space_from_json(json.loads(json.dumps(space_to_json(space)))) == space


@pytest.mark.parametrize(
    "space",
    [
        spaces.Tuple([spaces.Discrete(2)]),
        spaces.Text(5),
        spaces.Dict({"t": spaces.Text(5)}),
        spaces.Sequence(spaces.Discrete(2)),
    ],
    ids=lambda space: type(space).__name__,
)
def test_spaces_without_json_form_are_refused_by_name(space):
    with pytest.raises(TypeError, match=r"no JSON form for a (Tuple|Text|Sequence)"):
        space_to_json(space)


def test_unknown_kind_is_refused_by_name():
    with pytest.raises(ValueError, match="unknown space kind 'Sphere'"):
        space_from_json({"kind": "Sphere"})


BOX = {"kind": "Box", "low": 0, "high": 1, "shape": [1 << 25], "dtype": "float32"}
HUGE = {
    "box": {**BOX, "shape": [1 << 20, 1 << 20]},
    "multibinary": {"kind": "MultiBinary", "n": 1 << 40},
    "multibinary grid": {"kind": "MultiBinary", "n": [1 << 20, 1 << 20]},
    "many boxes": {"kind": "Dict", "spaces": {name: BOX for name in "abc"}},
}


@pytest.mark.parametrize("name", HUGE)
def test_a_space_that_would_fill_the_memory_is_refused_before_it_is_made(name):
    with pytest.raises(ValueError, match=r"a space of \d+ numbers exceeds the limit"):
        space_from_json(HUGE[name])


ACTIONS = {
    "discrete": ("int32", 0, 6),
    "box": ("float32", -1.0, 2.0),
    "box float64": ("float64", -0.1, 0.1),
    "multidiscrete": ("int32", 0, [1, 2, 3]),
    "multidiscrete grid": ("int32", 0, [[1, 2], [3, 4]]),
    "multibinary": ("int32", 0, 1),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_bounds_and_dtype_of_actions(name):
    space, (dtype, low, high) = SPACES[name], ACTIONS[name]
    assert action_dtype(space) == np.dtype(dtype)
    lowest, highest = action_bounds(space)
    assert lowest.dtype == highest.dtype == np.dtype(dtype)
    assert lowest.shape == highest.shape == space.shape
    np.testing.assert_array_equal(lowest, np.broadcast_to(np.asarray(low, dtype), space.shape))
    np.testing.assert_array_equal(highest, np.broadcast_to(np.asarray(high, dtype), space.shape))
    assert space.contains(lowest.astype(space.dtype) if space.shape else lowest.item())


@pytest.mark.parametrize("name", ["discrete from 3", "multidiscrete from 1"])
def test_action_spaces_that_do_not_start_at_zero_are_refused(name):
    with pytest.raises(ValueError, match="must start at 0"):
        action_bounds(SPACES[name])


@pytest.mark.parametrize("ask", [action_bounds, action_dtype])
def test_there_are_no_action_arrays_of_a_dict_space(ask):
    with pytest.raises(TypeError, match="for a Dict space"):
        ask(SPACES["dict"])
