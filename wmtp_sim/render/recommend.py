"""A recommendation for people: the accept lengths that are needed, the options beside one another, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wmtp_sim.catalog.launch import Launch, LaunchByBatch
from wmtp_sim.decide.backends import better_backend
from wmtp_sim.decide.difference import Difference
from wmtp_sim.decide.evidence import unmeasured
from wmtp_sim.decide.options import Option
from wmtp_sim.decide.recommend import Recommendation
from wmtp_sim.decide.thresholds import Axis, Threshold
from wmtp_sim.decide.warnings import Warning, warnings
from wmtp_sim.render.layout import layout_words
from wmtp_sim.render.tables import NO_ROOM
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
    _heading(found, console)
    console.print(Text(_surface_title(found)))
    console.print(_surface(found))
    if found.judged is not None:
        console.print(_options(found))
    for line in sentences(found):
        console.print(Text(line, style="bold"))
    for warning in notices(found):
        console.print(Text(f"! {warning.text} [{warning.id}]", style="yellow"))
    if launch is not None and launch.line is not None:
        console.print(Text("launch line (wmtp preflight --from-command tells its traps):"))
        console.print(Text(launch.line), soft_wrap=True)
    elif launch is not None and launch.unsaid is not None:
        console.print(Text(f"no launch line: {launch.unsaid}"))
    if by_batch is not None:
        _print_by_batch(found, console, by_batch)


def _print_by_batch(found: Recommendation, console: Console, launch: LaunchByBatch) -> None:
    """The command that changes the depth with the batch, and what an engine that looks up no more than that loses."""
    table = found.depth_table
    assert table is not None
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
    return [
        *_of_acceptance(found),
        *(w for w in warnings(estimate) if not w.id.startswith(said) and w.text not in noted),
    ]


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


# --- the heading and the tables ----------------------------------------------------------------------------------


def _heading(found: Recommendation, console: Console) -> None:
    deployment, mix = found.space.deployment, found.asked
    engine = f"{deployment.engine.name} {deployment.engine.version}"
    parts = [f"context {_weighted(mix.contexts, mix.shares.sum(axis=1))}"]
    parts.append(f"batch {_weighted(mix.batches, mix.shares.sum(axis=0))}")
    parts += layout_words(deployment.work.layout)
    console.print(Text(f"{deployment.model.name} on {deployment.machine.gpu.name}, {engine}", style="bold"))
    console.print(Text(f"{', '.join(parts)}; kernels: {deployment.machine.profile.label}", style="dim"))


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


def _surface(found: Recommendation) -> Table:
    shown = _surface_option(found)
    same = [(o.policy, o.window, o.sink) == (shown.policy, shown.window, shown.sink) for o in found.space.options]
    places = np.flatnonzero(same)[:COLUMNS]
    cells = np.argwhere(np.ones_like(found.asked.shares, dtype=bool))
    if len(cells) > ROWS:
        cells = cells[np.unique(np.linspace(0, len(cells) - 1, ROWS).round().astype(int))]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("context", "batch", *(f"depth {found.space.options[place].depth}" for place in places)):
        table.add_column(name, justify="right", no_wrap=True)
    for c, b in cells:
        needs = [_need(found, int(place), int(c), int(b)) for place in places]
        table.add_row(tokens(found.asked.contexts[c]), tokens(found.asked.batches[b]), *needs)
    return table


def _need(found: Recommendation, place: int, c: int, b: int) -> str:
    if not found.asked_priced.fits[place, c, b]:
        return NO_ROOM
    if found.unwinnable[place, c, b]:
        return UNWINNABLE
    needed = found.needed[place, c, b]
    missed = found.lengths is not None and found.lengths[place] < needed
    return f"({needed:.2f})" if missed else f"{needed:.2f}"


def _options(found: Recommendation) -> Table:
    """Off, the fastest option of each system, and the runner-up, over the mix."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("over the mix", no_wrap=True)
    columns = ("accept length", "needed", "tok/s", "speedup", "longest ITL ms")
    for name in (*columns, "at the slow end") if _targeted(found) else columns:
        table.add_column(name, justify="right", no_wrap=True)
    places = [found.best_of(name) for name in (None, *found.space.deployment.steps)] + [found.place, found.runner_up]
    for place in sorted({place for place in places if place is not None}):
        table.add_row(*_cells(found, place), style="bold" if place == found.place else None)
    return table


def _cells(found: Recommendation, place: int) -> Iterator[str]:
    judged, lengths, needs = found.judged, found.lengths, found.needed_on_mix
    assert judged is not None
    assert lengths is not None
    assert needs is not None
    option = found.space.options[place]
    marks = "" if found.space.allowed[place] else " (what-if)"
    yield _described(found, place) + (" <" if place == found.place else marks)
    yield f"{lengths[place]:.2f}" if option.policy else "-"
    yield f"{needs[place]:.2f}" if option.policy else "-"
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
    several = option.window is not None and len(found.space.windows) > 1
    window = f", {tokens(option.window or 0)} + {tokens(option.sink or 0)}" if several else ""
    return f"{option.policy} depth {option.depth}{window}"


def _kv(found: Recommendation, option: Option) -> str:
    assert option.policy is not None
    window = "" if option.window is None else f" ({tokens(option.window)} + {tokens(option.sink or 0)})"
    return f"{named(found.space.deployment, option.policy)}{window}"


def sentences(found: Recommendation) -> list[str]:
    """The verdict: what to run, how sure that is, what would change it, and what a changing depth would add."""
    if found.mix is None:
        return ["Does not fit, even without speculation: see `wmtp estimate` for the largest context and batch."]
    lines = []
    left_out = int((~found.asked_priced.fits[0]).sum())
    if left_out:
        lines.append(f"{left_out} of {found.asked.shares.size} cells do not fit without speculation and are left out.")
    if found.judged is None:
        return [*lines, _needs(found)]
    if found.need != 1:
        lines.append(_needs(found))
    if found.place is None:
        return [*lines, _missed(found), *_changes(found)]
    return [
        *lines,
        _run(found),
        *_target(found),
        *_margins(found),
        *not_sure(unmeasured(found.space.deployment)),
        *_others(found),
        *_changes(found),
        *_switching(found),
    ]


def _needs(found: Recommendation) -> str:
    """The accept length that each depth needs over the mix."""
    assert found.needed_on_mix is not None
    wanted = "Break-even" if found.need == 1 else times(found.need)
    shown = _surface_option(found)
    parts = []
    for place, option in enumerate(found.space.options):
        if (option.policy, option.window, option.sink) == (shown.policy, shown.window, shown.sink):
            needed = float(found.needed_on_mix[place])
            parts.append(
                f"{needed:.2f} at depth {option.depth}"
                + (" (unwinnable)" if needed > found.space.option_depths[place] + 1 else "")
            )
    return f"{wanted} over the mix needs an accept length of: {', '.join(parts[:COLUMNS])} ({_kv(found, shown)})."


def _run(found: Recommendation) -> str:
    assert found.place is not None
    assert found.judged is not None
    assert found.choice is not None
    given = f"{rate(float(found.judged.rate[found.place]))} tok/s"
    if found.choice.policy is None:
        drafts = found.judged.possible[1:].any()
        why = "every depth gives less, or no more" if drafts else "no option that drafts is possible at every cell"
        return f"Run without speculation: {given}; {why}."
    gain = times(float(found.judged.rate[found.place] / found.judged.rate[0]))
    return f"Run depth {found.choice.depth} with {_kv(found, found.choice)}: {given}, {gain} of no speculation."


def _target(found: Recommendation) -> Iterator[str]:
    """Whether the choice meets the target for latency also where its steps are as slow as they may be."""
    if not _targeted(found):
        return
    assert found.judged is not None
    target = f"{milliseconds(found.target.seconds)} ms between tokens"
    expected, slow = (float(each[found.place]) for each in (found.judged.latency_s, found.judged.slow_latency_s))
    if slow <= found.target.seconds:
        both = f"{milliseconds(slow)} ms, {milliseconds(expected)} expected"
        yield f"Meets {target} even at the slow end of its range: {both}."
    else:
        there = "nothing meets it there" if found.certain is None else _certain(found, found.certain)
        said = f"Meets {target} in the expected case, {milliseconds(expected)} ms; at the slow end of its range"
        yield f"{said} {milliseconds(slow)} ms: {there}."


def _certain(found: Recommendation, place: int) -> str:
    assert found.judged is not None
    slow = milliseconds(float(found.judged.slow_latency_s[place]))
    return f"--slo-certain would choose {_described(found, place)}, {slow} ms there"


def _missed(found: Recommendation) -> str:
    """Nothing meets the target: what comes nearest."""
    place, judged = found.nearest_to_target, found.judged
    assert place is not None
    assert judged is not None
    least = milliseconds(float(judged.judged_s[place]))
    target = f"{milliseconds(found.target.seconds)} ms between tokens at every cell"
    if not found.target.certain:
        return f"Nothing meets {target}; {_described(found, place)}: {least} ms."
    expected = milliseconds(float(judged.latency_s[place]))
    nearest = f"{_described(found, place)}: {least} ms there, {expected} expected"
    return f"Nothing meets {target}, the slow end of its range included; {nearest}."


def _margins(found: Recommendation) -> Iterator[str]:
    if found.place and found.runner_up:  # off is compared below
        over, other = found.over(found.runner_up), _described(found, found.runner_up)
        if over.expected < 0:
            yield f"{other} gives {percent(-over.expected)}: too little to prefer it ({_interval(over)} the other way)."
        else:
            either = "" if over.signed else ", so either will do"
            yield f"{percent(over.expected)} over the runner-up, {other}: {_sure(over)}{either}."
    if (drafting := found.speculation) is not None:
        yield f"Speculation {drafting.word}: {percent(drafting.expected)} over off, {_interval(drafting)}."
    if loss := _window_is_worth(found):
        yield loss


def _window_is_worth(found: Recommendation) -> str | None:
    """The loss of acceptance that makes the best plain option as good as a windowed choice, where none was stated."""
    native = found.best_of(_plainest(found))
    windowed = found.choice is not None and found.choice.window is not None
    if not windowed or native is None or found.windowed is not None:
        return None
    assert found.judged is not None
    worth = 1 - found.judged.rate[native] / found.judged.rate[found.place]
    share, other = f"{100 * worth:.1f} %", _described(found, native)
    return f"The window is worth {share} of the accept length: if it costs more, {other} is better."


def _sure(over: Difference) -> str:
    """Whether a difference exceeds its interval, which common errors leave out, and such steps were measured."""
    word = "sure" if over.sure else "probable" if over.signed else "not sure"
    return f"{word} over the interval of the difference, {_interval(over)}"


def _interval(over: Difference) -> str:
    return f"{percent(over.low)} to {percent(over.high)}"


def _others(found: Recommendation) -> Iterator[str]:
    """What the release lacks, or memory rules out."""
    engine = found.space.deployment.engine
    if found.what_if is not None:
        yield f"Not in {engine.name} {engine.version} here: {_adds(found, found.what_if)}."
    if (other := better_backend(found)) is not None:
        option = other.option
        then = "off" if option.policy is None else f"depth {option.depth} with {_kv(found, option)}"
        yield (
            f"Another attention backend would give {percent(other.more)}: --attention-backend {other.backend}, {then} "
            "(kernels alone; what it plans on the host is not priced)."
        )
    if found.too_large is not None:
        yield f"Memory decides: {_adds(found, found.too_large)}, but does not fit at every cell."


def _adds(found: Recommendation, place: int) -> str:
    assert found.place is not None
    assert found.judged is not None
    more = percent(float(found.judged.rate[place] / found.judged.rate[found.place]) - 1)
    return f"{_described(found, place)} would give {more}"


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
    apart = [
        pair for pair, at in zip(shown, standing.intervals, strict=True) if not at[0] <= found.stated(axis) <= at[1]
    ]
    if not apart:
        return ""
    places = (_ends(low, high, ".2f" if lengths else ",.0f") for low, high in apart)
    again = "nothing is possible" if found.place is None else _described(found, found.place)
    return f" Again {again} at {' and '.join(places)}."


def _ends(low: float, high: float, form: str) -> str:
    return f"{low:{form}}" if low == high else f"{low:{form}} to {high:{form}}"


def _scaled(found: Recommendation, axis: str) -> str:
    """Of what the stated number is, where a mix has several."""
    assert found.mix is not None
    if axis == "acceptance" or getattr(found.mix, {"context": "contexts", "batch": "batches"}[axis]).size == 1:
        return ""
    return " (the mix's largest, all scaled alike)"


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


def _switching(found: Recommendation) -> Iterator[str]:
    """What a depth that changes with batch and context adds, and what is left of it by batch alone."""
    table = found.depth_table
    if table is None or found.judged is None or found.place is None or table.depth.size == 1:
        return
    fixed = float(found.judged.rate[found.place])
    more, by_batch = (percent(value / fixed - 1) for value in (table.switching, table.batch_only))
    if table.depth.min() == table.depth.max():
        yield f"No cell of the mix wants another depth than {table.depth.min()}."
        return
    depths = f"{table.depth.min()} to {table.depth.max()}"
    yield f"Depth by batch and context ({depths}; --table writes it) gives {more}, by batch alone {by_batch}."
