"""Pong in JAX, float32. The rules first, the shell that the contract asks for below.

Bit-exact with the C code: every product here is by 0, 1 or -1, so that fusing it with an addition
cannot change a bit, and divisions stay divisions (see ``divide``). The contract's rules are floats
that float32 holds exactly; a half, a sum or a difference of them, made in float64 and rounded to
float32, is what float32 arithmetic gives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from envs.core import Array, Decision, EnvSpec, FunctionalEnv, Outcome
from envs.pong import contract as c

# The C code compares with the double 0.01; this is the largest float32 below that.
_FLAT_SPEED = np.float32(c.FLAT_SPEED)

# How a step stands, a float so that it shares an array with the table.
_PLAYING, _RETURNED, _WON, _LOST = 0.0, 1.0, 2.0, 3.0  # returned: the agent hit the ball
_AT_ONCE = 4.0  # added where the point fell in the step's first frame


class Table(NamedTuple):
    """What moves; float32 each."""

    paddle_yl: Array
    paddle_yr: Array
    ball_x: Array
    ball_y: Array
    ball_vx: Array
    ball_vy: Array


def move(table: Table, direction: Array, r: c.Rules) -> tuple[Table, dict[str, Array]]:
    """Paddles, then the ball, then the walls above and below.

    Args:
        direction: float32, of the agent's paddle: 1 up, -1 down, 0 still.

    Returns:
        The table, and which of the contract's events fired.
    """
    right = table.paddle_yr + r.paddle_speed * direction
    # It follows the ball's lower edge, not its middle.
    to_ball = table.ball_y - (table.paddle_yl + r.paddle_height / 2)
    left = table.paddle_yl + clamp(to_ball, -r.paddle_speed, r.paddle_speed)
    x, y = table.ball_x + table.ball_vx, table.ball_y + table.ball_vy
    bottom, top = y < 0, y + r.ball_height > r.height  # the ball turns but is not moved back
    yl, yr = (clamp(paddle, r.min_paddle_y, r.max_paddle_y) for paddle in (left, right))
    vy = jnp.where(bottom | top, -table.ball_vy, table.ball_vy)
    events = dict(
        wall_bottom=bottom,
        wall_top=top,
        paddle_left_clamped=yl != left,
        paddle_right_clamped=yr != right,
    )
    return Table(yl, yr, x, y, table.ball_vx, vy), events


def sides(table: Table, direction: Array, r: c.Rules) -> tuple[Table, dict[str, Array]]:
    """What happens at the left and right edge; where a point is made the table means nothing."""
    yl, yr, x, y, vx, vy = table
    # Never both: the ball fits into the field.
    left, right = x < 0, x + r.ball_width > r.width
    hit_left = left & overlap(y, yl, r)
    hit_right = right & overlap(y, yr, r)
    sliced = vy + r.ball_speed_y_increment * direction
    limited = clamp(sliced, -r.ball_max_speed_y, r.ball_max_speed_y)
    flat = jnp.abs(limited) <= _FLAT_SPEED
    after = Table(
        paddle_yl=yl,
        paddle_yr=yr,
        ball_x=jnp.where(hit_right, clamp(x, 0.0, r.width - r.ball_width), x),
        ball_y=jnp.where(hit_right, clamp(y, 0.0, r.height - r.ball_height), y),
        ball_vx=jnp.where(hit_left | hit_right, -vx, vx),
        ball_vy=jnp.where(hit_right, jnp.where(flat, r.ball_speed_y_increment, limited), vy),
    )
    events = dict(
        hit_left=hit_left,
        hit_right=hit_right,
        speed_limited=hit_right & (limited != sliced),
        flat_avoided=hit_right & flat,
        ball_pushed_inside=after.ball_y != y,
        point_left=right & ~hit_right,
        point_right=left & ~hit_left,
    )
    return after, events


def overlap(ball_y: Array, paddle_y: Array, r: c.Rules) -> Array:
    return (ball_y + r.ball_height > paddle_y) & (ball_y < paddle_y + r.paddle_height)


def clamp(value: Array, low: Array | float, high: Array | float) -> Array:
    return jnp.minimum(jnp.maximum(value, low), high)


def divide(value: Array, divisor: np.float32) -> Array:
    """A division that XLA cannot turn into a product with the reciprocal, which is 1 ulp off.

    A constant behind an optimization barrier is not enough: under vmap it stays a scalar that is
    broadcast, and that is rewritten too. This divisor depends on the value.
    """
    return value / (value * 0 + divisor)


class PongState(NamedTuple):
    """The canonical fields: what moves, the score, and what the agent saw last."""

    paddle_yl: Array
    paddle_yr: Array
    ball_x: Array
    ball_y: Array
    ball_vx: Array
    ball_vy: Array
    score_l: Array  # int32
    score_r: Array  # int32, the agent's
    tick: Array  # int32, steps of this round
    observation: Array  # float32 [8]


class Pong(FunctionalEnv):
    State = PongState

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self._rules = c.rules_of(spec)

    def init(self, reset_noise: Any) -> PongState:
        table, zero = self._start_round(reset_noise.serve), jnp.int32(0)
        return PongState(*table, zero, zero, zero, self._look(table))

    def observe(self, state: PongState) -> Decision:
        return Decision(state.observation, acting=jnp.bool_(True))

    def advance(
        self, state: PongState, action: Array, step_noise: Any
    ) -> tuple[PongState, Outcome]:
        table, standing, fired = self._play(Table(*state[:6]), action)
        at_once = standing >= _AT_ONCE
        standing = jnp.where(at_once, standing - _AT_ONCE, standing)
        won, lost = standing == _WON, standing == _LOST
        point = won | lost
        score_l, score_r = state.score_l + lost, state.score_r + won
        over = point & ((score_l == self._rules.max_score) | (score_r == self._rules.max_score))
        observation = jnp.where(at_once, state.observation, self._look(table))
        tick = state.tick + 1
        start = self._start_round(step_noise.serve)
        table = Table(*(jnp.where(point, new, old) for new, old in zip(start, table, strict=True)))
        after = PongState(*table, score_l, score_r, jnp.where(point, 0, tick), observation)
        return after, Outcome(
            reward=_reward(standing),
            terminated=over,
            truncated=jnp.bool_(False),
            metrics=dict(
                score_difference=score_r - score_l,
                score_right=score_r,
                score_left=score_l,
                last_round_steps=tick,
            ),
            invalid=jnp.bool_(False),
            events=self._events(fired, stale_observation=at_once, game_over=over),
        )

    def _play(self, table: Table, action: Array) -> tuple[Table, Array, dict[str, Array]]:
        """The frames of one step, up to a point if there is one.

        Returns:
            The table after the last frame without a point, the standing, the events.
        """
        r = self._rules
        direction = jnp.where(action == c.UP, 1.0, jnp.where(action == c.DOWN, -1.0, 0.0))
        direction = direction.astype(jnp.float32)

        def frame(number: Array, carry: tuple[Array, dict]) -> tuple[Array, dict]:
            packed, fired = carry
            before, standing = Table(*(packed[i] for i in range(6))), packed[6]
            after, moved = move(before, direction, r)
            after, met = sides(after, direction, r)
            events = moved | met
            playing = standing < _WON
            events = {name: playing & event for name, event in events.items()}
            point = jnp.where(events["point_right"], _WON, _LOST) + jnp.where(
                number == 0, _AT_ONCE, 0.0
            )
            scored = events["point_right"] | events["point_left"]
            standing = jnp.where(events["hit_right"], _RETURNED, standing)
            standing = jnp.where(scored, point, standing)
            keep = playing & ~scored
            table = [jnp.where(keep, new, old) for new, old in zip(after, before, strict=True)]
            fired = {name: fired[name] | event for name, event in events.items()}
            return jnp.stack([*table, standing]), fired

        # One array, not seven: XLA on CPU copies each carried array in each iteration. Unrolled,
        # the frames would not compile in minutes.
        packed = jnp.stack([*table, jnp.float32(_PLAYING)])
        fired = {name: jnp.bool_(False) for name in _FRAME_EVENTS}
        packed, fired = lax.fori_loop(0, self._rules.frameskip, frame, (packed, fired))
        return Table(*(packed[i] for i in range(6))), packed[6], fired

    def _start_round(self, serve: Array) -> Table:
        """Paddles in the middle, the ball on its way to the agent, flat or a little downwards."""
        r = self._rules
        return Table(
            paddle_yl=jnp.float32(r.start_paddle_y),
            paddle_yr=jnp.float32(r.start_paddle_y),
            ball_x=jnp.float32(r.start_ball_x),
            ball_y=jnp.float32(r.start_ball_y),
            ball_vx=jnp.float32(r.ball_initial_speed_x),
            ball_vy=(serve - 1).astype(jnp.float32) * np.float32(r.ball_initial_speed_y),
        )

    def _look(self, table: Table) -> Array:
        """Observation ``[8]``; the scores in it are whole divisions by max_score, so always 0."""
        offsets, divisors = self._rules.observation_offsets, self._rules.observation_divisors
        seen = [divide(v + o, d) for v, o, d in zip(table, offsets, divisors, strict=True)]
        return jnp.stack([*seen, jnp.float32(0), jnp.float32(0)])

    @staticmethod
    def _events(fired: dict[str, Array], **after: Array) -> Array:
        return jnp.stack([(fired | after)[name] for name in c.EVENTS])


_FRAME_EVENTS = tuple(n for n in c.EVENTS if n not in ("stale_observation", "game_over"))


def _reward(standing: Array) -> Array:
    """The last event of the step counts: a point overwrites a hit."""
    reward = jnp.where(standing == _RETURNED, c.HIT_REWARD, 0.0)
    reward = jnp.where(standing == _WON, c.WIN_REWARD, reward)
    return jnp.where(standing == _LOST, c.LOSS_REWARD, reward).astype(jnp.float32)
