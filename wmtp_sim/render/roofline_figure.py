"""The picture of a `Roofline`: operations under the roofs, and measured points over the fitted curves."""

from __future__ import annotations

import math
from html import escape
from typing import Any, NamedTuple

from wmtp_sim.render.figures import LIGHT, dress, shown
from wmtp_sim.render.roofline import Left, Point, Roofline, Series
from wmtp_sim.render.spots import Box, spots
from wmtp_sim.units import tokens

#: Colours that colour-blind readers tell apart; shapes tell phases apart in print.
PHASES = {
    "base": (LIGHT["ink"], "circle-open"),
    "verify": (LIGHT["blue"], "circle"),
    "draft": (LIGHT["vermilion"], "diamond"),
    "extend": (LIGHT["green"], "square"),
    "sample": (LIGHT["extend"], "triangle-up"),
}
REACHED, INK, SOFT = (LIGHT[name] for name in ("faint", "ink", "soft"))
AXIS = {"type": "log", "gridcolor": LIGHT["line"], "showline": True, "linecolor": REACHED, "ticks": "outside"}
#: Where the roofs are.
ROOFS = {"row": 1, "col": 1}
#: How many operations are named in the picture.
LABELLED = 10
#: Panels of measured points: classes shown, and how many fit beside one another.
MOST_PANELS, COLUMNS = 6, 3
#: Pixels: the picture, its margins, the room of the roofs and of one row of panels with its titles.
WIDTH, LEFT, TOP, BOTTOM = 1100, 80, 110, 60
ROOFS_HEIGHT, PANEL_HEIGHT, GAP = 520, 190, 105
#: A letter's width in a name and in a roof's, a line's height, and how far the memory's name is above its slope.
TEXT_WIDTH, SMALL_TEXT_WIDTH, TEXT_HEIGHT, MEMORY_SHIFT = 6.0, 5.6, 15.0, 6
#: Diameter of a marker whose operation is the whole step, and of the smallest: area goes as the share.
WHOLE_STEP, SMALLEST = 62.0, 5.0


def roofline_figure(roofs: Roofline) -> Any:
    """A plotly figure with one subplot of roofs, and one of measured points for each kernel class that has any."""
    from plotly.subplots import make_subplots

    panels = _panels(roofs)
    rows = math.ceil(len(panels) / COLUMNS)
    height = ROOFS_HEIGHT + rows * (PANEL_HEIGHT + GAP)
    below: list[list[dict[str, int]]] = [[{} for _ in range(COLUMNS)] for _ in range(rows)]
    figure = make_subplots(
        rows=1 + rows,
        cols=COLUMNS,
        specs=[[{"colspan": COLUMNS}, *[None] * (COLUMNS - 1)], *below],
        row_heights=[ROOFS_HEIGHT, *[PANEL_HEIGHT] * rows],
        vertical_spacing=GAP / height,
        horizontal_spacing=0.075,
    )
    frame = _Frame(roofs)
    _draw_roofs(figure, roofs, frame)
    _draw_points(figure, roofs)
    _label_points(figure, roofs, frame)
    cells = [{"row": 2 + i // COLUMNS, "col": 1 + i % COLUMNS} for i in range(rows * COLUMNS)]
    for series, at in zip(panels.values(), cells, strict=False):
        _draw_panel(figure, series, at)
    for at in cells[len(panels) :]:
        figure.update_xaxes(visible=False, **at)
        figure.update_yaxes(visible=False, **at)
    _dress(figure, roofs, frame, height)
    return figure


def roofline_notes(roofs: Roofline) -> list[str]:
    """What a reader must know beside the picture: labels, what has no place in it, what was measured."""
    left = [f"{p.name} ({p.phase}) {_share(p.share)}" for p in roofs.not_drawn if p.share >= 0.005]
    whose = "Shares are of the base step" + (f", or of the {roofs.policy} step." if len(roofs.steps) > 1 else ".")
    lines = [f"Kernels: {shown(roofs.label)}; profile {shown(roofs.profile)}. {whose}"]
    if left:
        lines.append(f"Without FLOPs or over a link, so not drawn: {', '.join(left)}.")
    return [*lines, *roofs.notes]


def roofline_rows(roofs: Roofline) -> list[list[str]]:
    """The operations as a table, its columns' names first: what the picture tells those who see it and hover."""
    head = ["phase", "operation", "share", "µs", "runs", "kernel", "label", "FLOP/byte", "FLOP/s", "waits for"]
    points = [[*_named(p), *_placed(p)] for p in roofs.points]
    return [head, *points, *([*_named(p), "", "", "", "", "", p.why] for p in roofs.not_drawn)]


def _named(point: Point | Left) -> list[str]:
    return [point.phase, point.name, _share(point.share), f"{point.seconds * 1e6:.3g}"]


def _placed(point: Point) -> list[str]:
    place = [f"{point.intensity:.3g}", _si(point.attained_flops_per_s)]
    return [f"{point.executions:g}", point.kernel, point.label, *place, point.binds]


class _Frame:
    """What the roofs' axes span, and where a place on them lies in pixels (y downwards)."""

    def __init__(self, roofs: Roofline) -> None:
        peak = max(c.flops_per_s for c in roofs.ceilings)
        x = [p.intensity for p in roofs.points] or [1.0]
        y = [p.attained_flops_per_s for p in roofs.points] or [peak / 1e3]
        ridge = peak / roofs.bytes_per_s
        self.x = (math.log10(min(x) / 5.0), math.log10(max(*x, ridge) * 4.0))
        self.y = (math.log10(min(y) / 3.0), math.log10(peak * 2.0))
        longest = max(len(roof.name) for roof in _roofs(roofs))
        self.right = int(SMALL_TEXT_WIDTH * longest) + 12
        self.memory_at = min(c.flops_per_s for c in roofs.ceilings) / roofs.bytes_per_s / 2.0
        self.width, self.height = WIDTH - LEFT - self.right, ROOFS_HEIGHT

    def pixel(self, intensity: float, rate: float) -> tuple[float, float]:
        across = (math.log10(intensity) - self.x[0]) / (self.x[1] - self.x[0])
        down = (self.y[1] - math.log10(rate)) / (self.y[1] - self.y[0])
        return across * self.width, down * self.height


# --- the roofs -----------------------------------------------------------------------------------------------------


class _Roof(NamedTuple):
    """A line that no operation gets above: its slope and its height, and how it is drawn."""

    bytes_per_s: float
    flops_per_s: float
    name: str
    colour: str
    line: dict[str, Any]


def _roofs(roofs: Roofline) -> list[_Roof]:
    """The datasheet's, then what kernel classes attain, of the six largest shares; an ideal one is the datasheet's."""
    solid, dotted = {"color": SOFT, "width": 1.6}, {"color": REACHED, "width": 1.0, "dash": "dot"}
    found = []
    for each in roofs.ceilings:
        name = f"{each.math} {_si(each.flops_per_s)}FLOP/s, datasheet"
        found.append(_Roof(roofs.bytes_per_s, each.flops_per_s, name, INK, solid))
    for a in [a for a in roofs.attainable if a.label != "ideal"][:6]:
        name = f"{a.kernel} {a.math} {_si(a.flops_per_s)}, {a.label}"
        found.append(_Roof(a.bytes_per_s, a.flops_per_s, name, SOFT, dotted))
    return found


def _draw_roofs(figure: Any, roofs: Roofline, frame: _Frame) -> None:
    look = {"mode": "lines", "showlegend": False, "hovertemplate": "%{fullData.name}<extra></extra>"}
    low, high = 10 ** frame.x[0], 10 ** frame.x[1]
    drawn = _roofs(roofs)
    for slope, peak, name, _, line in drawn:
        x, y = [low, peak / slope, high], [low * slope, peak, peak]
        figure.add_scatter(x=x, y=y, name=escape(name), line=line, **look, **ROOFS)
    _name_roofs(figure, frame, drawn)
    _name_memory(figure, roofs, frame)


def _name_memory(figure: Any, roofs: Roofline, frame: _Frame) -> None:
    """The memory's rate, above its slope: no operation is there."""
    place = {"x": math.log10(frame.memory_at), "y": math.log10(frame.memory_at * roofs.bytes_per_s)}
    beside = {"xanchor": "right", "yanchor": "bottom", "yshift": MEMORY_SHIFT, "showarrow": False}
    figure.add_annotation(**place, text=_memory_text(roofs), **beside, font={"size": 11, "color": INK})


def _memory_text(roofs: Roofline) -> str:
    return f"memory {_si(roofs.bytes_per_s)}B/s, datasheet"


def _obstacles(roofs: Roofline, frame: _Frame) -> list[Box]:
    """What names keep off beside marks: the memory's slope and its name."""
    x, y = frame.pixel(frame.memory_at, frame.memory_at * roofs.bytes_per_s)
    found = [Box(x - TEXT_WIDTH * len(_memory_text(roofs)), y - MEMORY_SHIFT - TEXT_HEIGHT, x, y - MEMORY_SHIFT)]
    for i in range(120):
        intensity = 10 ** (frame.x[0] + (frame.x[1] - frame.x[0]) * i / 120)
        x, y = frame.pixel(intensity, intensity * roofs.bytes_per_s)
        found.append(Box(x - 3, y - 3, x + 3, y + 3))
    return found


def _name_roofs(figure: Any, frame: _Frame, roofs: list[_Roof]) -> None:
    """Names at the right end of each roof, from the top down, moved apart where roofs are close."""
    lowest = -math.inf
    for roof in sorted(roofs, key=lambda each: -each.flops_per_s):
        wanted = frame.pixel(1.0, roof.flops_per_s)[1]
        lowest = max(wanted, lowest + 15.0)
        place = {"x": 1.0, "xref": "x domain", "y": math.log10(roof.flops_per_s), "xanchor": "left", "xshift": 4}
        font = {"size": 10, "color": roof.colour}
        figure.add_annotation(**place, yshift=wanted - lowest, text=escape(roof.name), showarrow=False, font=font)


# --- the operations ------------------------------------------------------------------------------------------------


def _draw_points(figure: Any, roofs: Roofline) -> None:
    for phase, (color, symbol) in PHASES.items():
        points = [p for p in roofs.points if p.phase == phase]
        edge = {"width": 1.5, "color": color} if symbol.endswith("-open") else {"width": 0.7, "color": LIGHT["ground"]}
        look = {"color": color, "symbol": symbol, "line": edge}
        if points:
            figure.add_scatter(
                x=[p.intensity for p in points],
                y=[p.attained_flops_per_s for p in points],
                customdata=[_details(p) for p in points],
                mode="markers",
                name=phase,
                marker={**look, "size": [diameter(p) for p in points], "opacity": 0.75},
                hovertemplate=_HOVER,
                **ROOFS,
            )


_HOVER = (
    "<b>%{customdata[0]}</b> (%{fullData.name})<br>%{customdata[1]}<br>%{x:.3~g} FLOP/byte, %{y:.3~s}FLOP/s"
    "<br>%{customdata[2]}<extra></extra>"
)


def _details(point: Point) -> list[str]:
    shape = "its shape measured" if point.measured_shape else "its shape not measured"
    kernel = f"{point.kernel}, {point.math}; {point.label}, {shape}"
    time = f"{_share(point.share)} of the step, {point.seconds * 1e6:.3g} µs in {point.executions:g} runs"
    reach = f"{_share(point.attained_flops_per_s / point.roof_flops_per_s)} of the datasheet roof"
    return [escape(point.name), escape(kernel), f"{time}<br>{reach}; waits for {point.binds}"]


def diameter(point: Point) -> float:
    """Pixels of a marker."""
    return max(WHOLE_STEP * math.sqrt(point.share), SMALLEST)


def _label_points(figure: Any, roofs: Roofline, frame: _Frame) -> None:
    """Names of the largest operations, where no other name or large marker is."""
    chosen = roofs.points[:LABELLED]
    centres = [frame.pixel(p.intensity, p.attained_flops_per_s) for p in roofs.points]
    radii = [diameter(p) / 2 for p in roofs.points]
    texts = [f"{p.name}, {p.phase} {_share(p.share)}" for p in chosen]
    sizes = [(TEXT_WIDTH * len(text) + 6.0, TEXT_HEIGHT) for text in texts]
    found = spots(centres, radii, sizes, Box(0.0, 0.0, frame.width, frame.height), _obstacles(roofs, frame))
    for point, text, (x, y) in zip(chosen, texts, found, strict=True):
        at, color = frame.pixel(point.intensity, point.attained_flops_per_s), PHASES[point.phase][0]
        place = {"x": math.log10(point.intensity), "y": math.log10(point.attained_flops_per_s)}
        line = {"showarrow": True, "arrowhead": 0, "arrowwidth": 0.8, "arrowcolor": color}
        reach = {"ax": x - at[0], "ay": y - at[1], "standoff": diameter(point) / 2}
        look = {"font": {"size": 11, "color": color}, "bgcolor": LIGHT["veil"], "borderpad": 1}
        figure.add_annotation(**place, text=escape(text), **line, **reach, **look)


# --- measured points -----------------------------------------------------------------------------------------------


def _panels(roofs: Roofline) -> dict[str, list[Series]]:
    """Measured series by kernel class, of the classes that take the largest shares."""
    found: dict[str, list[Series]] = {}
    for point in roofs.points:
        series = [s for s in roofs.measured if s.kernel == point.kernel]
        if series:
            found.setdefault(point.kernel, series)
    return dict(list(found.items())[:MOST_PANELS])


def _draw_panel(figure: Any, series: list[Series], at: dict[str, int]) -> None:
    sizes = [1e6 * each for s in series for each in s.size_s]
    forms = [1e6 * each for s in series for each in s.form_s]
    seconds = [1e6 * each for s in series for each in s.seconds]
    curve = sorted(zip(sizes, forms, strict=True))
    kernel, label = series[0].kernel, series[0].label
    figure.add_scatter(
        x=[size for size, _ in curve],
        y=[form for _, form in curve],
        name=escape(f"{kernel}, fitted"),
        line={"color": LIGHT["draft"], "width": 2},
        hovertemplate="fitted %{y:.3~g} µs<extra></extra>",
        mode="lines",
        showlegend=False,
        **at,
    )
    figure.add_scatter(
        x=sizes,
        y=seconds,
        customdata=[[escape(f"{', '.join(s.operations)}; {s.rows:g} rows")] for s in series for _ in s.seconds],
        name=escape(f"{kernel}, {label}"),
        marker={"color": LIGHT["blue"], "size": 5, "opacity": 0.7},
        hovertemplate="%{customdata[0]}<br>%{y:.3~g} µs<extra></extra>",
        mode="markers",
        showlegend=False,
        **at,
    )
    title = f"<b>{escape(kernel)}</b><br>{len(seconds)} points {escape(shown(label))}"
    size = {"text": "size: µs by the fitted form", "font": {"size": 11}}
    figure.update_xaxes(**AXIS, **_ticks(sizes), title=size, **at)
    figure.update_yaxes(**AXIS, **_ticks(seconds + forms), **at)
    if at["col"] == 1:
        figure.update_yaxes(title={"text": "measured, µs", "font": {"size": 11}}, **at)
    corner = {"x": 0.0, "y": 1.0, "xref": "x domain", "yref": "y domain", "xanchor": "left", "yanchor": "bottom"}
    look = {"align": "left", "showarrow": False, "font": {"size": 11, "color": INK}}
    figure.add_annotation(text=title, **corner, **look, **at)


def _ticks(values: list[float]) -> dict[str, Any]:
    """Ticks at powers of ten, and at 2 and 5 between them where there are few."""
    low, high = math.log10(min(values) / 1.2), math.log10(max(values) * 1.2)
    steps = (1, 2, 5) if high - low < 2.2 else (1,)
    marks = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in steps]
    kept = [m for m in marks if low <= math.log10(m) <= high]
    return {"range": [low, high], "tickvals": kept, "ticktext": [f"{m:,.10g}" for m in kept]}


# --- the whole -----------------------------------------------------------------------------------------------------


def _dress(figure: Any, roofs: Roofline, frame: _Frame, height: int) -> None:
    figure.update_xaxes(AXIS, range=frame.x, title="arithmetic intensity, FLOP per byte", dtick=1, **ROOFS)
    figure.update_yaxes(AXIS, range=frame.y, title="attained, FLOP/s per GPU", dtick=1, tickformat="~s", **ROOFS)
    dress(
        figure,
        (roofs.model, roofs.gpu),
        escape(_subtitle(roofs)),
        height + TOP + BOTTOM,
        above=24.0,
        modebar={"remove": ["select2d", "lasso2d"]},
        margin={"l": LEFT, "r": frame.right, "t": TOP, "b": BOTTOM},
        legend={"orientation": "h", "x": 0.0, "y": 1.0, "yanchor": "bottom", "itemsizing": "constant"},
        hoverlabel={"bgcolor": LIGHT["ground"]},
    )


def _subtitle(roofs: Roofline) -> str:
    stated = roofs.deployment
    parts = [f"context {tokens(stated['context'])}", f"depth {stated['depth']}", f"batch {stated['batch']}"]
    if stated["tp"] > 1:
        parts.append(f"tp {stated['tp']}")
    steps = "base step" if len(roofs.steps) == 1 else f"base step and {roofs.policy} step"
    points = "" if roofs.measured else "; no measured points of these shapes"
    kernels = f"kernels {shown(roofs.label)}{points}"
    return f"{', '.join(parts)}; {shown(roofs.engine)}; {steps}; {kernels}; marker area: share of the step"


def _si(value: float) -> str:
    """Three digits and a decimal prefix: ``4.8 T``."""
    power = max(min(int(math.log10(value) // 3), 6), 0)
    return f"{value / 1000**power:.3g} {['', 'k', 'M', 'G', 'T', 'P', 'E'][power]}"


def _share(part: float) -> str:
    return f"{part:.1%}".replace("%", " %")
