"""A picture of one row of Pong from its canonical fields; layout and colours follow the C code."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from envs.core import EnvSpec
from envs.pong.contract import rules_of

LONGER_SIDE = 160  # pixels
BACKGROUND, LEFT, RIGHT = (6, 24, 24), (255, 0, 0), (0, 255, 255)
BALL, SCORE = (255, 255, 255), (0, 187, 187)

# Three by five dots a digit, rows from the top, the leftmost dot in the highest bit.
_DIGITS = (
    (7, 5, 5, 5, 7),
    (2, 6, 2, 2, 7),
    (7, 1, 7, 4, 7),
    (7, 1, 7, 1, 7),
    (5, 5, 7, 1, 1),
    (7, 4, 7, 1, 7),
    (7, 4, 7, 5, 7),
    (7, 1, 2, 2, 2),
    (7, 5, 7, 5, 7),
    (7, 5, 7, 1, 7),
)
_DOT = 2  # pixels


def render(fields: Mapping[str, np.ndarray], spec: EnvSpec) -> np.ndarray:
    """The table as an image.

    Args:
        fields: canonical fields of one row, scalars (``observation`` is not looked at).

    Returns:
        uint8 ``[H, W, 3]``, 160 x 155 by default; the paddles stand in margins beside the field, as
        in the C code.
    """
    rules = rules_of(spec)
    margin = 3 * rules.paddle_width
    across = rules.width + 2 * margin
    scale = LONGER_SIDE / max(across, rules.height)
    height, width = (max(1, round(length * scale)) for length in (rules.height, across))
    image = np.full((height, width, 3), BACKGROUND, np.uint8)

    def box(x: float, y: float, size: tuple[float, float], colour: tuple[int, int, int]) -> None:
        """Fill a box whose lower left corner is (x, y) in field units."""
        left, right = (round((margin + edge) * scale) for edge in (x, x + size[0]))
        top, bottom = (round((rules.height - edge) * scale) for edge in (y + size[1], y))
        image[max(0, top) : max(0, bottom), max(0, left) : max(0, right)] = colour

    paddle = (rules.paddle_width, rules.paddle_height)
    box(-rules.paddle_width, float(fields["paddle_yl"]), paddle, LEFT)
    box(rules.width, float(fields["paddle_yr"]), paddle, RIGHT)
    ball = (rules.ball_width, rules.ball_height)
    box(float(fields["ball_x"]), float(fields["ball_y"]), ball, BALL)
    apart = width // 8
    _write(image, int(fields["score_l"]), width // 2 - apart)
    _write(image, int(fields["score_r"]), width // 2 + apart)
    return image


def _write(image: np.ndarray, number: int, middle: int) -> None:
    """A number at the top of the picture, centred on a column."""
    rows = np.array([_DIGITS[int(digit)] for digit in str(number)])  # [digits, 5]
    dots = (rows[:, :, None] >> np.array([2, 1, 0])) & 1  # [digits, 5, 3]
    spaced = np.pad(dots, ((0, 0), (0, 0), (0, 1)))  # one empty column after each digit
    line = np.concatenate(list(spaced), axis=1)
    big = np.kron(line, np.ones((_DOT, _DOT), int)).astype(bool)
    left = max(0, middle - big.shape[1] // 2)
    part = image[_DOT * 2 : _DOT * 2 + big.shape[0], left : left + big.shape[1]]
    part[big[: part.shape[0], : part.shape[1]]] = SCORE
