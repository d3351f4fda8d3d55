"""Timing side by side: every candidate once per round, so that slow phases hit all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

Run = Callable[[], "float | None"]


def interleave(runs: Mapping[str, Run], work: float, rounds: int) -> dict[str, dict[str, Any]]:
    """Time all runs in turn, ``rounds`` times, after one call each that is not counted.

    Args:
        runs: each does ``work`` units of work and returns None, or its own seconds where another
            process did it.
        work: units (environment steps) of one call.

    Returns:
        By name: ``wall_seconds`` and ``cpu_seconds`` (of all threads; empty for another process)
        per round, ``rate`` and ``cpu_rate`` (units per second from the medians; ``cpu_rate`` None
        for another process) and ``spread``, the interquartile range over the median.
    """
    wall: dict[str, list[float]] = {name: [] for name in runs}
    cpu: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            began, began_cpu = time.perf_counter(), time.process_time()
            own = run()
            used = time.process_time() - began_cpu
            wall[name].append(time.perf_counter() - began if own is None else own)
            if own is None:
                cpu[name].append(used)
    return {name: _summary(wall[name], cpu[name], work) for name in runs}


def _summary(wall: list[float], cpu: list[float], work: float) -> dict[str, Any]:
    middle = statistics.median(wall)
    quartiles = statistics.quantiles(wall, n=4) if len(wall) > 1 else [middle] * 3
    return dict(
        rate=work / middle,
        cpu_rate=work / statistics.median(cpu) if cpu else None,
        spread=(quartiles[2] - quartiles[0]) / middle,
        wall_seconds=wall,
        cpu_seconds=cpu,
    )


def paired_ratio(
    faster: Mapping[str, Any], slower: Mapping[str, Any], clock: str = "wall"
) -> float:
    """How many times as fast the first is: the median over rounds of the two times' quotient."""
    pairs = zip(faster[f"{clock}_seconds"], slower[f"{clock}_seconds"], strict=True)
    return statistics.median(b / a for a, b in pairs)


def print_table(console: Console, title: str, columns: list[str], rows: list[list[str]]) -> None:
    """One section's table; the first column is left-aligned."""
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def count(rate: float | None) -> str:
    """1234567.0 -> '1.23 M'; '-' for None."""
    if rate is None:
        return "-"
    return f"{rate / 1e6:.2f} M" if rate >= 1e6 else f"{rate / 1e3:.1f} k"
