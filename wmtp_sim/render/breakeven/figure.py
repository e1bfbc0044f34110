"""The explorer on paper: speedup against depth, where the time goes, and both break-even maps, at the opening point.

The same table and start as the page's: what a reader of the paper sees is what the page opens with.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmtp_sim.decide.verdict import judged
from wmtp_sim.render.breakeven.start import Start, as_rates
from wmtp_sim.render.breakeven.table import CostTable, FloatArray
from wmtp_sim.render.figures import LIGHT, dress, shown
from wmtp_sim.render.layout import layout_words
from wmtp_sim.render.sentences import said
from wmtp_sim.render.tables import NO_ROOM
from wmtp_sim.render.verdict import conclusion
from wmtp_sim.step.plan import TERMS
from wmtp_sim.units import milliseconds, tokens

#: Pixels of the picture: a full page's width, two panels across.
WIDTH, HEIGHT = 1100, 993
LEFT, RIGHT, TOP, BOTTOM = 65, 95, 168, 60
#: Room between the two rows, and how far below a panel its legend starts: under ticks and the axis title.
BETWEEN, LEGEND_BELOW = 175, 58
#: Room between the two columns, of the plot's width.
ASIDE = 0.11
#: Where each panel is.
SPEEDUP, TIMES, BEST, BESIDE = ({"row": row, "col": col} for row in (1, 2) for col in (1, 2))
PLOT_HEIGHT = HEIGHT - TOP - BOTTOM
#: Lines of what a release lacks, one after the other.
WHAT_IF = ("dash", "dot", "dashdot", "longdash")
#: Largest speedup that the maps' colours end at, at least: 1.0 stays in the middle of the scale.
LEAST_TOP = 2.0
#: Tokens of a context axis that get a label, at most.
LABELS = 7


def breakeven_figure(table: CostTable, start: Start) -> Any:
    """A plotly figure of four panels, on white."""
    from plotly.subplots import make_subplots

    view = _View(table, start)
    best_of, beside_it = "Net speedup of the best that can run", f"Net speedup, {view.said(view.beside)}"
    titles = ("Net speedup against depth", "Where the time goes", best_of, beside_it)
    figure = make_subplots(
        rows=2,
        cols=2,
        subplot_titles=[f"<b>{title}</b>" for title in titles],
        horizontal_spacing=ASIDE,
        vertical_spacing=BETWEEN / PLOT_HEIGHT,
    )
    _draw_speedup(figure, view)
    _draw_times(figure, view)
    best, beside = view.map_of(None), view.map_of(view.beside)
    top = float(np.nanmax([LEAST_TOP, *best.ravel(), *beside.ravel()]))
    _draw_map(figure, view, "best", best, BEST)
    _draw_map(figure, view, view.beside, beside, BESIDE)
    _dress(figure, view, top)
    figure.layout.meta = dict(each.system.look.colours for each in table.estimate.systems)
    return figure


class _View:
    """What the four panels show of a table: everything through the opening point."""

    def __init__(self, table: CostTable, start: Start) -> None:
        self.table, self.start = table, start
        self.point = start.index(table)
        self.depths = table.axes["depth"]
        self.contexts = table.axes["context"]
        self.drafting = [place for place, depth in enumerate(self.depths) if depth > 0]
        plainest, *others = table.policies
        self.beside = plainest if not others or any(map(table.offered, others)) else others[0]
        self.gains = {name: table.ratios[name].times(start.lengths(table, name)) for name in table.policies}
        self.verdict = judged(table.estimate, self.gains)

    @property
    def window_words(self) -> str:
        work = self.table.estimate.work
        return f"window {tokens(self.start.point['window'])} + sink {tokens(float(work.sink.max()))}"

    def said(self, policy: str) -> str:
        """A policy's name, and whether the release lacks it."""
        return policy if self.table.offered(policy) else f"{policy}, {said('not_here')}"

    def colour(self, policy: str) -> str:
        return self.own_colour(policy) if self.table.offered(policy) else LIGHT["faint"]

    def own_colour(self, policy: str) -> str:
        """The system's colour on light ground."""
        return self.table.estimate.system(policy).system.look.colours[0]

    def dash(self, policy: str) -> str:
        """The line of a system that the release lacks."""
        return WHAT_IF[self.table.policies.index(policy) % len(WHAT_IF)]

    def along_depth(self, values: ArrayLike) -> NDArray[Any]:
        """Values of the opening point's context, window and batch, one per depth."""
        whole = np.broadcast_to(values, self.table.shape)
        return np.asarray(whole[self.point["context"], :, self.point["window"], self.point["batch"]])

    def here(self, values: ArrayLike) -> float:
        """The value of the opening point."""
        return float(self.along_depth(values)[self.point["depth"]])

    def unwinnable(self, policy: str) -> NDArray[np.bool_]:
        """Per depth, whether no acceptance can pay for the step."""
        return self.along_depth(self.table.estimate.policies[policy].unwinnable)

    def best(self) -> tuple[int, str, float] | None:
        """The place of the best depth, with what, and its speedup; None where nothing can run at any depth."""
        gains, policies = (self.along_depth(each) for each in (self.verdict.gain.expected, self.verdict.policy))
        if not np.isfinite(gains).any():
            return None
        place = int(np.nanargmax(gains))
        return place, self.verdict.names[policies[place]], float(gains[place])

    def map_of(self, policy: str | None) -> FloatArray:
        """Net speedup, one row per drafting depth and one column per context; NaN where memory does not hold it.

        None is the best that can run.
        """
        gains = self.verdict.gain if policy is None else self.gains[policy]
        held = np.where(True if policy is None else self.table.fits(policy), gains.expected, np.nan)
        whole = np.broadcast_to(held, self.table.shape)
        return np.asarray(whole[:, self.drafting, self.point["window"], self.point["batch"]]).T


# --- panels --------------------------------------------------------------------------------------------------------


def _draw_speedup(figure: Any, view: _View) -> None:
    """Bands first, so that no line is seen through one."""
    for policy in filter(view.table.offered, view.table.policies):
        _draw_band(figure, view, policy)
    for policy in view.table.policies:
        _draw_line(figure, view, policy)
    _draw_best(figure, view)
    lost = np.all([view.unwinnable(policy) for policy in view.table.policies if view.table.offered(policy)], axis=0)
    for depth in np.asarray(view.depths)[lost]:
        hopeless = {"fillcolor": "rgba(128,128,128,0.28)", "line_width": 0, "layer": "below"}
        figure.add_vrect(x0=depth - 0.5, x1=depth + 0.5, **hopeless, **SPEEDUP)
    figure.add_hrect(y0=0, y1=1, fillcolor="rgba(128,128,128,0.16)", line_width=0, layer="below", **SPEEDUP)
    figure.add_hline(y=1.0, line={"color": LIGHT["ink"], "width": 1.2}, **SPEEDUP)
    ends = [view.depths[0] - 0.4, view.depths[-1] + 0.4]
    figure.update_xaxes(title="depth, tokens drafted per step", dtick=_step(view.depths), range=ends, **SPEEDUP)
    top = np.nanmax(np.concatenate([np.asarray(each.y) for each in figure.select_traces(**SPEEDUP)]))
    figure.update_yaxes(title="net speedup, x", range=[0, max(1.2, 1.05 * top)], **SPEEDUP)


def _draw_band(figure: Any, view: _View, policy: str) -> None:
    """The range of a policy's speedup, over the depths that memory holds."""
    held = view.along_depth(view.table.fits(policy))
    depths, gains = np.asarray(view.depths)[held], view.gains[policy]
    low, high = (view.along_depth(each)[held] for each in (gains.low, gains.high))
    band = {"x": [*depths, *depths[::-1]], "y": [*high, *low[::-1]], "fill": "toself"}
    look = {"fillcolor": view.own_colour(policy) + "1c", "line": {"width": 0}, "mode": "lines", "showlegend": False}
    if len(depths):
        figure.add_scatter(**band, **look, name=f"{policy} band", **SPEEDUP)


def _draw_line(figure: Any, view: _View, policy: str) -> None:
    """One policy's line, with crosses where nothing can pay, and grey squares where memory does not hold it."""
    held, dead = view.along_depth(view.table.fits(policy)), view.unwinnable(policy)
    expected, colour = view.along_depth(view.gains[policy].expected), view.colour(policy)
    marker = {
        "size": [8 if is_dead else 5 for is_dead in dead],
        "symbol": ["x" if is_dead else "circle" for is_dead in dead],
        "color": ["#999999" if is_dead else colour for is_dead in dead],
        "opacity": 1,
    }
    line = {"color": colour, "width": 2, "dash": "solid" if view.table.offered(policy) else view.dash(policy)}
    look = {"mode": "lines+markers", "line": line, "marker": marker, "legend": "legend"}
    name = _line_name(view, policy, np.where(held, expected, -np.inf))
    figure.add_scatter(x=view.depths, y=np.where(held, expected, np.nan), name=name, **look, **SPEEDUP)
    if not held.all():
        squares = {"symbol": "square-open", "size": 8, "color": LIGHT["faint"]}
        named = {"name": f"{policy} {NO_ROOM}", "showlegend": False, "mode": "markers", "marker": squares}
        figure.add_scatter(x=np.asarray(view.depths)[~held], y=expected[~held], **named, **SPEEDUP)


def _line_name(view: _View, policy: str, held: FloatArray) -> str:
    best = int(np.argmax(held))
    if not np.isfinite(held[best]):
        return f"{view.said(policy)}: {NO_ROOM}"
    return f"{view.said(policy)}: best {held[best]:.2f}x at depth {view.depths[best]}"


def _draw_best(figure: Any, view: _View) -> None:
    """A star on the best that can run."""
    found = view.best()
    if found is None:
        return
    place, policy, gain = found
    look = {"symbol": "star", "size": 14, "color": view.own_colour(policy), "line": {"color": "#ffffff", "width": 1}}
    star = {"x": [view.depths[place]], "y": [gain], "mode": "markers", "marker": look, "showlegend": False}
    figure.add_scatter(**star, name="best", **SPEEDUP)


def _draw_times(figure: Any, view: _View) -> None:
    """Pale: not in this release. Hatched: memory does not hold it."""
    names = ["base", *view.table.policies]
    held = {name: bool(view.here(view.table.fits(name))) for name in names}
    look = {
        "opacity": [1.0, *(1.0 if view.table.offered(policy) else 0.4 for policy in view.table.policies)],
        "pattern": {"shape": ["" if held[name] else "/" for name in names]},
        "line": {"color": "#ffffff", "width": 0.5},
    }
    for term in TERMS:
        ms = [1e3 * view.here(view.table.costs[name].terms[term]) for name in names]
        figure.add_bar(x=names, y=ms, name=term, marker={"color": LIGHT[term], **look}, legend="legend2", **TIMES)
    for name in names:
        total = view.here(view.table.costs[name].step_s)
        text = f"{'' if held[name] else f'{NO_ROOM}<br>'}{milliseconds(total)} ms"
        figure.add_annotation(x=name, y=1e3 * total, text=text, showarrow=False, yanchor="bottom", **TIMES)
    figure.update_xaxes(title=f"step at depth {view.start.point['depth']}", **TIMES)
    figure.update_yaxes(title="step time, ms", rangemode="tozero", **TIMES)


def _draw_map(figure: Any, view: _View, name: str, gains: FloatArray, panel: dict[str, int]) -> None:
    depths = [view.depths[place] for place in view.drafting]
    pale = {"opacity": 0.65} if name != "best" and not view.table.offered(view.beside) else {}
    at = {"x": view.contexts, "y": depths}
    figure.add_heatmap(**at, z=gains, coloraxis="coloraxis", name=name, **pale, **panel)
    _draw_no_room(figure, at, np.isnan(gains), panel)
    if gains.shape[0] > 1 and gains.shape[1] > 1:
        level = {"start": 1, "end": 1, "size": 1, "coloring": "none"}
        line = {"color": LIGHT["ink"], "width": 2, "smoothing": 0}
        look = {"contours": level, "line": line, "showscale": False, "showlegend": False}
        figure.add_contour(**at, z=gains, name=f"{name} break-even", **look, **panel)
    square = {"symbol": "square-open", "size": 16, "color": LIGHT["ink"], "line": {"width": 2}}
    chosen = {"name": "opening point", "mode": "markers", "marker": square, "showlegend": False}
    figure.add_scatter(x=[view.start.point["context"]], y=[view.start.point["depth"]], **chosen, **panel)
    figure.update_xaxes(title="context, tokens", **_contexts(view.contexts), **panel)
    cells = [depths[0] - 0.5, depths[-1] + 0.5]
    figure.update_yaxes(title="depth, tokens drafted", dtick=_step(depths), range=cells, **panel)


def _draw_no_room(figure: Any, at: dict[str, Any], shut: NDArray[np.bool_], panel: dict[str, int]) -> None:
    """Grey cells with a cross, where memory does not hold it."""
    if not shut.any():
        return
    grey = [[0, LIGHT["faint"]], [1, LIGHT["faint"]]]
    look = {"colorscale": grey, "opacity": 0.55, "showscale": False, "texttemplate": "%{text}"}
    marks = {"z": np.where(shut, 1.0, np.nan), "text": np.where(shut, "×", "")}
    figure.add_heatmap(**at, **marks, name=NO_ROOM, **look, **panel)


def _contexts(values: Sequence[int]) -> dict[str, Any]:
    """A logarithmic axis over contexts with token counts as labels; half a cell beyond its ends."""
    if len(values) == 1:
        return {"type": "category", "tickvals": [0], "ticktext": [tokens(values[0])]}
    at = np.log10(np.asarray(values, dtype=float))
    step = -(-len(values) // LABELS)
    labelled = list(values[::-1][::step])
    ends = [at[0] - (at[1] - at[0]) / 2, at[-1] + (at[-1] - at[-2]) / 2]
    return {"type": "log", "range": ends, "tickvals": labelled, "ticktext": [tokens(each) for each in labelled]}


def _step(depths: Sequence[int]) -> int:
    return 1 if len(depths) <= 16 else -(-len(depths) // 16)


# --- the whole -----------------------------------------------------------------------------------------------------


def _dress(figure: Any, view: _View, top: float) -> None:
    estimate = view.table.estimate
    first, *rest = (escape(line) for line in _subtitle(view))
    below = {"y": (PLOT_HEIGHT + BETWEEN) / 2 / PLOT_HEIGHT - LEGEND_BELOW / PLOT_HEIGHT, "yanchor": "top"}
    bar = {"title": {"text": "net speedup, x"}, "len": 0.4, "y": 0.0, "yanchor": "bottom", "thickness": 12}
    dress(
        figure,
        (estimate.model.name, estimate.machine.gpu.name),
        "<br>".join([f"<b>{first}</b>", *rest]),
        HEIGHT,
        above=22.0,
        width=WIDTH,
        margin={"l": LEFT, "r": RIGHT, "t": TOP, "b": BOTTOM},
        barmode="stack",
        legend={**below, "x": 0.0, "xanchor": "left"},
        legend2={**below, "x": (1 + ASIDE) / 2, "xanchor": "left", "orientation": "h", "traceorder": "normal"},
        coloraxis={
            "cmin": 0,
            "cmax": top,
            "colorscale": [[0, LIGHT["lose"]], [1 / top, LIGHT["mid"]], [1, LIGHT["win"]]],
            "colorbar": bar,
        },
    )
    for note in figure.layout.annotations[:4]:  # the panels' titles
        note.update(xanchor="left", x=note.x - (1 - ASIDE) / 4, font={"size": 13}, yshift=4)
    axis = {"showline": True, "linecolor": LIGHT["soft"], "ticks": "outside", "zeroline": False}
    figure.update_xaxes(title={"standoff": 6}, **axis, showgrid=False)
    figure.update_yaxes(title={"standoff": 8}, **axis, gridcolor=LIGHT["line"])


def _subtitle(view: _View) -> list[str]:
    """The verdict, where the picture is taken, and how sure its numbers are."""
    estimate, here, profile = view.table.estimate, view.start.point, view.table.estimate.machine.profile
    place = f"context {tokens(here['context'])}, {view.window_words}, batch {here['batch']}"
    place = ", ".join([place, *layout_words(estimate.work.layout)])
    stated = as_rates(view.start.acceptance, view.start.drafted)
    rate = "rates per position" if stated["rates"] else f"alpha {stated['alpha']:.3g}"
    windowed = f"as {view.table.policies[0]} (assumed)"
    if view.start.windowed:
        windowed = as_rates(view.start.windowed, view.start.drafted)["label"]
    return [
        conclusion(view.start.at_point(view.table))[0],
        f"{shown(estimate.release)}, {estimate.engine.standing}; kernels {shown(profile.label)}; at {place}",
        f"acceptance: {stated['label']}, {rate}; windowed: {windowed}",
        f"Bands: ranges. Star: the best that can run. Pale, broken: {said('not_here')}. Shaded: loses. x: unwinnable.",
        f"Maps' line: break-even, 1.0. Grey cells, grey squares and hatched bars: {NO_ROOM} in memory.",
    ]
