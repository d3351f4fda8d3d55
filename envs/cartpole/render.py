"""Pictures of CartPole in plain NumPy: a rail, a cart, a pole."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from envs.cartpole import contract as c
from envs.core import EnvSpec

HEIGHT, WIDTH = 200, 300  # pixels
SCALE = WIDTH / (2 * 1.25 * c.X_LIMIT)  # pixels per metre; the limits lie inside the picture
RAIL = 150  # pixel row of the rail, on which the pole's hinge sits
CART_WIDTH, CART_HEIGHT = 40, 22  # pixels
POLE_LENGTH = 2 * c.HALF_LENGTH * SCALE * 2  # drawn twice as long as it is, to be seen
POLE_WIDTH = 6  # pixels

BACKGROUND = (250, 250, 248)
RAIL_COLOUR = (150, 150, 150)
LIMIT_COLOUR = (214, 96, 77)
CART_COLOUR = (45, 55, 72)
POLE_COLOUR = (221, 150, 40)


def render(fields_row: Mapping[str, np.ndarray], spec: EnvSpec) -> np.ndarray:
    """One state as a picture, uint8 ``[200, 300, 3]``.

    Args:
        fields_row: the canonical fields of one row (scalars; only ``x`` in metres and ``theta``
            in radians are looked at).
        spec: the contract; part of the common signature of renderers.
    """
    x, theta = float(fields_row["x"]), float(fields_row["theta"])
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    picture = np.full((HEIGHT, WIDTH, 3), BACKGROUND, np.uint8)
    picture[abs(rows - RAIL) <= 1] = RAIL_COLOUR
    for limit in (-c.X_LIMIT, c.X_LIMIT):
        picture[(abs(columns - _column(limit)) <= 1) & (abs(rows - RAIL) <= 8)] = LIMIT_COLOUR
    dx, dy = columns - _column(x), RAIL - rows  # from the hinge: right and up, pixels
    picture[(abs(dx) <= CART_WIDTH / 2) & (abs(dy) <= CART_HEIGHT / 2)] = CART_COLOUR
    along = dx * np.sin(theta) + dy * np.cos(theta)
    across = dx * np.cos(theta) - dy * np.sin(theta)
    pole = (along >= 0) & (along <= POLE_LENGTH) & (abs(across) <= POLE_WIDTH / 2)
    picture[pole] = POLE_COLOUR
    picture[np.hypot(dx, dy) <= POLE_WIDTH / 2 + 1] = RAIL_COLOUR
    return picture


def _column(x: float) -> float:
    """Pixel column of a position on the rail, in metres from the middle."""
    return WIDTH / 2 + SCALE * x
