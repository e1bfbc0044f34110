"""A recommendation for people: the accept lengths that are needed, the options beside one another, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wmtp_sim.catalog.launch import Launch, LaunchByBatch
from wmtp_sim.decide.backends import better_backend
from wmtp_sim.decide.depth_table import DepthTable
from wmtp_sim.decide.difference import Difference
from wmtp_sim.decide.evidence import unmeasured
from wmtp_sim.decide.options import Option
from wmtp_sim.decide.recommend import Judged, Recommendation
from wmtp_sim.decide.thresholds import Axis, Threshold
from wmtp_sim.decide.warnings import Warning, warnings
from wmtp_sim.render.console import plain_table
from wmtp_sim.render.tables import NO_ROOM, print_heading, print_warnings, thinned
from wmtp_sim.render.verdict import named, not_sure
from wmtp_sim.units import milliseconds, percent, rate, times, tokens

#: Cells of the surface and depths that a person can take in; ``--json`` has all.
ROWS, COLUMNS = 8, 8
#: What the verdict says itself; of cells that do not fit, the table.
TOLD = ("no-acceptance", "does-not-fit")
#: Warnings that concern windowed drafts alone.
WINDOWED = (
    "same-acceptance",
    "policy-not-in-engine",
    "mla-draft-not-covered",
    "flag-inert-at-depth-1",
    "window-holds-context",
    "window-below-depth",
)
UNWINNABLE = "x"
WHY = {"speed": "", "memory": " (memory)", "target": " (target missed)"}


def print_recommendation(
    found: Recommendation, console: Console, launch: Launch | None = None, by_batch: LaunchByBatch | None = None
) -> None:
    """Heading, needed accept lengths, options, verdict, warnings, and the command that starts the choice, or why there
    is none."""
    mix = found.asked
    contexts, batches = mix.shares.sum(axis=1), mix.shares.sum(axis=0)
    points = [f"context {_weighted(mix.contexts, contexts)}", f"batch {_weighted(mix.batches, batches)}"]
    print_heading(found.space.deployment, points, console)
    console.print(Text(_surface_title(found)))
    console.print(_surface(found))
    if found.judged is not None:
        console.print(_options(found, found.judged))
    for line in sentences(found):
        console.print(Text(line, style="bold"))
    print_warnings(notices(found), console)
    if launch is not None and launch.line is not None:
        console.print(Text("launch line (wmtp preflight --from-command tells its traps):"))
        console.print(Text(launch.line), soft_wrap=True)
    elif launch is not None and launch.unsaid is not None:
        console.print(Text(f"no launch line: {launch.unsaid}"))
    if by_batch is not None and found.depth_table is not None:
        _print_by_batch(found, found.depth_table, console, by_batch)


def _print_by_batch(found: Recommendation, table: DepthTable, console: Console, launch: LaunchByBatch) -> None:
    """The command that changes the depth with the batch, and what an engine that looks up no more than that loses."""
    first, *others = (f"{depth} up to batch {last}" for _, last, depth in launch.ranges)
    depths, loss = ", ".join([f"depth {first}", *others]), f"{table.batch_only_loss:.1%}".replace("%", " %")
    note = f"; {launch.note}" if launch.note else ""
    whose = " of one replica" if found.space.deployment.work.layout.dp > 1 else ""
    console.print(Text(f"launch line by batch{whose} ({depths}; {loss} less than by batch and context{note}):"))
    console.print(Text(launch.line), soft_wrap=True)


def notices(found: Recommendation) -> list[Warning]:
    """Warnings about the choice over the mix, and about how its acceptance was come by."""
    option = found.choice if found.choice else Option(_plainest(found), found.space.depths[0])
    mix = found.mix or found.asked
    estimate = found.space.of(option, mix.contexts, mix.batches)
    said = TOLD if option.window is not None else (*TOLD, *WINDOWED)
    noted = {note.text for note in estimate.engine.notes if note.window and option.window is None}
    told = (w for w in warnings(estimate) if not w.id.startswith(said) and w.text not in noted)
    return [*_of_acceptance(found), *told]


def _of_acceptance(found: Recommendation) -> Iterator[Warning]:
    if found.acceptance is None:
        text = "no acceptance given: what each option needs, no choice; state --alpha, --survival or --accept-length"
        yield Warning("no-acceptance", text)
        return
    if found.assumed:
        text = (
            "one accept length says nothing of other depths: one constant rate at all positions is assumed; "
            "state --survival from a server's per-position rates"
        )
        yield Warning("constant-rate-assumed", text)
    if found.windowed is None and found.choice is not None and found.choice.window is not None:
        text = "windowed drafts, whatever their window, are given the acceptance of native ones"
        yield Warning("same-acceptance", f"{text}: state --windowed-accept-length")
    if found.mix is not None and found.mix.contexts.size > 1:
        yield Warning("acceptance-by-context", "one acceptance is taken at every context: it often falls with length")


# --- the tables --------------------------------------------------------------------------------------------------


def _weighted(values: np.ndarray, shares: np.ndarray) -> str:
    if values.size == 1:
        return tokens(values.item())
    if np.allclose(shares, shares[0]):
        return f"{tokens(values[0])}..{tokens(values[-1])} ({values.size}, equally often)"
    return " + ".join(f"{tokens(value)} ({share:.0%})" for value, share in zip(values, shares, strict=True))


def _plainest(found: Recommendation) -> str:
    return found.space.deployment.systems[0].name


def _surface_option(found: Recommendation) -> Option:
    """The system that the surface is shown for: the choice's, else the plainest."""
    chosen = found.choice
    return chosen if chosen is not None and chosen.policy is not None else Option(_plainest(found), 1)


def _surface_title(found: Recommendation) -> str:
    wanted = "to break even" if found.need == 1 else f"for {times(found.need)}"
    shown = _surface_option(found)
    overlaid = "" if found.lengths is None else "; in brackets: not reached"
    return f"Accept length needed {wanted}, {_kv(found, shown)}; {UNWINNABLE}: unwinnable at any acceptance{overlaid}."


def _surface_depths(found: Recommendation) -> dict[int, int]:
    """Of the system that the surface is shown for: an option's place, and its depth."""
    shown = _surface_option(found)
    same = {i: o for i, o in enumerate(found.space.options) if replace(o, depth=shown.depth) == shown}
    return {place: option.depth for place, option in list(same.items())[:COLUMNS]}


def _surface(found: Recommendation) -> Table:
    depths, mix = _surface_depths(found), found.asked
    table = plain_table([], ("context", "batch", *(f"depth {depth}" for depth in depths.values())), no_wrap=True)
    for cell in thinned(mix.shares.size, ROWS):
        c, b = divmod(cell, mix.batches.size)
        table.add_row(tokens(mix.contexts[c]), tokens(mix.batches[b]), *(_need(found, place, c, b) for place in depths))
    return table


def _need(found: Recommendation, place: int, c: int, b: int) -> str:
    if not found.asked_priced.fits[place, c, b]:
        return NO_ROOM
    if found.unwinnable[place, c, b]:
        return UNWINNABLE
    needed = found.needed[place, c, b]
    missed = found.lengths is not None and found.lengths[place] < needed
    return f"({needed:.2f})" if missed else f"{needed:.2f}"


def _options(found: Recommendation, judged: Judged) -> Table:
    """Off, the fastest option of each system, and the runner-up, over the mix."""
    slow_end = ["at the slow end"] if _targeted(found) else []
    columns = ["accept length", "needed", "tok/s", "speedup", "longest ITL ms", *slow_end]
    table = plain_table(["over the mix"], columns, no_wrap=True)
    places = [found.best_of(name) for name in (None, *found.space.deployment.steps)] + [found.place, found.runner_up]
    for place in sorted({place for place in places if place is not None}):
        table.add_row(*_cells(found, judged, place), style="bold" if place == found.place else None)
    return table


def _cells(found: Recommendation, judged: Judged, place: int) -> Iterator[str]:
    marks = "" if found.space.allowed[place] else " (what-if)"
    yield _described(found, place) + (" <" if place == found.place else marks)
    for lengths in (judged.lengths, found.needed_on_mix):
        yield f"{lengths[place]:.2f}" if found.space.options[place].policy else "-"
    yield rate(float(judged.rate[place]))
    yield times(float(judged.rate[place] / judged.rate[0]))
    yield _held(found, judged.latency_s[place])
    if _targeted(found):
        yield _held(found, judged.slow_latency_s[place])


def _targeted(found: Recommendation) -> bool:
    return bool(np.isfinite(found.target.seconds))


def _held(found: Recommendation, latency_s: float) -> str:
    """A time between tokens, held against the target."""
    return milliseconds(float(latency_s)) + ("" if latency_s <= found.target.seconds else " over")


# --- the verdict -------------------------------------------------------------------------------------------------


def _described(found: Recommendation, place: int) -> str:
    """An option in a few words, with its window where there are several to choose from."""
    option = found.space.options[place]
    if option.policy is None:
        return "off"
    window = f", {_window(option)}" if option.window is not None and len(found.space.windows) > 1 else ""
    return f"{option.policy} depth {option.depth}{window}"


def _window(option: Option) -> str:
    return f"{tokens(option.window or 0)} + {tokens(option.sink or 0)}"


def _kv(found: Recommendation, option: Option) -> str:
    """An option by its system's phrase and its window."""
    if option.policy is None:
        return "off"
    window = "" if option.window is None else f" ({_window(option)})"
    return f"{named(found.space.deployment, option.policy)}{window}"


def sentences(found: Recommendation) -> list[str]:
    """The verdict: what to run, how sure that is, what would change it, and what a changing depth would add."""
    if found.mix is None:
        return ["Does not fit, even without speculation: see `wmtp estimate` for the largest context and batch."]
    lines = []
    left_out = int((~found.asked_priced.fits[0]).sum())
    if left_out:
        lines.append(f"{left_out} of {found.asked.shares.size} cells do not fit without speculation and are left out.")
    judged, place = found.judged, found.place
    if judged is None:
        return [*lines, _needs(found)]
    if found.need != 1:
        lines.append(_needs(found))
    if place is None:
        return [*lines, _missed(found, judged), *_changes(found)]
    return [
        *lines,
        _run(found, judged, place),
        *_target(found, judged, place),
        *_margins(found, judged, place),
        *not_sure(unmeasured(found.space.deployment)),
        *_others(found, judged, place),
        *_changes(found),
        *_switching(found, float(judged.rate[place])),
    ]


def _needs(found: Recommendation) -> str:
    """The accept length that each depth needs over the mix."""
    wanted = "Break-even" if found.need == 1 else times(found.need)
    parts = []
    for place, depth in _surface_depths(found).items():
        needed = float(found.needed_on_mix[place])
        unwinnable = " (unwinnable)" if needed > found.space.option_depths[place] + 1 else ""
        parts.append(f"{needed:.2f} at depth {depth}{unwinnable}")
    shown = _kv(found, _surface_option(found))
    return f"{wanted} over the mix needs an accept length of: {', '.join(parts)} ({shown})."


def _run(found: Recommendation, judged: Judged, place: int) -> str:
    given, option = f"{rate(float(judged.rate[place]))} tok/s", found.space.options[place]
    if option.policy is None:
        drafts = judged.possible[1:].any()
        why = "every depth gives less, or no more" if drafts else "no option that drafts is possible at every cell"
        return f"Run without speculation: {given}; {why}."
    gain = times(float(judged.rate[place] / judged.rate[0]))
    return f"Run depth {option.depth} with {_kv(found, option)}: {given}, {gain} of no speculation."


def _target(found: Recommendation, judged: Judged, place: int) -> Iterator[str]:
    """Whether the choice meets the target for latency also where its steps are as slow as they may be."""
    if not _targeted(found):
        return
    target = f"{milliseconds(found.target.seconds)} ms between tokens"
    expected, slow = float(judged.latency_s[place]), float(judged.slow_latency_s[place])
    if slow <= found.target.seconds:
        both = f"{milliseconds(slow)} ms, {milliseconds(expected)} expected"
        yield f"Meets {target} even at the slow end of its range: {both}."
    else:
        there = "nothing meets it there" if found.certain is None else _certain(found, judged, found.certain)
        said = f"Meets {target} in the expected case, {milliseconds(expected)} ms; at the slow end of its range"
        yield f"{said} {milliseconds(slow)} ms: {there}."


def _certain(found: Recommendation, judged: Judged, place: int) -> str:
    slow = milliseconds(float(judged.slow_latency_s[place]))
    return f"--slo-certain would choose {_described(found, place)}, {slow} ms there"


def _missed(found: Recommendation, judged: Judged) -> str:
    """Nothing meets the target: what comes nearest."""
    place = found.nearest_to_target or 0  # off, which fits, if nothing else
    least = milliseconds(float(judged.judged_s[place]))
    target = f"{milliseconds(found.target.seconds)} ms between tokens at every cell"
    if not found.target.certain:
        return f"Nothing meets {target}; {_described(found, place)}: {least} ms."
    expected = milliseconds(float(judged.latency_s[place]))
    nearest = f"{_described(found, place)}: {least} ms there, {expected} expected"
    return f"Nothing meets {target}, the slow end of its range included; {nearest}."


def _margins(found: Recommendation, judged: Judged, place: int) -> Iterator[str]:
    if place and found.runner_up:  # off is compared below
        over, other = found.over(found.runner_up), _described(found, found.runner_up)
        if over.expected < 0:
            yield f"{other} gives {percent(-over.expected)}: too little to prefer it ({_interval(over)} the other way)."
        else:
            either = "" if over.signed else ", so either will do"
            yield f"{percent(over.expected)} over the runner-up, {other}: {_sure(over)}{either}."
    if (drafting := found.speculation) is not None:
        yield f"Speculation {drafting.word}: {percent(drafting.expected)} over off, {_interval(drafting)}."
    native = found.best_of(_plainest(found))
    if found.space.options[place].window is not None and native is not None and found.windowed is None:
        worth = 1 - judged.rate[native] / judged.rate[place]  # what acceptance may lose until the plain one is as good
        share, other = f"{100 * worth:.1f} %", _described(found, native)
        yield f"The window is worth {share} of the accept length: if it costs more, {other} is better."


def _sure(over: Difference) -> str:
    """Whether a difference exceeds its interval, which common errors leave out, and such steps were measured."""
    word = "sure" if over.sure else "probable" if over.signed else "not sure"
    return f"{word} over the interval of the difference, {_interval(over)}"


def _interval(over: Difference) -> str:
    return f"{percent(over.low)} to {percent(over.high)}"


def _others(found: Recommendation, judged: Judged, place: int) -> Iterator[str]:
    """What the release lacks, or memory rules out."""

    def adds(other: int) -> str:
        return f"{_described(found, other)} would give {percent(float(judged.rate[other] / judged.rate[place]) - 1)}"

    if found.what_if is not None:
        yield f"Not in {found.space.deployment.release} here: {adds(found.what_if)}."
    if (other := better_backend(found)) is not None:
        option = other.option
        then = "off" if option.policy is None else f"depth {option.depth} with {_kv(found, option)}"
        yield (
            f"Another attention backend would give {percent(other.more)}: --attention-backend {other.backend}, {then} "
            "(kernels alone; what it plans on the host is not priced)."
        )
    if found.too_large is not None:
        yield f"Memory decides: {adds(found.too_large)}, but does not fit at every cell."


def _changes(found: Recommendation) -> Iterator[str]:
    """One line for each thing that would change the choice."""
    labels: dict[Axis, str] = {"acceptance": "accept length", "context": "context", "batch": "batch"}
    for axis, label in labels.items():
        parts = [_change(found, each) for each in found.thresholds if each.axis == axis]
        if parts:
            yield f"Instead, at {label}{_scaled(found, axis)} {'; '.join(parts)}.{_again(found, axis)}"


def _again(found: Recommendation, axis: Axis) -> str:
    """Where beyond a change the choice stands again: all intervals but the one that holds what was stated."""
    standing = next(each for each in found.standing if each.axis == axis)
    lengths = axis == "acceptance"
    shown = standing.accept_lengths if lengths else standing.intervals
    both, stated = zip(shown, standing.intervals, strict=True), found.stated(axis)
    apart = [pair for pair, (low, high) in both if not low <= stated <= high]
    if not apart:
        return ""
    form = ".2f" if lengths else ",.0f"
    places = (f"{low:{form}}" if low == high else f"{low:{form}} to {high:{form}}" for low, high in apart)
    again = "nothing is possible" if found.place is None else _described(found, found.place)
    return f" Again {again} at {' and '.join(places)}."


def _scaled(found: Recommendation, axis: Axis) -> str:
    """Of what the stated number is, where a mix has several."""
    mix = found.mix or found.asked
    several = {"acceptance": False, "context": mix.contexts.size > 1, "batch": mix.batches.size > 1}
    return " (the mix's largest, all scaled alike)" if several[axis] else ""


def _change(found: Recommendation, threshold: Threshold) -> str:
    at = f"{threshold.at:,.0f}"
    if threshold.accept_length is not None and threshold.option is not None:
        at = f"{threshold.accept_length:.2f}"
        if threshold.option != found.choice:
            at += f" at depth {threshold.option.depth}"
    becomes = "nothing is possible"
    if threshold.becomes is not None:
        becomes = _described(found, found.space.options.index(threshold.becomes))
    return f"{at} or {'more' if threshold.side == 'above' else 'less'}, {becomes}{WHY[threshold.reason]}"


def _switching(found: Recommendation, fixed: float) -> Iterator[str]:
    """What a depth that changes with batch and context adds to ``fixed`` tokens/s, and what of it batch alone does."""
    table = found.depth_table
    if table is None or table.depth.size == 1:
        return
    more, by_batch = (percent(value / fixed - 1) for value in (table.switching, table.batch_only))
    if table.depth.min() == table.depth.max():
        yield f"No cell of the mix wants another depth than {table.depth.min()}."
        return
    depths = f"{table.depth.min()} to {table.depth.max()}"
    yield f"Depth by batch and context ({depths}; --table writes it) gives {more}, by batch alone {by_batch}."
