"""A trained policy as one file: safetensors with everything needed to act, nothing else.

Tensors are named ``params/...`` and ``statistics/...``; kernels are ``[in, out]``. The metadata
names the environment, its contract's digest, and the model, so a policy never meets a foreign
environment unnoticed. Other frameworks read the file with their own safetensors binding.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

import envs
from envs.core import EnvSpec
from train.normalize import RunningStatistics
from train.policies.policy import MLPPolicy, ModelConfig

FORMAT = "1"


class PolicyFileError(ValueError):
    """A policy file that is missing, damaged, or of another contract; says what to do."""


class TrainedPolicy(NamedTuple):
    """A policy with its parameters; ``statistics`` is None without normalisation."""

    spec: EnvSpec
    policy: MLPPolicy
    params: Any
    statistics: RunningStatistics | None


def save_policy(path: Path, trained: TrainedPolicy) -> None:
    """Write the file atomically: readers see the old one or the new one, never a part."""
    tensors = {f"params/{k}": v for k, v in flatten_dict(trained.params, sep="/").items()}
    if trained.statistics is not None:
        tensors |= {f"statistics/{k}": v for k, v in trained.statistics._asdict().items()}
    metadata = dict(
        format=FORMAT,
        env=trained.spec.name,
        parameters=json.dumps(dict(trained.spec.parameters)),
        digest=trained.spec.digest,
        model=json.dumps(asdict(trained.policy.config)),
    )
    arrays = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    write_atomically(path, save(arrays, metadata))


def load_policy(path: Path) -> TrainedPolicy:
    """Read a file of :func:`save_policy`.

    Raises:
        PolicyFileError: missing or damaged file, or a contract that has changed since.
    """
    if not path.is_file():
        raise PolicyFileError(f"no policy at {path}; give the folder of a finished run")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata["format"] != FORMAT:
            raise ValueError(f"format {metadata['format']!r}, this version reads {FORMAT!r}")
        spec = envs.make_spec(metadata["env"], **json.loads(metadata["parameters"]))
        digest = metadata["digest"]
        policy = MLPPolicy(spec, ModelConfig(**json.loads(metadata["model"])))
        expected = jax.eval_shape(policy.init, 0)
    except (SafetensorError, KeyError, ValueError, TypeError, OSError) as error:
        raise PolicyFileError(f"{path} is not a readable policy file ({error})") from error
    if spec.digest != digest:
        raise PolicyFileError(
            f"{path} was trained under another contract of {spec.name} "
            f"({digest[:12]}, now {spec.digest[:12]}); train it again"
        )
    named = unflatten_dict(tensors, sep="/")
    params, statistics = named.get("params", {}), named.get("statistics")
    wanted = {k: (v.shape, v.dtype) for k, v in flatten_dict(expected, sep="/").items()}
    if wanted != {k: (v.shape, v.dtype) for k, v in flatten_dict(params, sep="/").items()}:
        raise PolicyFileError(f"{path}: its tensors are not those of a {policy.config.name} policy")
    if not all(np.isfinite(x).all() for x in tensors.values()):
        raise PolicyFileError(f"{path} holds numbers that are not finite")
    if statistics is not None:
        statistics = RunningStatistics(**jax.tree.map(jnp.asarray, statistics))
    return TrainedPolicy(spec, policy, jax.tree.map(jnp.asarray, params), statistics)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file in one step, on disk before it gets its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
