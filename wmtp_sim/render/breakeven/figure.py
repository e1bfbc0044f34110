"""The explorer on paper: speedup against depth, where the time goes, and both break-even maps, at the opening point.

The same table and start as the page's: what a reader of the paper sees is what the page opens with.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from wmtp_sim.decide.choice import offered
from wmtp_sim.machine.machine import Timing
from wmtp_sim.render.breakeven.start import Start, as_rates
from wmtp_sim.render.breakeven.table import CostTable, FloatArray
from wmtp_sim.render.figures import FONT, LIGHT, shown
from wmtp_sim.render.layout import layout_words
from wmtp_sim.step.compose import TERMS
from wmtp_sim.units import milliseconds, tokens

#: Pixels of the picture: a full page's width, two panels across.
WIDTH, HEIGHT = 1100, 960
LEFT, RIGHT, TOP, BOTTOM = 65, 95, 135, 60
#: Room between the two rows, and how far below a panel its legend starts: under ticks and the axis title.
BETWEEN, LEGEND_BELOW = 175, 58
#: Room between the two columns, of the plot's width.
ASIDE = 0.11
#: Panels by row and column.
SPEEDUP, TIMES, NATIVE, WINDOWED = (1, 1), (1, 2), (2, 1), (2, 2)
PLOT_HEIGHT = HEIGHT - TOP - BOTTOM
DASHES = {"native": "solid", "flag": "solid", "ring": "dash"}
#: Largest speedup that the maps' colours end at, at least: 1.0 stays in the middle of the scale.
LEAST_TOP = 2.0
#: Tokens of a context axis that get a label, at most.
LABELS = 7


def breakeven_figure(table: CostTable, start: Start) -> Any:
    """A plotly figure of four panels, on white."""
    from plotly.subplots import make_subplots

    view = _View(table, start)
    titles = (
        "Net speedup against depth",
        "Where the time goes",
        "Net speedup, native draft KV",
        f"Net speedup, {view.windowed} draft KV ({view.window_words})",
    )
    figure = make_subplots(
        rows=2,
        cols=2,
        subplot_titles=[f"<b>{title}</b>" for title in titles],
        horizontal_spacing=ASIDE,
        vertical_spacing=BETWEEN / PLOT_HEIGHT,
    )
    _draw_speedup(figure, view)
    _draw_times(figure, view)
    top = max(LEAST_TOP, float(view.map_of("native").max()), float(view.map_of(view.windowed).max()))
    _draw_map(figure, view, "native", NATIVE, top)
    _draw_map(figure, view, view.windowed, WINDOWED, top)
    _dress(figure, view, top)
    return figure


class _View:
    """What the four panels show of a table: everything through the opening point."""

    def __init__(self, table: CostTable, start: Start) -> None:
        self.table, self.start = table, start
        self.point = start.index(table)
        self.depths = table.axes["depth"]
        self.contexts = table.axes["context"]
        self.drafting = [place for place, depth in enumerate(self.depths) if depth > 0]
        windowed = [name for name in table.policies if name != "native"]
        self.windowed = next((name for name in windowed if offered(table.estimate, name)), windowed[0])  # type: ignore[arg-type]
        self.steps = {name: self._whole(table.total(name)) for name in ("base", *table.policies)}

    def _whole(self, timing: Timing) -> Timing:
        shape = self.table.shape
        four = (timing.seconds, timing.low, timing.high, timing.bound)
        return Timing(*(np.broadcast_to(each, shape) for each in four))

    @property
    def window_words(self) -> str:
        work = self.table.estimate.work
        return f"window {tokens(self.start.point['window'])} + sink {tokens(float(work.sink.max()))}"

    def along_depth(self, values: Any) -> FloatArray:
        """Values of the opening point's context, window and batch, one per depth."""
        return np.asarray(values[self.point["context"], :, self.point["window"], self.point["batch"]])

    def gains(self, policy: str) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Net speedup per depth: expected, at the step's upper end, at its lower end."""
        base, step = self.along_depth(self.steps["base"].seconds), self.steps[policy]
        length = self.start.lengths(policy, self.depths)
        seconds, low, high = (self.along_depth(each) for each in (step.seconds, step.low, step.high))
        drafted = np.asarray(self.depths) > 0  # at depth 0 the step is the base step itself
        low, high = np.where(drafted, low, seconds), np.where(drafted, high, seconds)
        return length * base / seconds, length * base / high, length * base / low

    def unwinnable(self, policy: str) -> FloatArray:
        """Per depth, whether no acceptance can pay for the step."""
        needed = self.along_depth(self.steps[policy].seconds) / self.along_depth(self.steps["base"].seconds)
        return np.asarray(needed > np.asarray(self.depths) + 1.0)

    def map_of(self, policy: str) -> FloatArray:
        """Net speedup, one row per drafting depth and one column per context."""
        seconds = self.steps[policy].seconds / self.steps["base"].seconds
        needed = np.asarray(seconds)[:, self.drafting, self.point["window"], self.point["batch"]]
        return np.asarray(self.start.lengths(policy, self.depths)[self.drafting] / needed).T


# --- panels --------------------------------------------------------------------------------------------------------


def _draw_speedup(figure: Any, view: _View) -> None:
    """Bands first, so that no line is seen through one."""
    row, col = SPEEDUP
    gains = {policy: view.gains(policy) for policy in view.table.policies}
    top = max(1.2, *(1.05 * float(high.max()) for _, _, high in gains.values()))
    for policy, (_, low, high) in gains.items():
        band = {"x": [*view.depths, *view.depths[::-1]], "y": [*high, *low[::-1]], "fill": "toself"}
        look = {"fillcolor": LIGHT[policy] + "1c", "line": {"width": 0}, "mode": "lines", "showlegend": False}
        figure.add_scatter(**band, **look, name=f"{policy} band", row=row, col=col)
    for policy, (expected, _, _) in gains.items():
        _draw_line(figure, view, policy, expected)
    lost = np.all([view.unwinnable(policy) for policy in gains], axis=0)
    for depth in np.asarray(view.depths)[lost]:
        hopeless = {"fillcolor": "rgba(128,128,128,0.28)", "line_width": 0, "layer": "below"}
        figure.add_vrect(x0=depth - 0.5, x1=depth + 0.5, **hopeless, row=row, col=col)
    figure.add_hrect(y0=0, y1=1, fillcolor="rgba(128,128,128,0.16)", line_width=0, layer="below", row=row, col=col)
    figure.add_hline(y=1.0, line={"color": LIGHT["ink"], "width": 1.2}, row=row, col=col)
    ends = [view.depths[0] - 0.4, view.depths[-1] + 0.4]
    title = "depth, tokens drafted per step"
    figure.update_xaxes(title=title, dtick=_step(view.depths), range=ends, row=row, col=col)
    figure.update_yaxes(title="net speedup, x", range=[0, top], row=row, col=col)


def _draw_line(figure: Any, view: _View, policy: str, expected: FloatArray) -> None:
    """One policy's line, with crosses where nothing can pay and a star at its best depth."""
    row, col = SPEEDUP
    best, dead = int(np.argmax(expected)), view.unwinnable(policy)
    figure.add_scatter(
        x=view.depths,
        y=expected,
        mode="lines+markers",
        name=f"{_said(view, policy)}: best {expected[best]:.2f}x at depth {view.depths[best]}",
        line={"color": LIGHT[policy], "width": 2, "dash": DASHES[policy]},
        marker={
            "size": [8 if is_dead else 5 for is_dead in dead],
            "symbol": ["x" if is_dead else "circle" for is_dead in dead],
            "color": ["#999999" if is_dead else LIGHT[policy] for is_dead in dead],
            "opacity": 1,
        },
        legend="legend",
        row=row,
        col=col,
    )
    figure.add_scatter(
        x=[view.depths[best]],
        y=[expected[best]],
        mode="markers",
        marker={"symbol": "star", "size": 14, "color": LIGHT[policy], "line": {"color": "#ffffff", "width": 1}},
        name=f"{policy} best",
        showlegend=False,
        row=row,
        col=col,
    )


def _draw_times(figure: Any, view: _View) -> None:
    row, col = TIMES
    names = ["base", *view.table.policies]
    place = tuple(view.point[axis] for axis in ("context", "depth", "window", "batch"))
    for term in TERMS:
        seconds = [view.table.terms[name][term].seconds for name in names]
        figure.add_bar(
            x=names,
            y=[1e3 * float(np.broadcast_to(each, view.table.shape)[place]) for each in seconds],
            name=term,
            marker={"color": LIGHT[term], "line": {"color": "#ffffff", "width": 0.5}},
            legend="legend2",
            row=row,
            col=col,
        )
    for name in names:
        total = float(np.asarray(view.steps[name].seconds)[place])
        label = {"text": f"{milliseconds(total)} ms", "showarrow": False, "yanchor": "bottom"}
        figure.add_annotation(x=name, y=1e3 * total, **label, row=row, col=col)
    figure.update_xaxes(title=f"step at depth {view.start.point['depth']}", row=row, col=col)
    figure.update_yaxes(title="step time, ms", rangemode="tozero", row=row, col=col)


def _draw_map(figure: Any, view: _View, policy: str, panel: tuple[int, int], top: float) -> None:
    row, col = panel
    depths, gains = [view.depths[place] for place in view.drafting], view.map_of(policy)
    figure.add_heatmap(x=view.contexts, y=depths, z=gains, coloraxis="coloraxis", name=policy, row=row, col=col)
    if gains.shape[0] > 1 and gains.shape[1] > 1:
        figure.add_contour(
            x=view.contexts,
            y=depths,
            z=gains,
            name=f"{policy} break-even",
            showscale=False,
            showlegend=False,
            contours={"start": 1, "end": 1, "size": 1, "coloring": "none"},
            line={"color": LIGHT["ink"], "width": 2, "smoothing": 0},
            row=row,
            col=col,
        )
    chosen = {"symbol": "square-open", "size": 16, "color": LIGHT["ink"], "line": {"width": 2}}
    here = view.start.point
    figure.add_scatter(
        x=[here["context"]],
        y=[here["depth"]],
        mode="markers",
        marker=chosen,
        name="opening point",
        showlegend=False,
        row=row,
        col=col,
    )
    figure.update_xaxes(title="context, tokens", **_contexts(view.contexts), row=row, col=col)
    cells = [depths[0] - 0.5, depths[-1] + 0.5]
    figure.update_yaxes(title="depth, tokens drafted", dtick=_step(depths), range=cells, row=row, col=col)


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


def _said(view: _View, policy: str) -> str:
    return policy if offered(view.table.estimate, policy) else f"{policy} (what-if)"  # type: ignore[arg-type]


# --- the whole -----------------------------------------------------------------------------------------------------


def _dress(figure: Any, view: _View, top: float) -> None:
    estimate = view.table.estimate
    title = f"<b>{escape(shown(estimate.model.name))} on {escape(shown(estimate.machine.gpu.name))}</b>"
    subtitle = "<br>".join(escape(line) for line in _subtitle(view))
    below = {"y": (PLOT_HEIGHT + BETWEEN) / 2 / PLOT_HEIGHT - LEGEND_BELOW / PLOT_HEIGHT, "yanchor": "top"}
    figure.update_layout(
        title={
            "text": title,
            "subtitle": {"text": subtitle, "font": {"size": 12, "color": LIGHT["soft"]}},
            "x": 0.0,
            "xref": "paper",
            "y": 1.0 - 22.0 / HEIGHT,
            "yanchor": "top",
            "font": {"size": 17, "color": LIGHT["ink"]},
        },
        width=WIDTH,
        height=HEIGHT,
        margin={"l": LEFT, "r": RIGHT, "t": TOP, "b": BOTTOM},
        template="none",
        barmode="stack",
        paper_bgcolor="#ffffff",
        plot_bgcolor="#ffffff",
        font={"family": FONT, "size": 12, "color": LIGHT["ink"]},
        legend={**below, "x": 0.0, "xanchor": "left"},
        legend2={**below, "x": (1 + ASIDE) / 2, "xanchor": "left", "orientation": "h", "traceorder": "normal"},
        coloraxis={
            "cmin": 0,
            "cmax": top,
            "colorscale": [[0, LIGHT["lose"]], [1 / top, LIGHT["mid"]], [1, LIGHT["win"]]],
            "colorbar": {
                "title": {"text": "net speedup, x"},
                "len": 0.4,
                "y": 0.0,
                "yanchor": "bottom",
                "thickness": 12,
            },
        },
    )
    for note in figure.layout.annotations[:4]:  # the panels' titles
        note.update(xanchor="left", x=note.x - (1 - ASIDE) / 4, font={"size": 13}, yshift=4)
    figure.update_xaxes(
        title={"standoff": 6}, showline=True, linecolor=LIGHT["soft"], ticks="outside", zeroline=False, showgrid=False
    )
    figure.update_yaxes(
        title={"standoff": 8},
        showline=True,
        linecolor=LIGHT["soft"],
        ticks="outside",
        zeroline=False,
        gridcolor=LIGHT["line"],
    )


def _subtitle(view: _View) -> list[str]:
    """Where the picture is taken, and how sure its numbers are."""
    estimate, here, profile = view.table.estimate, view.start.point, view.table.estimate.machine.profile
    engine = f"{estimate.engine.name} {estimate.engine.version}"
    judged = f", judged x{view.table.spread:g} either way" if view.table.spread > 1 else ""
    place = f"context {tokens(here['context'])}, {view.window_words}, batch {here['batch']}"
    place = ", ".join([place, *layout_words(estimate.work.layout)])
    stated = as_rates(view.start.acceptance, here["depth"])
    rate = "rates per position" if stated["rates"] else f"alpha {stated['alpha']:.3g}"
    windowed = as_rates(view.start.windowed, here["depth"])["label"] if view.start.windowed else "as native (assumed)"
    return [
        f"{shown(engine)}{judged}; kernels {shown(profile.label)}; at {place}",
        f"acceptance: {stated['label']}, {rate}; windowed: {windowed}",
        "Bands: the step's range. Stars: best depths. Shaded: speculation loses. Crosses: unwinnable. Maps' line: 1.0.",
    ]
