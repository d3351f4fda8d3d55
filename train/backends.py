"""A trained policy on every backend of its environment, and what the gap between them is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

import envs
from envs.batched import BatchedEnv
from envs.core import MissingDependency
from envs.simulator import Simulator
from train.checkpoint import TrainedPolicy
from train.config import EvalConfig, GapConfig
from train.evaluation import EpisodeResults, play_episodes
from train.machine import device
from verification.statistics import compare


@dataclass
class Judged:
    """Results by resolved backend name, and the two comparisons of a port with the reference.

    ``gap`` compares independent episodes, the reference under its own generator; ``gap_matched``
    pairs episodes with equal starts and noise. Either is None where it could not be made, and
    ``notes`` says why.
    """

    results: dict[str, EpisodeResults] = field(default_factory=dict)
    gap: dict[str, Any] | None = None
    gap_matched: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    def episode_rows(self) -> dict[str, Any]:
        """Per-episode figures for scripts: backend -> name -> list."""
        return {
            backend: dict(
                returns=r.returns.tolist(),
                lengths=r.lengths.tolist(),
                finished=r.finished.tolist(),
                **{
                    name: [None if np.isnan(v) else v for v in values.tolist()]
                    for name, values in r.metrics.items()
                },
            )
            for backend, r in self.results.items()
        }


def evaluate_on(
    trained: TrainedPolicy,
    backend: str,
    config: EvalConfig,
    console: Console,
    interface: str | None = None,
) -> EpisodeResults:
    """First episodes on one backend, with a progress bar.

    Args:
        interface: "simulator" plays under the noise of ``config.seed``, "batched" under the
            backend's own draws. By default the reference is batched and ports are simulators.
    """
    spec = trained.spec
    interface = interface or ("batched" if backend == "reference" else "simulator")
    env: BatchedEnv | Simulator = envs.make(
        spec.name, backend, config.episodes, interface=interface, **spec.parameters
    )
    with env, Progress(console=console, transient=True) as bar:
        task = bar.add_task(f"evaluating on {backend}", total=config.episodes)
        return play_episodes(
            trained,
            env,
            max_steps=config.max_steps,
            greedy=config.greedy,
            seed=config.seed,
            progress=lambda finished, step: bar.update(task, completed=finished),
        )


def evaluate_backends(
    trained: TrainedPolicy, backend: str, config: EvalConfig, gap: GapConfig, console: Console
) -> Judged:
    """Evaluate on a port and on the reference, and judge the gap.

    Args:
        backend: what the policy was trained on; a policy trained on the reference is compared
            with the preferred port.
    """
    judged = Judged()
    name = trained.spec.name
    port = backend
    if port == "reference":
        port = envs.resolve_backend(name, "generated", device())
    # Under a Simulator a port's draws are those of the matched run as well: one evaluation
    # serves both comparisons.
    # Another seed for the reference: a backend may make its own draws as the port is given them.
    other = replace(config, seed=(config.seed + 1) % 2**32)
    for which, settings in ((port, config), ("reference", other)):
        try:
            result = judged.results[which] = evaluate_on(trained, which, settings, console)
        except (MissingDependency, envs.UnknownName) as error:
            judged.notes.append(f"{which} was not evaluated: {error}")
        else:
            if not result.finished.any():
                judged.notes.append(
                    f"on {which} all {config.episodes} episodes were cut at "
                    f"eval.max_steps={config.max_steps}; raise it to judge this policy"
                )
    if len(judged.results) < 2:
        return judged
    between = [port, "reference"]
    judged.gap = _compare(judged, between, judged.results["reference"], gap, paired=False)
    try:
        matched = evaluate_on(trained, "reference", config, console, "simulator")
    except (MissingDependency, envs.UnknownName) as error:
        judged.notes.append(f"no matched comparison: {error}")
    else:
        judged.gap_matched = _compare(judged, between, matched, gap, paired=True)
    return judged


def _compare(
    judged: Judged, between: list[str], other: EpisodeResults, gap: GapConfig, *, paired: bool
) -> dict[str, Any] | None:
    ours = judged.results[between[0]]
    kept_ours, kept_other = ours.finished, other.finished
    if paired:
        kept_ours = kept_other = ours.finished & other.finished
    a, b = ours.values(gap.metric)[kept_ours], other.values(gap.metric)[kept_other]
    design = "paired" if paired else "independent"
    capped = int((~ours.finished).sum() + (~other.finished).sum())
    if min(len(a), len(b)) < 2:
        judged.notes.append(f"no {design} comparison: fewer than two finished episodes")
        return None
    if capped:
        judged.notes.append(f"{design} comparison: without {capped} unfinished episodes")
    c = compare(a, b, gap.margin, paired=paired)
    return dict(
        between=between,
        metric=gap.metric,
        design=design,
        n=len(a),
        difference=c.difference,
        ci95=[c.difference_interval.low, c.difference_interval.high],
        p_value=c.p_difference,
        p_equivalence=c.p_equivalence,
        margin=gap.margin,
        verdict=str(c.verdict),
        n_needed=c.n_needed,
        unfinished=capped,
    )
