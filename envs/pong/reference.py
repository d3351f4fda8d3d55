"""PufferLib's C Pong itself: the plain build for training, the tape build for verification.

The C code owns one random stream for the whole process (glibc's rand): several PongReference
environments in one process draw from it in turn, and creating or resetting one reseeds it for
all. PongTape has no such tie: each row's draws come from the caller.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from envs.batched import BatchedEnv
from envs.core import Capabilities, Decision, EnvSpec, LifecycleError, Outcome
from envs.pong import native_build
from envs.pong.contract import OBSERVATION_SIZE
from envs.sealing import seal, unseal
from envs.simulator import Simulator

_REALS = ("paddle_yl", "paddle_yr", "ball_x", "ball_y", "ball_vx", "ball_vy")
_COUNTS = ("score_l", "score_r", "tick")
_ALIGNMENT = 64  # bytes: a cache line, and the widest vector load


def _aligned(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Zeros whose first byte lies on a 64-byte boundary."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


class _Games:
    """N of the C structs, and the buffers that they write into."""

    def __init__(self, module: ModuleType, spec: EnvSpec, num_envs: int) -> None:
        self.name, self.num_envs = spec.name, num_envs
        self.observation = _aligned((num_envs, OBSERVATION_SIZE), np.float32)
        self.actions = _aligned((num_envs,), np.float32)
        self.rewards = _aligned((num_envs,), np.float32)
        self.terminals = _aligned((num_envs,), np.uint8)
        self.truncations = _aligned((num_envs,), np.uint8)  # the C code never touches it
        self._lock = threading.Lock()
        self.handle = module.vec_init(
            self.observation,
            self.actions,
            self.rewards,
            self.terminals,
            self.truncations,
            num_envs,
            0,  # seed; each reset sets its own
            continuous=0,
            **spec.parameters,
        )
        self.acting = np.ones(num_envs, bool)
        self.nothing = np.zeros(num_envs, bool)
        # Of games that ended in the last step: score_l, score_r, tick.
        self.final_counts = _aligned((num_envs, len(_COUNTS)), np.int32)
        self.difference = _aligned((num_envs,), np.int32)
        # Frees the structs on close, or when nobody holds the environment any more.
        self._free = weakref.finalize(self, module.vec_close, self.handle)

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """One call of the C code on these structs, which nobody frees meanwhile.

        Raises:
            LifecycleError: another thread has closed the environment since it was asked.
        """
        with self._lock:
            if not self._free.alive:
                raise LifecycleError(f"{self.name}: used after close")
            function(self.handle, *arguments)

    def close(self) -> None:
        with self._lock:
            self._free()

    def decision(self) -> Decision:
        return Decision(self.observation, self.acting)

    def outcome(self, final: Decision | None = None) -> Outcome:
        left, right, ticks = self.final_counts.T
        metrics = dict(
            score_difference=self.difference,
            score_right=right,
            score_left=left,
            last_round_steps=ticks,
        )
        return Outcome(
            reward=self.rewards,
            terminated=self.terminals.view(bool),
            truncated=self.nothing,
            metrics=metrics,
            invalid=self.nothing,
            final=final,
        )

    def count_points(self) -> None:
        """Bring ``difference`` up to date with ``final_counts``."""
        np.subtract(self.final_counts[:, 1], self.final_counts[:, 0], out=self.difference)

    def read(self) -> dict[str, np.ndarray]:
        """Canonical fields, copied out of the structs."""
        reals = np.empty((self.num_envs, len(_REALS)), np.float32)
        counts = np.empty((self.num_envs, len(_COUNTS)), np.int32)
        self.call(native_build.driver().pong_read, _address(reals), _address(counts))
        fields = dict(zip(_REALS, reals.T, strict=True)) | dict(zip(_COUNTS, counts.T, strict=True))
        return fields | {"observation": self.observation.copy()}

    def write(self, fields: Mapping[str, np.ndarray]) -> None:
        reals = np.stack([fields[name] for name in _REALS], axis=1).astype(np.float32)
        counts = np.stack([fields[name] for name in _COUNTS], axis=1).astype(np.int32)
        self.call(native_build.driver().pong_write, _address(reals), _address(counts))
        self.observation[:] = fields["observation"]


def _address(array: np.ndarray) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


class PongReference(BatchedEnv):
    """PufferLib's vector environment, its own draws, its own reset inside the step.

    Raises:
        MissingDependency: the C code is not built.
    """

    capabilities = Capabilities(
        final_on_termination=False,
        set_state=False,
        snapshot=False,
        events=False,
        independent_rows=False,
    )

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        super().__init__(spec, num_envs)
        self._module = native_build.binding(native_build.PLAIN)
        self._take_log = native_build.driver().pong_take_log
        self._games = games = _Games(self._module, spec, self.num_envs)
        self._log = (_address(games.terminals), _address(games.final_counts))
        self._record, self._result = games.decision(), games.outcome()

    def _reset(self, seed: int) -> Decision:
        self._games.call(self._module.vec_reset, seed)
        return self._record

    def _step(self, actions: np.ndarray) -> tuple[Decision, Outcome]:
        games = self._games
        games.actions[:] = actions
        games.call(self._module.vec_step)
        if games.terminals.any():
            games.call(self._take_log, *self._log)
            games.count_points()
        return self._record, self._result

    def _close(self) -> None:
        self._games.close()


class PongTape(Simulator):
    """The same C source with every draw from outside, and what it showed before each reset.

    ``taps()["draws"]`` is how many draws each row took in the last reset or step.
    """

    capabilities = Capabilities(events=False)

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        super().__init__(spec, num_envs)
        self._driver = native_build.driver()
        self._games = _Games(native_build.binding(native_build.TAPE), spec, self.num_envs)
        self._final = _aligned((self.num_envs, OBSERVATION_SIZE), np.float32)
        self._draws = np.zeros(self.num_envs, np.int32)

    def taps(self) -> dict[str, np.ndarray]:
        return {"draws": self._draws.copy()}

    def _reset(self, reset_noise: Any) -> Decision:
        serve = np.ascontiguousarray(reset_noise.serve)
        self._draws[:] = 0
        self._games.call(self._driver.tape_reset, _address(serve), _address(self._draws))
        return self._own(self._games.decision())

    def _step(
        self, actions: np.ndarray, step_noise: Any, reset_noise: Any
    ) -> tuple[Decision, Outcome]:
        games = self._games
        games.actions[:] = actions
        step_serve = np.ascontiguousarray(step_noise.serve)
        reset_serve = np.ascontiguousarray(reset_noise.serve)
        self._draws[:] = 0
        games.call(
            self._driver.tape_step,
            _address(step_serve),
            _address(reset_serve),
            _address(self._draws),
            _address(self._final),
            _address(games.final_counts),
        )
        games.count_points()
        final = Decision(self._final, games.acting)
        return self._own(games.decision()), self._own(games.outcome(final))

    def _own(self, value: Any) -> Any:
        """The same record with arrays that belong to the caller."""
        if isinstance(value, np.ndarray):
            return value.copy()
        if isinstance(value, dict):
            return {name: self._own(item) for name, item in value.items()}
        return None if value is None else type(value)(*(self._own(item) for item in value))

    def _get_state(self) -> Mapping[str, np.ndarray]:
        return self._games.read()

    def _set_state(self, fields: dict[str, np.ndarray]) -> Decision:
        self._games.write(fields)
        return self._own(self._games.decision())

    def _snapshot(self) -> bytes:
        structs = np.empty((self.num_envs, self._driver.pong_size()), np.uint8)
        self._games.call(self._driver.pong_save, _address(structs))
        content = structs.tobytes() + self._games.observation.tobytes()
        return seal(self._identity(), content)

    def _restore(self, data: bytes) -> Decision:
        try:
            content = unseal(self._identity(), data)
        except ValueError as error:
            raise ValueError(f"{self.spec.name}: {error}") from None
        size = self.num_envs * self._driver.pong_size()
        structs = np.frombuffer(content, np.uint8, size)
        seen = np.frombuffer(content, np.float32, offset=size)
        self._games.call(self._driver.pong_load, _address(structs))
        self._games.observation[:] = seen.reshape(self.num_envs, OBSERVATION_SIZE)
        return self._own(self._games.decision())

    def _identity(self) -> str:
        return f"{self.spec.digest} pong tape {self._driver.pong_size()} {self.num_envs}"

    def _close(self) -> None:
        self._games.close()
