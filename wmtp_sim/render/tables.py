"""Tables for people: at most a dozen rows, units in the row names, the label of every number's trust on top."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wmtp_sim.decide.choice import fits
from wmtp_sim.decide.estimate import Estimate, PolicyResult
from wmtp_sim.decide.evidence import unmeasured
from wmtp_sim.decide.memory import Memory
from wmtp_sim.decide.verdict import WORDS, speedup, words
from wmtp_sim.decide.warnings import Warning, warnings
from wmtp_sim.render.console import plain_table
from wmtp_sim.render.layout import layout_words
from wmtp_sim.render.sentences import said
from wmtp_sim.render.verdict import not_sure, spread, verdict
from wmtp_sim.step.compose import Entry
from wmtp_sim.step.plan import TERMS
from wmtp_sim.units import about_tokens, gigabytes, milliseconds, percent, rate, times, tokens
from wmtp_sim.work.operation import Array

#: Rows of a sweep that a person can take in.
SWEEP_ROWS = 12
EXPLAIN_ROWS = 12
#: What stands in a cell whose memory does not fit, as in `wmtp recommend`.
NO_ROOM = said("no_room")
#: Behind a speedup that is won or lost only probably.
UNSURE = "?"


def print_estimate(estimate: Estimate, console: Console) -> None:
    """One table for a single point, one row per point for a sweep; then the verdict and the warnings."""
    work = estimate.work
    points = [f"{name} {_range(getattr(work, name))}" for name in ("context", "depth", "batch")]
    print_heading(estimate, [*points, f"window {_range(work.window)} + sink {_range(work.sink)}"], console)
    if estimate.work.shape == ():
        console.print(_point_table(estimate))
        console.print(Text(_ranges(estimate), style="dim"))
        for line in verdict(estimate):
            console.print(Text(line, style="bold"))
    else:
        _print_sweep(estimate, console)
    print_warnings(warnings(estimate), console)


def print_heading(estimate: Estimate, points: list[str], console: Console) -> None:
    """What runs where, at which points, and what is known of its kernels."""
    parts = ", ".join([*points, *layout_words(estimate.work.layout)])
    console.print(Text(estimate.title, style="bold"))
    console.print(Text(f"{parts}; kernels: {estimate.machine.profile.label}", style="dim"))


def print_warnings(told: Iterable[Warning], console: Console) -> None:
    for warning in told:
        console.print(Text(f"! {warning.text} [{warning.id}]", style="yellow"))


def _range(array: np.ndarray) -> str:
    if array.size == 1:
        return tokens(array.item())
    return f"{tokens(float(array.min()))}..{tokens(float(array.max()))} ({array.size})"


# --- one point -------------------------------------------------------------------------------------------------


def _point_table(estimate: Estimate) -> Table:
    table = plain_table([""])
    for name in estimate.costs:
        table.add_column(name, justify="right", no_wrap=True)
    costs = estimate.costs.values()
    depths = [int(result.depth) for result in estimate.policies.values()]
    if len(set(depths)) > 1:
        table.add_row("tokens drafted", "", *map(str, depths))
    for term in TERMS:
        seconds = [float(cost.terms[term]) for cost in costs]
        table.add_row(f"{term} ms", *(milliseconds(each) if each else "-" for each in seconds))
    table.add_row("step ms", *(milliseconds(float(cost.step_s)) for cost in costs), style="bold", end_section=True)
    policies = estimate.policies
    table.add_row("tok/s per request", rate(float(estimate.base_tokens_per_s)), *_held(estimate, _rate))
    if len(policies) > 1 and len(set(depths)) == 1:  # steps that draft differently are no match
        margins = (percent(float(result.margin)) for result in policies.values())
        table.add_row(f"margin over {estimate.systems[0].name}", "", *margins)
    table.add_row("speedup (at most)", times(1.0), *_held(estimate, _speedup))
    if estimate.accept_length is not None:
        gains = ((policy, speedup(estimate, policy)) for policy in policies)
        cells = (spread(gain) if gain and fits(estimate, policy) else "" for policy, gain in gains)
        table.add_row("  range", "", *cells)
    table.add_row("break-even AL", "", *map(_break_even, policies.values()))
    memories = [estimate.memory[name] for name in estimate.costs]
    table.add_row("memory per GPU", *map(_used, memories))
    table.add_row("max context", *(about_tokens(float(memory.max_context)) for memory in memories))
    return table


def _held(estimate: Estimate, cell: Callable[[PolicyResult], str]) -> list[str]:
    """A cell for each policy that memory holds, `NO_ROOM` for the others."""
    return [cell(result) if fits(estimate, policy) else NO_ROOM for policy, result in estimate.policies.items()]


def _rate(result: PolicyResult) -> str:
    return "-" if result.tokens_per_s is None else rate(float(result.tokens_per_s))


def _speedup(result: PolicyResult) -> str:
    most = times(float(result.max_speedup))
    return f"({most})" if result.speedup is None else f"{times(float(result.speedup))} ({most})"


def _break_even(result: PolicyResult) -> str:
    mark = " unwinnable" if result.unwinnable else ""
    return f"{float(result.break_even_accept_length):.2f}{mark}"


def _used(memory: Memory) -> str:
    return gigabytes(float(memory.total_bytes)) + ("" if memory.fits else " over")


def _ranges(estimate: Estimate) -> str:
    """Within which milliseconds each step lies, and how sure that is."""
    label = "Judged range"
    profile = estimate.machine.profile
    if profile.status == "measured":
        kernels = f"kernels measured by {profile.by}" if profile.by else "kernels measured"
        standing = estimate.engine.standing
        label = "90 % interval" if standing == "as defined" else f"Range ({kernels}, engine {standing})"
    ends = ((name, milliseconds(float(c.low_s)), milliseconds(float(c.high_s))) for name, c in estimate.costs.items())
    return f"{label} of a step, ms: {', '.join(f'{name} {low}..{high}' for name, low, high in ends)}."


# --- a sweep ---------------------------------------------------------------------------------------------------


def _print_sweep(estimate: Estimate, console: Console) -> None:
    """The points in order, thinned to a dozen; ``--json`` has them all."""
    work = estimate.work
    count = int(np.prod(work.shape))
    chosen = thinned(count, SWEEP_ROWS)
    columns = [name for name in ("context", "depth", "window", "batch") if getattr(work, name).size > 1]
    flat = {name: np.broadcast_to(getattr(work, name), work.shape).ravel() for name in columns}
    table = plain_table([], (*columns, "base ms", *estimate.policies), no_wrap=True)
    cells = {policy: _sweep_cells(estimate, policy) for policy in estimate.policies}
    base = np.broadcast_to(estimate.base.step_s, work.shape).ravel()
    held = np.broadcast_to(estimate.memory["base"].fits, work.shape).ravel()
    marked = False
    for i in chosen:
        row = [tokens(float(flat[name][i])) for name in columns]
        row.append(milliseconds(float(base[i])) if held[i] else NO_ROOM)
        drafts = [cells[policy](i) for policy in estimate.policies]
        marked |= any(cell.endswith(UNSURE) for cell in drafts)
        table.add_row(*row, *drafts)
    console.print(table)
    shown = "speedup" if estimate.accept_length is not None else "break-even accept length"
    all_fit = all(np.all(memory.fits) for memory in estimate.memory.values())
    room = "" if all_fit else f" {NO_ROOM}: memory does not hold it."
    room += f" {UNSURE}: probably." if marked else ""
    counted = f"{len(chosen)} of {count} points; --json has all."
    console.print(Text(f"Cells: step ms and {shown}.{room} {counted}", style="dim"))
    for line in not_sure(unmeasured(estimate)) if estimate.accept_length is not None else ():
        console.print(Text(line, style="bold"))


def thinned(count: int, most: int) -> list[int]:
    """Places of at most so many among ``count``, evenly apart, the first and the last among them."""
    if count <= most:
        return list(range(count))
    places: list[int] = np.unique(np.linspace(0, count - 1, most).round().astype(int)).tolist()
    return places


def _sweep_cells(estimate: Estimate, policy: str) -> Callable[[int], str]:
    """A policy's cells: step and speedup, or the accept length that breaks even; `UNSURE` behind a speedup."""
    result, shape = estimate.policies[policy], estimate.work.shape
    gain = result.break_even_accept_length if result.speedup is None else result.speedup
    shape = np.broadcast_shapes(shape, gain.shape)
    known = (result.cost.step_s, gain, fits(estimate, policy), _unsure(estimate, policy))
    step, gains, held, unsure = (np.broadcast_to(each, shape).ravel() for each in known)
    suffix = "" if result.speedup is None else "x"

    def cell(i: int) -> str:
        mark = UNSURE if result.speedup is not None and unsure[i] else ""
        return f"{milliseconds(float(step[i]))}  {gains[i]:.2f}{suffix}{mark}" if held[i] else NO_ROOM

    return cell


def _unsure(estimate: Estimate, policy: str) -> NDArray[np.bool_]:
    """Where drafts gain or lose only probably."""
    gain = speedup(estimate, policy)
    if gain is None:
        return np.asarray(False)
    word = words(gain, not unmeasured(estimate))
    return np.isin(word, [WORDS.index("probably pays"), WORDS.index("probably loses")])


# --- the operations --------------------------------------------------------------------------------------------


def print_explanation(estimate: Estimate, console: Console) -> None:
    """The operations of the base step and of each policy's step, longest first, with the roof that binds."""
    for name, step in estimate.all_steps.items():
        console.print(Text(f"\n{name}: {milliseconds(float(step.seconds))} ms", style="bold"))
        table = plain_table(("term", "operation"), ("runs", "ms", "GB", "GFLOP"))
        table.add_column("roof")
        entries = sorted(summed(step.entries), key=lambda e: -float(e.seconds))
        for each in entries[:EXPLAIN_ROWS]:
            table.add_row(
                each.example.term,
                each.example.operation.name,
                f"{float(each.runs):.0f}",
                milliseconds(float(each.seconds)),
                f"{float(each.bytes) / 1e9:.3f}",
                f"{float(each.flops) / 1e9:.1f}",
                estimate.machine.binding_roof(each.example.operation),
            )
        rest = entries[EXPLAIN_ROWS:]
        if rest:
            table.add_row("", f"{len(rest)} more", "", milliseconds(sum(float(e.seconds) for e in rest)))
        if float(step.host.seconds):
            table.add_row("host", "host and seams", "", milliseconds(float(step.host.seconds)))
        console.print(table)


@dataclass
class Summed:
    """Operations of one name and term together: an example, seconds, bytes, FLOPs, executions. Arrays over a grid."""

    example: Entry
    seconds: Array = 0.0
    bytes: Array = 0.0
    flops: Array = 0.0
    runs: Array = 0.0


def summed(entries: Iterable[Entry]) -> list[Summed]:
    """Operations that take time, those of one name and term together, in their order."""
    found: dict[tuple[str, str], Summed] = {}
    for entry in entries:
        operation, repeats = entry.operation, entry.operation.repeats
        group = found.setdefault((entry.term, operation.name), Summed(entry))
        group.seconds = group.seconds + entry.timing.seconds
        group.bytes = group.bytes + operation.bytes * repeats
        group.flops = group.flops + operation.flops * repeats
        group.runs = group.runs + repeats
    return [group for group in found.values() if np.any(group.seconds)]
