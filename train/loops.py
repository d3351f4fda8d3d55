"""Training by stretches: one face for the fused program and the host loop, clocks included."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from envs.batched import BatchedEnv
from train.config import RunConfig
from train.env_share import NullBatched, NullEnv, measure_share
from train.episodes import EpisodeTotals, merge_totals
from train.host_loop import HostTrainer
from train.ppo_jax import PPO, FusedTrainer, LearnerState

PIECE_SECONDS = 1.0
SHARE_SECONDS = 0.4  # length of one timed repetition of the environment-share measurement


class Stretch(NamedTuple):
    """Some updates: the learner after them, their mean metrics, totals of their episodes."""

    learner: LearnerState
    updates: int
    metrics: dict[str, float]
    totals: EpisodeTotals

    def followed_by(self, later: Stretch) -> Stretch:
        """Both stretches as one."""
        updates = self.updates + later.updates
        share = later.updates / updates
        metrics = {k: (1 - share) * v + share * later.metrics[k] for k, v in self.metrics.items()}
        totals = merge_totals(self.totals, later.totals)
        return Stretch(later.learner, updates, metrics, totals)


class Loop(Protocol):
    """What a run needs of a training loop."""

    compile_seconds: float

    @property
    def steps_per_second(self) -> float:
        """Environment steps per second of training, compilation left out."""

    def advance(self, updates: int) -> Stretch:
        """Train for some updates, at least one."""

    def time_split(self) -> dict[str, float]:
        """Shares of the time so far by phase; empty where one program does everything."""

    def share(self) -> dict[str, Any]:
        """The environment's share of training time, as entries of the summary."""


def make_loop(ppo: PPO, env: Any, config: RunConfig) -> Loop:
    """The host loop for NumPy environments, the fused program for functional ones."""
    kind = HostLoop if isinstance(env, BatchedEnv) else FusedLoop
    return kind(ppo, env, config)


class _ClockedLoop:
    """What both loops count: updates so far and the seconds that they took."""

    def __init__(self, ppo: PPO, env: Any, config: RunConfig) -> None:
        self._ppo, self._env, self._config = ppo, env, config
        self._seconds, self._updates = 0.0, 0

    @property
    def steps_per_second(self) -> float:
        return self._updates_per_second * self._config.steps_per_update

    @property
    def _updates_per_second(self) -> float:
        return self._updates / max(self._seconds, 1e-9)

    def _count(self, updates: int, started: float) -> None:
        self._seconds += time.perf_counter() - started
        self._updates += updates

    def _updates_in(self, seconds: float) -> int:
        """As many as fit at the rate so far, at least one."""
        return max(1, int(self._updates_per_second * seconds))


class FusedLoop(_ClockedLoop):
    """Stretches of the fused trainer; one compiled program serves them all."""

    def __init__(self, ppo: PPO, env: Any, config: RunConfig) -> None:
        super().__init__(ppo, env, config)
        self.compile_seconds = 0.0
        self._state, self._program = self._compiled(FusedTrainer(ppo, env), config.seed)

    def advance(self, updates: int) -> Stretch:
        """In pieces of about a second, so that an interrupt is never far from a piece's end."""
        stretch: Stretch | None = None
        left = updates
        while left:
            size = min(left, self._updates_in(PIECE_SECONDS))
            piece = self._piece(size)
            stretch = piece if stretch is None else stretch.followed_by(piece)
            left -= size
        assert stretch is not None
        return stretch

    def _piece(self, updates: int) -> Stretch:
        started = time.perf_counter()
        state, metrics, totals = jax.block_until_ready(
            self._program(self._state, np.int32(updates))
        )
        self._count(updates, started)
        self._state = state
        host_metrics = {k: float(v) for k, v in jax.device_get(metrics).items()}
        # The next piece is given the state's buffers: what leaves this class is a copy.
        return Stretch(jax.device_get(state.learner), updates, host_metrics, jax.device_get(totals))

    def time_split(self) -> dict[str, float]:
        return {}

    def share(self) -> dict[str, Any]:
        updates = self._updates_in(SHARE_SECONDS)
        null = self._compiled(FusedTrainer(self._ppo, NullEnv(self._env)), self._config.seed)

        def repeat(state: Any, program: Any) -> Callable[[], None]:
            held = [state]

            def run() -> None:
                held[0] = jax.block_until_ready(program(held[0], np.int32(updates)))[0]

            return run

        copy = jax.tree.map(jnp.copy, self._state)
        return _share_entries(measure_share(repeat(copy, self._program), repeat(*null)))

    def _compiled(self, trainer: FusedTrainer, seed: int) -> tuple[Any, Any]:
        """A fresh state and the program of its chunks."""
        started = time.perf_counter()
        state = trainer.init(seed)
        program = trainer.compile(state)
        self.compile_seconds += time.perf_counter() - started
        return state, program


class HostLoop(_ClockedLoop):
    """Stretches of the host loop."""

    def __init__(self, ppo: PPO, env: BatchedEnv, config: RunConfig) -> None:
        super().__init__(ppo, env, config)
        self._trainer = HostTrainer(ppo, env, config.seed)
        self.compile_seconds = self._trainer.compile_seconds

    def advance(self, updates: int) -> Stretch:
        started = time.perf_counter()
        metrics, totals = self._trainer.chunk(updates)
        self._count(updates, started)
        return Stretch(self._trainer.learner, updates, metrics, totals)

    def time_split(self) -> dict[str, float]:
        total = max(sum(self._trainer.seconds.values()), 1e-9)
        return {phase: seconds / total for phase, seconds in self._trainer.seconds.items()}

    def share(self) -> dict[str, Any]:
        split = self.time_split()
        updates = self._updates_in(SHARE_SECONDS)
        null_env = NullBatched(self._env, self._trainer.decision)
        null = HostTrainer(self._ppo, null_env, self._config.seed)
        measured = measure_share(lambda: self._trainer.chunk(updates), lambda: null.chunk(updates))
        return dict(_share_entries(measured), time_split=split)


def _share_entries(measured: Mapping[str, Any]) -> dict[str, Any]:
    return dict(
        env_share=measured["share"],
        env_share_ci95=measured["ci95"],
        env_share_below_noise=measured["below_noise"],
        env_share_method="null environment",
        env_share_repeats=measured["repeats"],
    )
