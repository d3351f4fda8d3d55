"""The picture shows the state: the cart follows x, the pole's tip follows theta."""

import numpy as np
import pytest

import envs
from envs.cartpole import render as r
from envs.cartpole.contract import THETA_LIMIT, X_LIMIT

SPEC = envs.make_spec("cartpole")


def picture(x=0.0, theta=0.0):
    fields = {name: np.zeros((), f.dtype) for name, f in SPEC.state.items()}
    return r.render(dict(fields, x=np.float32(x), theta=np.float32(theta)), SPEC)


def pixels(image, colour):
    """(rows, columns) of a colour."""
    return np.nonzero((image == colour).all(axis=-1))


def cart_column(image):
    return pixels(image, r.CART_COLOUR)[1].mean()


def tip_column(image):
    rows, columns = pixels(image, r.POLE_COLOUR)
    return columns[rows == rows.min()].mean()


def test_picture_is_small_bytes_and_repeats():
    image = picture(0.3, 0.1)
    assert (image.shape, image.dtype) == ((200, 300, 3), np.uint8)
    np.testing.assert_array_equal(image, picture(0.3, 0.1))


def test_cart_moves_with_x_in_proportion():
    columns = [cart_column(picture(x)) for x in (-2.0, -1.0, 0.0, 1.0, 2.0)]
    np.testing.assert_allclose(np.diff(columns), r.SCALE, atol=1.0)


def test_pole_tip_leans_to_the_right_for_positive_theta():
    tips = [tip_column(picture(0, theta)) for theta in np.linspace(-THETA_LIMIT, THETA_LIMIT, 5)]
    assert (np.diff(tips) > 3).all()
    expected = r.POLE_LENGTH * np.sin(THETA_LIMIT)
    assert tips[-1] - tips[2] == pytest.approx(expected, abs=r.POLE_WIDTH)


def test_mirrored_state_gives_the_mirrored_picture():
    one, other = picture(1.0, 0.15), picture(-1.0, -0.15)
    columns = cart_column(one) + cart_column(other)
    assert columns == pytest.approx(r.WIDTH, abs=1.0)
    assert tip_column(one) + tip_column(other) == pytest.approx(r.WIDTH, abs=2.0)


@pytest.mark.parametrize("x", [-X_LIMIT, X_LIMIT])
def test_cart_at_a_limit_is_inside_the_picture(x):
    full = len(pixels(picture(0), r.CART_COLOUR)[0])
    assert len(pixels(picture(x), r.CART_COLOUR)[0]) == pytest.approx(full, rel=0.05)


def test_states_past_the_limits_are_drawn_too():
    assert len(pixels(picture(2.6, 0.3), r.POLE_COLOUR)[0]) > 0
    assert len(pixels(picture(100.0, 0.0), r.CART_COLOUR)[0]) == 0


def test_the_registry_finds_it():
    assert envs.renderer("cartpole") is r.render
