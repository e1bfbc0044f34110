"""Machine profiles and fits as tables and JSON documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from wmtp_sim.catalog.profiles import load_profile, profile_names, profile_path
from wmtp_sim.errors import InputError
from wmtp_sim.machine.curves import MeasuredGeometry
from wmtp_sim.machine.profile import KernelModel, Profile
from wmtp_sim.render.console import plain_table, share

PROFILES_SCHEMA = "wmtp-profiles/1"
#: How many points of a curve are printed.
SHOWN = 6
#: What provenance says first; anything else follows in its own order.
FIRST = ("gpu", "date", "driver", "cuda", "torch", "triton", "python")


def profile_documents() -> dict[str, Any]:
    """All profiles in short. One that cannot be read says why, and hides no other."""
    return {"schema": PROFILES_SCHEMA, "profiles": [_document(name) for name in profile_names()]}


def _document(name: str) -> dict[str, Any]:
    path = profile_path(name)
    try:
        profile = load_profile(name)
    except InputError as error:
        unread = dict.fromkeys(("gpu", "date", "by"), None) | {"status": "unreadable", "points": 0}
        return {"name": name, **unread, "path": str(path), "error": str(error)[:300]}
    return {
        "name": name,
        "gpu": profile.gpu,
        "date": _date(profile),
        "status": profile.status,
        "by": profile.by,
        "points": len(profile.measurements) or _fitted_points(profile),
        "path": str(path),
    }


def _fitted_points(profile: Profile) -> int:
    """Points that a profile without points of its own was fitted on, by its provenance."""
    counts = profile.provenance.get("points")
    found = counts.values() if isinstance(counts, dict) else ()
    return sum(count for count in found if isinstance(count, int) and not isinstance(count, bool))


def _date(profile: Profile) -> str | None:
    date = profile.provenance.get("date")
    return None if date is None else str(date)[:40]


def print_profiles(console: Console) -> None:
    rows = [_document(name) for name in profile_names()]
    if not rows:
        console.print(Text("No profiles. `wmtp calibrate` writes one for this machine."))
        return
    table = plain_table(("profile", "gpu", "status", "date"), ("points",))
    table.add_column("path", overflow="fold")
    table.columns[0].no_wrap = True
    for row in rows:
        status = f"{row['status']} ({row['by']})" if row["by"] else row["status"]
        cells = (row["name"], row["gpu"] or "-", status, row["date"] or "-", str(row["points"]), row["path"])
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    for row in rows:
        if "error" in row:
            console.print(Text(row["error"], style="bold"))


def print_profile(profile: Profile, console: Console) -> None:
    """Every class of a profile, and where its numbers come from."""
    console.print(Text(f"{profile.name}: {profile.label}", style="bold"))
    table = plain_table(
        ("class",),
        ("floor us", "bandwidth", "compute", "points", "shapes", "median err", "p90 err", "90 % range", "bytes"),
    )
    for name, model in sorted(profile.kernels.items()):
        table.add_row(Text(name), *_cells(model))
    console.print(table)
    _print_curves(profile, console)
    console.print(Text("Errors are of held-out points; classes without points have documented constants.", "dim"))
    for label in (*FIRST, *(key for key in profile.provenance if key not in FIRST)):
        value = profile.provenance.get(label)
        if value not in (None, ""):
            console.print(Text(f"{label[:40]}: {str(value)[:300]}"), soft_wrap=True)
    for source in dict.fromkeys(model.source for model in profile.kernels.values() if model.points):
        console.print(Text(f"source: {source[:300]}"), soft_wrap=True)
    for note in profile.notes:
        console.print(Text(f"note: {note[:300]}"), soft_wrap=True)


def _print_curves(profile: Profile, console: Console) -> None:
    """Of each measured class, the geometry with most points: microseconds at up to six of its sizes or rows."""
    table = plain_table(("class", "most measured shape", "measured us (x what the class's form says)"))
    for name, model in sorted(profile.kernels.items()):
        if model.measured is None or not any(entry.curves for entry in model.measured.geometries):
            continue
        entry = max(model.measured.geometries, key=lambda e: sum(len(curve.seconds) for curve in e.curves))
        shape = " x ".join(f"{size:g}" for size in entry.geometry)
        table.add_row(Text(name), Text(shape), Text(_curve(entry)))
    if table.row_count:
        console.print(table)


def _curve(entry: MeasuredGeometry) -> str:
    """A geometry's points by rising size at its fewest rows, or by rows where each has one size."""
    if all(len(curve.seconds) == 1 for curve in entry.curves):
        steps = [(f"{curve.rows:g} rows ", curve.seconds[0], curve.form_s[0]) for curve in entry.curves]
    else:
        first = entry.curves[0]
        steps = [("", seconds, form_s) for seconds, form_s in zip(first.seconds, first.form_s, strict=True)]
    last = len(steps) - 1
    chosen = sorted({round(i * last / (SHOWN - 1)) for i in range(SHOWN)})
    shown = ((label, seconds, seconds / form_s) for label, seconds, form_s in (steps[i] for i in chosen))
    return ", ".join(f"{label}{seconds * 1e6:.1f} (x{ratio:.2f})" for label, seconds, ratio in shown)


def _cells(model: KernelModel) -> tuple[str, ...]:
    shapes = len(model.measured.geometries) if model.measured else 0
    return (
        f"{model.floor_s * 1e6:.2f}",
        f"{model.bandwidth:.1%}",
        f"{model.compute:.1%}",
        str(model.points or "-"),
        str(shapes or "-"),
        share(model.median_error),
        share(model.p90_error),
        f"/{model.spread:.2f} x{model.spread:.2f}",
        "-" if model.measured_bytes is None else "-".join(map(_bytes, model.measured_bytes)),
    )


def _bytes(count: float) -> str:
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if count >= unit:
            return f"{count / unit:.3g}{name}"
    return f"{count:.0f}"


def print_fit(profile: Profile, reports: Sequence[Any], console: Console) -> None:
    """A calibration's fit (`calibration.fit.Report` each): errors on points, and on geometries, that were held out."""
    table = plain_table(
        ("class",), ("points", "floor us", "bandwidth", "median err", "p90 err", "in 90 %", "new shapes")
    )
    for report in reports:
        model = report.model
        table.add_row(
            Text(report.name),
            str(model.points),
            f"{model.floor_s * 1e6:.2f}",
            f"{model.bandwidth:.1%}",
            share(model.median_error),
            share(model.p90_error),
            f"{report.coverage:.0%}",
            share(report.elsewhere_median_error),
        )
    console.print(table)
    noisy = sum(bool(record.get("noisy")) for record in profile.measurements)
    if noisy:
        console.print(Text(f"{noisy} of {len(profile.measurements)} points were too noisy to fit.", style="dim"))


def print_spread(spread: Mapping[str, float], console: Console) -> None:
    """By how much several GPUs of one kind differ."""
    table = plain_table(("class",), ("GPUs differ by",))
    for name, ratio in spread.items():
        table.add_row(Text(name), f"{ratio:.1%}")
    console.print(table)
    console.print(Text("Median |ratio - 1| to the first GPU, point by point.", style="dim"))


def print_side_by_side(rows: Sequence[tuple[str, str, float, float]], console: Console) -> None:
    """Other packages' attention beside ours: (shape, kernel, our seconds, theirs) each."""
    table = plain_table(("attention", "kernel"), ("ours us", "theirs us", "theirs / ours"))
    for shape, variant, ours, theirs in rows:
        cells = (f"{ours * 1e6:.1f}", f"{theirs * 1e6:.1f}", f"{theirs / ours:.2f}")
        table.add_row(Text(shape), Text(variant), *cells)
    console.print(table)
