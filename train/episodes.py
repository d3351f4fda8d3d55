"""Episode accounting inside a rollout: running sums, reduced where they arise.

The same functions serve the jitted rollout (``xp = jax.numpy``) and the host loop (``numpy``).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

from envs.core import EnvSpec, Outcome


class EpisodeTotals(NamedTuple):
    """``running_return [N(,A)]`` and ``running_length [N]`` of the open episodes; the rest are
    sums over the episodes that ended since :meth:`cleared`."""

    running_return: Any
    running_length: Any
    episodes: Any  # int32
    return_sum: Any  # float32 [A] or scalar
    length_sum: Any  # float32
    metric_sums: dict[str, Any]  # float32 scalars, averaged over agents
    invalid: Any  # int32, flagged actions

    def cleared(self, xp: ModuleType) -> EpisodeTotals:
        """The same open episodes with all sums at zero."""
        return EpisodeTotals(
            self.running_return,
            self.running_length,
            xp.int32(0),
            xp.zeros_like(self.return_sum),
            xp.float32(0),
            {name: xp.float32(0) for name in self.metric_sums},
            xp.int32(0),
        )


def init_totals(spec: EnvSpec, num_envs: int, xp: ModuleType) -> EpisodeTotals:
    """All zero."""
    agents = () if spec.num_agents == 1 else (spec.num_agents,)
    return EpisodeTotals(
        xp.zeros(spec.rows(num_envs), xp.float32),
        xp.zeros(num_envs, xp.int32),
        xp.int32(0),
        xp.zeros(agents, xp.float32),
        xp.float32(0),
        {name: xp.float32(0) for name in spec.metrics},
        xp.int32(0),
    )


def count_episodes(
    spec: EnvSpec, totals: EpisodeTotals, outcome: Outcome, xp: ModuleType
) -> EpisodeTotals:
    """Totals after one more step."""
    ended = outcome.ended
    ended_rows = ended if spec.num_agents == 1 else ended[:, None]
    returns = totals.running_return + outcome.reward
    lengths = totals.running_length + 1

    def summed(x: Any) -> Any:
        if x.ndim > 1:
            x = x.astype(xp.float32).mean(-1)
        return xp.where(ended, x, 0).astype(xp.float32).sum()

    return EpisodeTotals(
        xp.where(ended_rows, xp.float32(0), returns),
        xp.where(ended, 0, lengths).astype(xp.int32),
        totals.episodes + ended.sum(dtype=xp.int32),
        totals.return_sum + xp.where(ended_rows, returns, xp.float32(0)).sum(0),
        totals.length_sum + summed(lengths),
        {
            name: totals.metric_sums[name] + summed(outcome.metrics[name])
            for name in totals.metric_sums
        },
        totals.invalid + outcome.invalid.sum(dtype=xp.int32),
    )


def merge_totals(earlier: EpisodeTotals, later: EpisodeTotals) -> EpisodeTotals:
    """The sums of two successive stretches, each cleared before it began."""
    return later._replace(
        episodes=earlier.episodes + later.episodes,
        return_sum=earlier.return_sum + later.return_sum,
        length_sum=earlier.length_sum + later.length_sum,
        metric_sums={k: v + later.metric_sums[k] for k, v in earlier.metric_sums.items()},
        invalid=earlier.invalid + later.invalid,
    )


def summarize(totals: EpisodeTotals) -> dict[str, float]:
    """Means per finished episode, as plain floats; without finished episodes only their count."""
    episodes = int(totals.episodes)
    summary: dict[str, float] = {"episodes": episodes}
    if episodes:
        summary["return_mean"] = float(totals.return_sum.mean()) / episodes
        summary["length_mean"] = float(totals.length_sum) / episodes
        for name, value in totals.metric_sums.items():
            summary[f"{name}_mean"] = float(value) / episodes
    return summary
