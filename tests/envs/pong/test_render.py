"""The picture shows paddles, ball and scores where the fields say."""

from __future__ import annotations

import numpy as np

import envs
from envs.pong.render import BACKGROUND, BALL, LEFT, RIGHT, SCORE, render
from tests.envs.pong.tables import SPEC, table


def row(**changes):
    return {name: values[0] for name, values in table(**changes).items()}


def colours(image, colour):
    """Rows and columns that hold a colour, as (top, bottom, left, right), ends included."""
    rows, columns = np.nonzero((image == colour).all(-1))
    return (rows.min(), rows.max(), columns.min(), columns.max())


def test_places_and_colours():
    image = render(row(), SPEC)
    assert image.shape == (160, 155, 3)
    assert image.dtype == np.uint8
    # A pixel is four units; the field begins at column 15 and row 160 is y = 0.
    assert colours(image, LEFT)[2:] == (10, 14)
    assert colours(image, RIGHT)[2:] == (140, 144)
    assert colours(image, BALL) == (76, 83, 40, 47)
    assert tuple(image[150, 75]) == BACKGROUND


def test_up_is_up():
    top = render(row(paddle_yl=500.0, paddle_yr=-35.0, ball_y=608.0), SPEC)
    assert colours(top, LEFT)[:2] == (18, 34)
    assert colours(top, RIGHT)[1] == 159
    assert colours(top, BALL)[:2] == (0, 7)


def test_scores_are_drawn():
    def score(left, right):
        image = render(row(score_l=left, score_r=right), SPEC)
        half = image.shape[1] // 2
        shown = (image == SCORE).all(-1)
        return shown[:, :half], shown[:, half:]

    lost, won = score(3, 20)
    assert lost.sum() == 4 * 11  # the dots of a 3, of 2 x 2 pixels
    assert won.sum() == 4 * (11 + 12)
    shapes = [score(n, 0)[0].tobytes() for n in range(22)]
    assert len(set(shapes)) == 22


def test_any_rules_give_a_picture():
    for rules in (dict(width=5000), dict(width=40), dict(max_score=10**6)):
        spec = envs.make_spec("pong", **rules)
        image = render(row(score_l=999_999), spec)
        assert max(image.shape[:2]) == 160
