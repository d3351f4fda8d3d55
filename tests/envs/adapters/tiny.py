"""Two small environments with everything in them that an adapter can get wrong."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from envs.adapters.vectorize import vectorize
from envs.core import (
    Array,
    Decision,
    EnvSpec,
    Field,
    FunctionalEnv,
    Metric,
    NoiseSite,
    Outcome,
    VectorFunctionalEnv,
)
from envs.noise import draw_reset_noise, draw_step_noise

GOAL, LIMIT = 6, 8


class WalkState(NamedTuple):
    position: Array
    steps: Array
    tilt: Array  # float32 [2]
    push: Array  # the last step's draw


def walk_spec(*, dict_observation: bool = False, rough: bool = False) -> EnvSpec:
    box = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    return EnvSpec(
        name="walk",
        version="1",
        parameters={"dict_observation": dict_observation, "rough": rough},
        observation_space=spaces.Dict({"all": box, "position": spaces.Discrete(GOAL + 2)})
        if dict_observation
        else box,
        action_space=spaces.Discrete(3),
        privileged_space=spaces.Box(0, 1, (), np.float32),
        has_legal_actions=True,
        truncates=True,
        max_episode_steps=LIMIT,
        metrics={"length": Metric("int32", "steps"), "tilt": Metric("float32", "sum of tilts")},
        events=("goal", "limit"),
        reset_noise={"start": NoiseSite("integers", (), 0, 3), "tilt": NoiseSite("normal", (2,))},
        step_noise={"push": NoiseSite("uniform")},
        state={
            "position": Field((), "int32"),
            "steps": Field((), "int32"),
            "tilt": Field((2,), "float32"),
            "push": Field((), "float32"),
        },
    )


class Walk(FunctionalEnv):
    """Left (illegal at 0), stay or right; terminates at GOAL, truncated at LIMIT steps.

    Its floats are exact in any compilation, except in the rough form, which is there for claims
    about bits.
    """

    State = WalkState

    def init(self, reset_noise: Any) -> WalkState:
        tilt = reset_noise.tilt
        if self.spec.parameters["rough"]:
            tilt = jnp.sin(tilt) + jnp.exp(-(tilt**2)) / 3.0
        return WalkState(reset_noise.start, jnp.int32(0), tilt, jnp.float32(0))

    def observe(self, state: WalkState) -> Decision:
        tilt = jnp.tanh(state.tilt) if self.spec.parameters["rough"] else state.tilt
        everything = jnp.stack([state.position, state.steps, *tilt])
        observation: Any = everything.astype(jnp.float32)
        if isinstance(self.spec.observation_space, spaces.Dict):
            observation = {"all": observation, "position": state.position}
        legal = jnp.array([state.position > 0, True, True])
        return Decision(observation, jnp.bool_(True), legal, state.push)

    def advance(
        self, state: WalkState, action: Array, step_noise: Any
    ) -> tuple[WalkState, Outcome]:
        position = state.position + action - 1
        change = 1.01 if self.spec.parameters["rough"] else -1.0
        state = WalkState(position, state.steps + 1, state.tilt * change, step_noise.push)
        terminated = position >= GOAL
        limit = state.steps >= LIMIT
        return state, Outcome(
            reward=position.astype(jnp.float32) + step_noise.push,
            terminated=terminated,
            truncated=limit & ~terminated,
            metrics={"length": state.steps, "tilt": state.tilt.sum()},
            invalid=jnp.bool_(False),
            events=jnp.stack([terminated, limit]),
        )


class GameState(NamedTuple):
    total: Array  # int32 [A]
    last: Array  # int32 [A], the last actions
    turn: Array
    steps: Array


def game_spec(*, agents: int = 2, simultaneous: bool = True) -> EnvSpec:
    return EnvSpec(
        name="game",
        version="1",
        parameters={"simultaneous": simultaneous},
        observation_space=spaces.Box(-100, 100, (4,), np.float32),
        action_space=spaces.Discrete(4),
        privileged_space=spaces.Box(0, 100, (agents,), np.float32),
        num_agents=agents,
        has_legal_actions=True,
        truncates=True,
        max_episode_steps=7,
        metrics={
            "score": Metric("int32", "total", per_agent=True),
            "length": Metric("int32", "steps"),
        },
        events=("won",),
        reset_noise={"first": NoiseSite("integers", (), 0, agents)},
        step_noise={"luck": NoiseSite("uniform", (agents,))},
        state={
            "total": Field((agents,), "int32"),
            "last": Field((agents,), "int32"),
            "turn": Field((), "int32"),
            "steps": Field((), "int32"),
        },
    )


class Game(FunctionalEnv):
    """Players add 0..3 to their totals (3 only to an even one); 7 ends the game.

    In the simultaneous form all act; otherwise they take turns, from ``first`` on.
    """

    State = GameState

    def init(self, reset_noise: Any) -> GameState:
        nothing = jnp.zeros(self.spec.num_agents, jnp.int32)
        return GameState(nothing, nothing, reset_noise.first, jnp.int32(0))

    def acting(self, state: GameState) -> Array:
        seats = jnp.arange(self.spec.num_agents)
        return (seats == state.turn) | self.spec.parameters["simultaneous"]

    def observe(self, state: GameState) -> Decision:
        seats = jnp.arange(self.spec.num_agents)
        steps = jnp.full_like(seats, state.steps)
        observation = jnp.stack([seats, state.total, jnp.roll(state.last, 1), steps], axis=1)
        acting = self.acting(state)
        legal = jnp.arange(4)[None] < jnp.where(state.total % 2 == 0, 4, 3)[:, None]
        legal = jnp.where(acting[:, None], legal, jnp.arange(4)[None] == 0)
        privileged = state.total.astype(jnp.float32)
        return Decision(observation.astype(jnp.float32), acting, legal, privileged)

    def advance(
        self, state: GameState, action: Array, step_noise: Any
    ) -> tuple[GameState, Outcome]:
        acting = self.acting(state)
        added = jnp.where(acting, action, 0)
        total = state.total + added
        state = GameState(
            total, added, (state.turn + 1) % self.spec.num_agents, state.steps + jnp.int32(1)
        )
        won = (total >= 7).any()
        return state, Outcome(
            reward=self.spec.num_agents * added
            - added.sum()
            + jnp.where(acting, step_noise.luck, 0.0),
            terminated=won,
            truncated=(state.steps >= 7) & ~won,
            metrics={"score": total, "length": state.steps},
            invalid=jnp.zeros(self.spec.num_agents, bool),
            events=won[None],
        )


@cache
def walk(num_envs: int, reset: str = "cond", **parameters: Any) -> VectorFunctionalEnv:
    return vectorize(Walk(walk_spec(**parameters)), num_envs, reset)


@cache
def game(num_envs: int, reset: str = "cond", **parameters: Any) -> VectorFunctionalEnv:
    return vectorize(Game(game_spec(**parameters)), num_envs, reset)


@cache
def jitted(env: VectorFunctionalEnv) -> tuple[Any, Any, Any]:
    """reset, step and observe, compiled once for each environment."""
    return jax.jit(env.reset), jax.jit(env.step), jax.jit(env.observe)


def noise(env: VectorFunctionalEnv, seed: int, step: int) -> tuple[Any, Any]:
    """StepNoise and ResetNoise of a step."""
    rows = np.arange(env.num_envs, dtype=np.uint32)
    return (
        draw_step_noise(env.spec, seed, step, rows),
        draw_reset_noise(env.spec, seed, step + 1, rows),
    )


def reset_noise(env: VectorFunctionalEnv, seed: int) -> Any:
    return draw_reset_noise(env.spec, seed, 0, np.arange(env.num_envs, dtype=np.uint32))


def actions(env: VectorFunctionalEnv, seed: int, steps: int) -> np.ndarray:
    """int32 ``[steps, N(, A)]``, a quarter of them outside the space or (perhaps) illegal."""
    rng = np.random.default_rng(seed)
    n = env.spec.action_space.n
    return rng.integers(-1, n + 1, (steps, *env.spec.rows(env.num_envs)), dtype=np.int32)


def play(
    env: VectorFunctionalEnv, seed: int, steps: int
) -> Iterator[tuple[Any, Decision, Outcome]]:
    """(state, decision, outcome) after each step of a jitted run with :func:`actions`."""
    reset, step, _ = jitted(env)
    state, _ = reset(reset_noise(env, seed))
    for t, action in enumerate(actions(env, seed, steps)):
        state, decision, outcome = step(state, action, *noise(env, seed, t))
        yield state, decision, outcome


def rows_of(tree: Any, rows: Any) -> Any:
    """The same rows of every leaf ``[N, ...]``, as NumPy."""
    return jax.tree.map(lambda x: np.asarray(x)[rows], tree)


def assert_equal(a: Any, b: Any) -> None:
    """Same structure, shapes, dtypes and bits."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for (path, x), y in zip(
        jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True
    ):
        x, y = np.asarray(x), np.asarray(y)
        assert (x.shape, x.dtype) == (y.shape, y.dtype), jax.tree_util.keystr(path)
        np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))


def masked(outcome: Outcome) -> Outcome:
    """With ``final`` and ``metrics`` cut down to the rows in which an episode ended."""
    ended = np.asarray(outcome.terminated | outcome.truncated)
    return outcome._replace(
        final=rows_of(outcome.final, ended), metrics=rows_of(outcome.metrics, ended)
    )
