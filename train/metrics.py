"""One facade for everything a run reports: progress bar, metrics.jsonl, Weights & Biases."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from envs.core import MissingDependency
from train.config import ConfigError


class RunLogger:
    """Context manager around a run's training.

    ``metrics.jsonl`` gets one flushed line per call of :meth:`log`, so a run that dies leaves
    what it had. Keys are ``group/name``.

    Args:
        total_steps: environment steps at which the bar is full.
        wandb: settings for Weights & Biases, or None.
        config: stored with the W&B run.
    """

    def __init__(
        self,
        run_dir: Path,
        total_steps: int,
        console: Console,
        wandb: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._wandb = None if wandb is None else _start_wandb(run_dir, wandb, config or {})
        self._file = open(run_dir / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("training", total=total_steps, status="compiling")
        self._started = time.time()

    def log(self, env_steps: int, metrics: Mapping[str, float], status: str) -> None:
        """One line of figures at a step count; non-finite ones are written as null."""
        clean = {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        line = dict(env_steps=env_steps, seconds=round(time.time() - self._started, 3), **clean)
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        if self._wandb is not None:
            self._wandb.log(dict(clean, env_steps=env_steps))
        self._progress.update(self._task, completed=env_steps, status=status)

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Final figures for W&B (summary.json is the run's own)."""
        if self._wandb is not None:
            self._wandb.summary.update(dict(summary))

    def pause(self) -> None:
        """Take the bar off the screen: training is over, W&B stays open for the summary."""
        self._progress.stop()

    def __enter__(self) -> RunLogger:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()
        self._file.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=0 if kind is None else 1)


def require_wandb() -> Any:
    """The wandb module, or MissingDependency with the command that installs it."""
    try:
        import wandb
    except ImportError:
        raise MissingDependency(
            "logger=wandb needs the package wandb; install it with: make setup"
        ) from None
    return wandb


def _start_wandb(run_dir: Path, settings: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    try:
        run = require_wandb().init(
            dir=str(run_dir), name=run_dir.name, config=dict(config), **dict(settings)
        )
    except MissingDependency:
        raise
    except Exception as error:  # wandb has many kinds: no login, a mode that doesn't exist, ...
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"wandb did not start: {reason}; see logger.mode") from error
    run.define_metric("env_steps")
    run.define_metric("*", step_metric="env_steps")
    return run


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a last line that a killed run left unfinished is skipped."""
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
