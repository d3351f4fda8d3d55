"""What one would rather look at: the learning curve and one game."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np

import envs
from envs.simulator import Simulator
from train.checkpoint import TrainedPolicy
from train.evaluation import Actor, rollout
from train.metrics import read_metrics


def plot_learning_curve(run_dir: Path, metric: str) -> Path:
    """plots/learning_curve.png: return and the environment's headline metric over steps."""
    from matplotlib.figure import Figure  # no pyplot: no global state, no display

    rows = read_metrics(run_dir)
    names = ["episodes/return_mean"]
    if metric not in ("return", "length"):
        names.append(f"episodes/{metric}_mean")
    figure = Figure(figsize=(5 * len(names), 3.4), layout="constrained")
    for axis, name in zip(np.atleast_1d(figure.subplots(1, len(names))), names, strict=True):
        points = [(r["env_steps"], r[name]) for r in rows if r.get(name) is not None]
        if points:
            steps, values = zip(*points, strict=True)
            axis.plot(np.array(steps) / 1e6, values, linewidth=1.5)
        axis.set_xlabel("environment steps (millions)")
        axis.set_ylabel(name.removeprefix("episodes/").replace("_", " "))
        axis.grid(alpha=0.3)
    path = run_dir / "plots" / "learning_curve.png"
    path.parent.mkdir(exist_ok=True)
    figure.suptitle(run_dir.name, fontsize=9)
    figure.savefig(path, dpi=120)
    return path


def record_game(
    path: Path, trained: TrainedPolicy, sim: Simulator, *, seed: int, max_frames: int = 240
) -> Path | None:
    """A GIF of one greedy game, thinned to ``max_frames``; None where the room has no renderer.

    Args:
        sim: one row; its canonical state is drawn after each step.
    """
    render = envs.renderer(trained.spec.name)
    if render is None:
        return None
    actor = Actor(trained, 1, greedy=True, seed=seed)
    frames: list[Any] = []
    for _, _, outcome in rollout(actor, sim, seed):
        if outcome.ended[0] or len(frames) >= 20_000:
            break
        # Still the state that the step led to: the generator makes the next one only when asked.
        frames.append(render({k: v[0] for k, v in sim.get_state().items()}, trained.spec))
    if not frames:
        return None
    kept = frames[:: max(1, -(-len(frames) // max_frames))]
    imageio.imwrite(path, np.stack(kept), extension=".gif", duration=50, loop=0)
    return path
