"""Other projects to be measured against: a virtual environment of their own, a child process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from envs.core import MissingDependency

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "build" / "bench-peers"
PACKAGES = ("rejax==0.1.3", "gymnax==0.0.9")


def peer_python() -> Path:
    """The interpreter of the peers' environment, which is made when it isn't there.

    Raises:
        MissingDependency: uv is missing or the installation failed.
    """
    python, stamp = PEERS / "bin" / "python", PEERS / "installed"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == "\n".join(PACKAGES):
        return python
    uv = Path(sys.executable).parent / "uv"
    # The same jax as ours, so that the trainers are compared and not the compilers.
    pins = [f"{name}=={version(name)}" for name in ("jax", "jaxlib", "flax", "optax")]
    for command in (
        [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, PEERS],
        [uv, "pip", "install", "--quiet", "--python", python, *PACKAGES, *pins],
    ):
        try:
            subprocess.run([str(word) for word in command], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise MissingDependency(f"the benchmark's peers can't be installed: {error}") from error
    stamp.write_text("\n".join(PACKAGES), encoding="utf-8")
    return python


class Peer:
    """A child process that announces itself with one JSON line and then answers ``run`` lines.

    Args:
        xla_flags: the child's XLA_FLAGS, whole.

    Raises:
        MissingDependency: the child ended before it was ready.
    """

    def __init__(
        self, python: Path, script: Path, config: Mapping[str, Any], xla_flags: str
    ) -> None:
        self._process = subprocess.Popen(
            [str(python), str(script), json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "XLA_FLAGS": xla_flags},
        )
        self.announced = self._read()

    def run(self) -> float:
        """One run; the child's own seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        return float(self._read()["seconds"])

    def close(self) -> None:
        """End the child: it stops at the end of its input."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise MissingDependency(f"the benchmark's peer ended with {self._process.wait()}")
        return dict(json.loads(line))
