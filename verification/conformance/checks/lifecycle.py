"""Order of calls: no step before a reset, nothing after close, no seed that isn't one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from envs.core import EnvSpec, LifecycleError
from verification.conformance.check import NUMPY_FACES, check
from verification.conformance.context import Context
from verification.conformance.play import begin

BAD_SEEDS = (-1, 2**32, 1.5, "7", None)


def _refused(call: Callable[[], Any], kind: type[Exception], what: str) -> Iterator[str]:
    try:
        call()
    except kind:
        return
    except Exception as error:
        yield f"{what} raised {type(error).__name__} ({error}), not {kind.__name__}"
    else:
        yield f"{what} was accepted, instead of a {kind.__name__}"


@check(*NUMPY_FACES)
def lifecycle(context: Context) -> Iterator[str]:
    """Are a step before reset, and any use after close, refused by a LifecycleError?"""
    env, tape = context.target.make(1), context.tape.with_rows([0])
    noise = (tape.step_noise(0), tape.reset_noise(1)) if context.is_simulator() else ()
    actions = _some_actions(context.spec)
    yield from _refused(lambda: env.step(actions, *noise), LifecycleError, "step before reset")
    begin(env, tape)
    if not context.is_simulator():
        for seed in BAD_SEEDS:
            yield from _refused(partial(env.reset, seed), ValueError, f"seed {seed!r}")
    env.close()
    env.close()
    yield from _refused(lambda: env.step(actions, *noise), LifecycleError, "step after close")
    yield from _refused(lambda: begin(env, tape), LifecycleError, "reset after close")


def _some_actions(spec: EnvSpec) -> np.ndarray:
    space = spec.action_space
    dtype = np.float32 if np.dtype(space.dtype).kind == "f" else np.int32
    return np.zeros((*spec.rows(1), *space.shape), dtype)
