"""Systems for people: the list, and one with every field that it states and where that comes from."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from wmtp_sim.catalog.systems import shipped_systems
from wmtp_sim.render.console import plain_table
from wmtp_sim.spec.system import System


def print_systems(console: Console) -> None:
    """One line for each: name, who drafts, whether the output stays the target's, title."""
    table = plain_table(("system", "drafters", "lossless"), no_wrap=True)
    table.add_column("")
    for each in shipped_systems().values():
        table.add_row(each.name, " ".join(each.drafters), "yes" if each.lossless else "no", each.title)
    console.print(table)
    console.print(Text("Use one or several: wmtp estimate MODEL --gpu GPU --context 32K --system NAME", style="dim"))


def print_system(system: System, console: Console) -> None:
    """Every field that a system states beyond the plainest, and what is known of it."""
    console.print(Text(f"{system.name}: {system.title}", style="bold"))
    console.print(Text(system.source, style="dim"))
    table = plain_table(("field", "value", "source"), overflow="fold")
    for path, value in stated(system).items():
        table.add_row(path, str(value), _source(system, path))
    console.print(table)
    for line in system.assumed:
        console.print(Text(f"assumed: {line}", style="yellow"))


def system_document(system: System) -> dict[str, Any]:
    """The same as JSON values."""
    return {**system.model_dump(mode="json", exclude_defaults=True), "lossless": system.lossless}


def stated(system: System) -> dict[str, Any]:
    """The cost-bearing fields of a system that are not the schema's defaults, by path."""
    beside = {"name", "title", "source", "order", "standard", "look", "assumed", "sources"}
    return dict(_flat(system.model_dump(exclude_defaults=True, exclude=beside)))


def _flat(values: dict[str, Any], path: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        here = f"{path}.{name}" if path else name
        found += _flat(value, here) if isinstance(value, dict) else [(here, value)]
    return found


def _source(system: System, path: str) -> str:
    """The source of the longest stated path that a value lies under."""
    known = [each for each in system.sources if path == each or path.startswith(f"{each}.")]
    return system.sources[max(known, key=len)] if known else ""
