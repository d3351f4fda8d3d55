"""Summaries for people: the tables that commands print at their end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def print_summary(summary: Mapping[str, Any], console: Console) -> None:
    """What a training run ends with; every figure also stands in summary.json."""
    train = summary["train"]
    console.print(
        f"[bold]{summary['env']}[/] on {summary['backend']}: {train['env_steps']:,} steps in "
        f"{train['seconds']:.1f} s, {train['steps_per_second']:,.0f} steps/s "
        f"(compiled in {train['compile_seconds']:.1f} s), "
        f"policy {summary['model']} with {summary['policy_parameters']:,} parameters"
    )
    if "env_share" in train:
        console.print(f"environment's share of training time: {share_text(train)}")
    if summary["eval"]:
        console.print(evaluation_table(summary["eval"], summary["greedy"]))
    for key in ("gap", "gap_matched"):
        if summary.get(key):
            console.print(gap_text(summary[key]))
    for note in summary["notes"]:
        console.print(f"[yellow]note:[/] {note}")


def share_text(train: Mapping[str, Any]) -> str:
    """A share with its interval, or "< x %" where it is lost in its own noise."""
    low, high = train["env_share_ci95"]
    if train["env_share_below_noise"]:
        return f"< {max(high, 0.0):.1%} (below the noise of {train['env_share_method']})"
    return f"{train['env_share']:.1%} [{low:.1%}, {high:.1%}] ({train['env_share_method']})"


def evaluation_table(evaluation: Mapping[str, Mapping[str, Any]], greedy: bool) -> Table:
    """One column per backend; means per finished episode with 95 % intervals."""
    how = "greedy" if greedy else "sampled"
    table = Table(title=f"evaluation, {how} actions: mean per finished episode [95 % interval]")
    table.add_column("")
    for backend in evaluation:
        table.add_column(backend, justify="right")
    first = next(iter(evaluation.values()))
    for name in (key.removesuffix("_mean") for key in first if key.endswith("_mean")):
        texts = (_mean_text(result, name) for result in evaluation.values())
        table.add_row(name.replace("_", " "), *texts)
    for count in ("episodes_finished", "episodes_capped"):
        numbers = (str(result[count]) for result in evaluation.values())
        table.add_row(count.replace("_", " "), *numbers)
    return table


def _mean_text(result: Mapping[str, Any], name: str) -> str:
    mean, interval = result[f"{name}_mean"], result[f"{name}_ci95"]
    if mean is None:
        return "-"
    if interval is None or interval[0] is None:
        return f"{mean:.2f}"
    return f"{mean:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"


DESIGNS = {
    "independent": "each under its own draws",
    "paired": "the same draws on both",
}


def gap_text(gap: Mapping[str, Any]) -> str:
    """One sentence: what was compared, how, and the verdict."""
    low, high = gap["ci95"]
    interval = "" if low is None else f" [{low:.3g}, {high:.3g}]"
    needed = f"; about {gap['n_needed']} episodes would decide" if gap["n_needed"] else ""
    return (
        f"gap in {gap['metric'].replace('_', ' ')}, {' minus '.join(gap['between'])}, "
        f"{DESIGNS[gap['design']]} (n={gap['n']}): {gap['difference']:.3g}{interval}, "
        f"p={gap['p_value']:.3g}, margin {gap['margin']:g}: [bold]{gap['verdict']}[/]{needed}"
    )
