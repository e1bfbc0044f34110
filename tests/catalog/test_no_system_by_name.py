"""No module knows a system by name: adding, renaming or removing one touches its file alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import wmtp_sim
from wmtp_sim.catalog.systems import shipped_systems

HOUSE = Path(wmtp_sim.__file__).parent
#: Who reads heads by the words of their own configs, which some systems are named after.
IMPORTERS = (HOUSE / "catalog" / "heads", HOUSE / "catalog" / "drafter_kinds.py")


def words() -> set[str]:
    systems = shipped_systems().values()
    return {word for each in systems for word in (each.name, each.look.phrase)}


def literals(path: Path) -> set[str]:
    if path.suffix == ".py":
        tree = ast.walk(ast.parse(path.read_text()))
        return {node.value for node in tree if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for pair in re.findall(r'"([^"\n]*)"|\'([^\'\n]*)\'', path.read_text()) for text in pair}


def test_no_literal_is_a_systems_name_or_phrase() -> None:
    modules = [
        path for path in (*HOUSE.rglob("*.py"), *HOUSE.rglob("*.js")) if not {path, *path.parents} & {*IMPORTERS}
    ]
    assert len(modules) > 100
    found = {str(path.relative_to(HOUSE)): sorted(literals(path) & words()) for path in modules}
    assert {path: named for path, named in found.items() if named} == {}
