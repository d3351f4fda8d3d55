"""What every backend of Pong obeys. Rules and constants: PufferLib 3.0.0, ocean/pong/pong.h.

Lengths are in units of the field, speeds in units per frame, +y is up. The agent has the right
paddle; the left one follows the ball. docs/environments/pong.md is the page for people.
"""

from __future__ import annotations

import inspect
import math
import operator
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.core import EnvSpec, Field, Metric, NoiseSite

STAY, UP, DOWN = 0, 1, 2  # actions
HIT_REWARD = 0.1  # the agent's paddle returned the ball
WIN_REWARD, LOSS_REWARD = 1.0, -1.0  # a point; overwrites a hit in the same step
FLAT_SPEED = 0.01  # |vy| below this (a double in the C code) after a hit becomes the increment
OBSERVATION_SIZE = 8  # paddle_yl, paddle_yr, ball_x, ball_y, ball_vx, ball_vy, two constant zeros

EVENTS = (
    "wall_bottom",  # the ball is below y = 0 and turns
    "wall_top",
    "hit_left",
    "hit_right",
    "speed_limited",  # the hit's vertical speed was cut to the maximum
    "flat_avoided",  # the hit would have left a flat ball
    "ball_pushed_inside",  # a hit in a corner: the y clamp moved the ball
    "paddle_left_clamped",
    "paddle_right_clamped",
    "point_left",
    "point_right",
    "stale_observation",  # the point fell in the step's first frame: the old observation stays
    "game_over",
)

_SMALLEST, _LARGEST = 1e-3, 1e5  # of a size or speed: far from float32's own limits


@dataclass(frozen=True)
class Rules:
    """The rule parameters. Defaults: ocean/pong/pong.py; frameskip: config/ocean/pong.ini.

    Real values are rounded to float32, as the C struct holds them. ``paddle_width`` is drawn but
    enters no rule.

    Raises:
        ValueError: a value that is no number, out of range, or sizes that do not fit.
    """

    frameskip: int = 8
    max_score: int = 21
    width: float = 500.0
    height: float = 640.0
    paddle_width: float = 20.0
    paddle_height: float = 70.0
    ball_width: float = 32.0
    ball_height: float = 32.0
    paddle_speed: float = 8.0
    ball_initial_speed_x: float = 10.0
    ball_initial_speed_y: float = 1.0
    ball_max_speed_y: float = 13.0
    ball_speed_y_increment: float = 3.0

    def __post_init__(self) -> None:
        may_be_zero = ("ball_initial_speed_y",)
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "frameskip":
                checked: float = _whole(f.name, value, 2**31 - 1)  # a C int
            elif f.name == "max_score":
                checked = _whole(f.name, value, 2**24)  # the C log counts points in float32
            else:
                checked = _real(f.name, value, 0.0 if f.name in may_be_zero else _SMALLEST)
            object.__setattr__(self, f.name, checked)
        for inner, outer in (
            ("paddle_height", "height"),
            ("ball_height", "height"),
            ("ball_width", "width"),
        ):
            if getattr(self, inner) > getattr(self, outer):
                raise ValueError(
                    f"{inner}={getattr(self, inner)} does not fit into {outer}="
                    f"{getattr(self, outer)}"
                )

    # What the C code precomputes, in its own float32 arithmetic.

    @property
    def min_paddle_y(self) -> np.float32:
        return -np.float32(self.paddle_height) / np.float32(2)

    @property
    def max_paddle_y(self) -> np.float32:
        return np.float32(self.height) - np.float32(self.paddle_height) / np.float32(2)

    @property
    def start_paddle_y(self) -> np.float32:
        return np.float32(self.height) / np.float32(2) - np.float32(
            self.paddle_height
        ) / np.float32(2)

    @property
    def start_ball_x(self) -> np.float32:
        return np.float32(self.width) / np.float32(5)

    @property
    def start_ball_y(self) -> np.float32:
        return np.float32(self.height) / np.float32(2) - np.float32(self.ball_height) / np.float32(
            2
        )

    @property
    def top_speed_y(self) -> float:
        """No rule leaves a ball with a larger |vy|."""
        return max(self.ball_max_speed_y, self.ball_initial_speed_y, self.ball_speed_y_increment)

    @property
    def observation_offsets(self) -> np.ndarray:
        """float32 ``[6]``: added to (yl, yr, x, y, vx, vy) before the division."""
        low = -self.min_paddle_y
        return np.array([low, low, 0, 0, self.ball_initial_speed_x, self.ball_max_speed_y], "f4")

    @property
    def observation_divisors(self) -> np.ndarray:
        """float32 ``[6]``: what (yl, yr, x, y, vx, vy) plus offset is divided by."""
        span = self.max_paddle_y - self.min_paddle_y
        twice_x = np.float32(2) * np.float32(self.ball_initial_speed_x)
        twice_y = np.float32(2) * np.float32(self.ball_max_speed_y)
        return np.array([span, span, self.width, self.height, twice_x, twice_y], np.float32)


def _whole(name: str, value: Any, most: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool) or not 1 <= number <= most:
        raise ValueError(f"{name} must be an integer from 1 to {most}, got {value!r}")
    return number


def _real(name: str, value: Any, lowest: float) -> float:
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not lowest <= number <= _LARGEST:  # also true for NaN
        raise ValueError(f"{name} must be a number from {lowest:g} to {_LARGEST:g}, got {value!r}")
    return float(np.float32(number))


def rules_of(spec: EnvSpec) -> Rules:
    """The rules that a spec was made with."""
    return Rules(**spec.parameters)


def make_spec(**parameters: Any) -> EnvSpec:
    """The contract under these rule parameters, the fields of :class:`Rules`.

    Raises:
        TypeError: an unknown parameter.
        ValueError: see :class:`Rules`.
    """
    known = [f.name for f in fields(Rules)]
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise TypeError(f"unknown parameter {', '.join(unknown)}; choose from {', '.join(known)}")
    rules = Rules(**parameters)
    serve = NoiseSite("integers", (), 0, 2)  # rand() % 2; the ball starts with (serve - 1) * speed
    return EnvSpec(
        name="pong",
        version="1",
        parameters=asdict(rules),
        observation_space=_observation_space(rules),
        action_space=spaces.Discrete(3),
        metrics={
            "score_difference": Metric("int32", "points won minus points lost"),
            "score_right": Metric("int32", "points won (the agent's)"),
            "score_left": Metric("int32", "points lost"),
            "last_round_steps": Metric("int32", "steps of the last point; C logs it as the length"),
        },
        events=EVENTS,
        reset_noise={"serve": serve},
        step_noise={"serve": serve},  # of the next round, used where a point ends but not the game
        state=_state(rules),
    )


# For the registry, which lists the parameters' names, and for help().
make_spec.__signature__ = inspect.signature(Rules)  # type: ignore[attr-defined]


def _observation_space(rules: Rules) -> spaces.Box:
    """PufferLib declares [0, 1]; the ball leaves that by its overshoot, which nothing clamps.

    Play overshoots by one frame's travel at most. Two are allowed for, because a state that is
    set from outside may have the ball out of the field and on its way further out.
    """
    low, high = np.zeros(OBSERVATION_SIZE), np.ones(OBSERVATION_SIZE)
    overshoot = 2 * rules.top_speed_y
    low[2] = -2 * rules.ball_initial_speed_x / rules.width
    low[3] = -overshoot / rules.height
    high[3] = max(1.0, (rules.height - rules.ball_height + overshoot) / rules.height)
    excess = max(0.0, (rules.top_speed_y / rules.ball_max_speed_y - 1) / 2)
    low[5], high[5] = 0 - excess, 1 + excess
    outwards = np.float32(1e-6)  # rounding of the bounds themselves
    low, high = low.astype(np.float32), high.astype(np.float32)
    low[low != 0] -= outwards
    high[high != 1] += outwards
    return spaces.Box(low, high, dtype=np.float32)


def _state(r: Rules) -> dict[str, Field]:
    """Canonical fields, each with the values around which its rules have an edge."""
    paddles = (float(r.min_paddle_y), float(r.max_paddle_y))
    start = float(r.start_paddle_y)
    paddle = Field((), "float32", low=paddles[0], high=paddles[1], special=(*paddles, start))
    # Just touching the ends of a paddle that stands at its start or has just moved away from it.
    touching = [
        edge + move
        for edge in (start - r.ball_height, start + r.paddle_height)
        for move in (-r.paddle_speed, 0.0, r.paddle_speed)
    ]
    right, top = r.width - r.ball_width, r.height - r.ball_height
    speed_x, speed_y = r.ball_initial_speed_x, r.top_speed_y
    speeds = (0.0, FLAT_SPEED, r.ball_initial_speed_y, r.ball_speed_y_increment, r.ball_max_speed_y)
    score = Field((), "int32", low=0, high=r.max_score - 1, special=(0, r.max_score - 1))
    return {
        "paddle_yl": paddle,
        "paddle_yr": paddle,
        "ball_x": Field(
            (),
            "float32",
            low=-speed_x,
            high=right,
            special=(0.0, speed_x, float(r.start_ball_x), right - speed_x, right),
        ),
        "ball_y": Field(
            (),
            "float32",
            low=-speed_y,
            high=top + speed_y,
            special=(0.0, r.ball_max_speed_y, *touching, top - r.ball_max_speed_y, top),
        ),
        "ball_vx": Field((), "float32", low=-speed_x, high=speed_x, special=(-speed_x, speed_x)),
        "ball_vy": Field(
            (), "float32", low=-speed_y, high=speed_y, special=(*(-v for v in speeds), *speeds)
        ),
        "score_l": score,
        "score_r": score,
        "tick": Field((), "int32", low=0, high=100_000, special=(0,)),
        # What the agent saw last: not refreshed by a step whose first frame ends a round.
        "observation": Field((OBSERVATION_SIZE,), "float32", low=0.0, high=1.0),
    }
