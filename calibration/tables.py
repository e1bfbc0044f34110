"""Tables of the PyPI package ``aiconfigurator-core``: where they lie, and their rows, read with care.

Layout: ``systems/data/<system>/<family>/<backend>/<version>/<operator>_perf.parquet``. Parquet is read by pyarrow,
which executes nothing; sizes are bounded before a table is read, and every cell is checked when it is used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

from wmtp_sim.errors import InputError

PACKAGE = "aiconfigurator-core"
INSTALL = "pip install 'wmtp-sim[aiconfigurator]'"
#: The largest table of 0.12.0 has 2 MB and 260,756 rows.
MAX_FILE_BYTES = 64 * 2**20
MAX_ROWS = 2_000_000
MAX_TABLE_BYTES = 2**30
#: The largest size that any column may hold.
MAX_SIZE = 2**40

Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """The rows of one file, and the backend's version that they were taken with."""

    version: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Tables:
    """The tables of one system. ``version`` pins one backend's; else each operator's newest is read."""

    folder: Path
    system: str
    release: str
    version: str | None = None

    def read(self, family: str, backend: str, operator: str, **wanted: Iterable[Any]) -> Table | None:
        """Rows of an operator whose columns hold one of the wanted values; None where there is no such table.

        A wanted column that the table lacks excludes nothing. Raises `InputError` for a file that is no such table.
        """
        folder = self.folder / self.system / family / backend
        found = {path.parent.name: path for path in folder.glob(f"*/{operator}_perf.parquet")}
        if not found:
            return None
        version = self.version or max(found, key=_release)
        if version not in found:
            return None
        return Table(version, _rows(found[version], {name: list(values) for name, values in wanted.items()}))

    def versions(self, backend: str) -> list[str]:
        """The versions of a backend that have any table."""
        found = {path.name for path in (self.folder / self.system).glob(f"*/{backend}/*") if path.is_dir()}
        return sorted(found, key=_release)

    def backends(self) -> list[str]:
        """The engines that any table is of."""
        return sorted({path.name for path in (self.folder / self.system).glob("*/*") if path.is_dir()})


def tables(system: str, path: Path | None, version: str | None = None) -> Tables:
    """The tables of one system, from a folder or from the installed package.

    Raises:
        InputError: no package, no such system, or a name that is no folder's.
    """
    folder = _data_folder(path)
    try:
        known = sorted(p.name for p in folder.iterdir() if p.is_dir() and any(p.glob("*/*/*/*_perf.parquet")))
    except OSError as error:
        raise InputError("--path", f"cannot be read ({error.strerror})", "the package's systems/data folder") from None
    if system not in known:
        raise InputError("--system", f"no tables of {system[:60]!r}", f"known: {', '.join(known)[:400] or 'none'}")
    return Tables(folder, system, _installed_release(folder), version)


def _data_folder(path: Path | None) -> Path:
    if path is None:
        spec = util.find_spec("aiconfigurator_core")
        if spec is None or not spec.submodule_search_locations:
            raise InputError(PACKAGE, "is not installed, and --path was not given", INSTALL)
        path = Path(next(iter(spec.submodule_search_locations)))
    try:
        for inside in ("aiconfigurator_core/systems/data", "systems/data", "data", "."):
            if (path / inside).is_dir():
                return path / inside
    except (OSError, ValueError):
        pass
    raise InputError("--path", f"{str(path)[:120]!r} is no folder", "the package's systems/data folder")


def _installed_release(folder: Path) -> str:
    """The package's own version, from the metadata beside it; ``unknown`` where there is none."""
    for parent in folder.parents[:4]:
        for info in parent.glob("aiconfigurator_core-*.dist-info"):
            return info.name.removeprefix("aiconfigurator_core-").removesuffix(".dist-info")[:40]
    spec = util.find_spec("aiconfigurator_core")
    inside = spec is not None and any(folder.is_relative_to(p) for p in spec.submodule_search_locations or ())
    return metadata.version(PACKAGE) if inside else "unknown"


def _release(version: str) -> tuple[int, ...]:
    """Versions in order of their numbers: 0.5.9 before 0.5.14, 1.3.0rc20 before 1.3.0rc23."""
    return tuple(int(number) for number in re.findall(r"\d{1,9}", version))


def _rows(path: Path, wanted: dict[str, list[Any]]) -> tuple[Row, ...]:
    arrow, pq = _pyarrow()
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES or not path.is_file():
            raise InputError(str(path), f"has {size:,} bytes", f"at most {MAX_FILE_BYTES:,} of a regular file are read")
        file = pq.ParquetFile(path)
        about = file.metadata
        unpacked = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        if about.num_rows > MAX_ROWS or unpacked > MAX_TABLE_BYTES:
            raise InputError(str(path), f"has {about.num_rows:,} rows", f"at most {MAX_ROWS:,} are read")
        columns = set(file.schema_arrow.names)
        filters = [(name, "in", values) for name, values in wanted.items() if name in columns]
        return tuple(pq.read_table(path, filters=filters or None).to_pylist())
    except InputError:
        raise
    except (
        OSError,
        ValueError,
        TypeError,
        LookupError,
        MemoryError,
        NotImplementedError,
        arrow.ArrowException,
    ) as error:
        why = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise InputError(str(path), f"cannot be read as parquet ({why})", "give the package's own files") from None


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow.lib
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise InputError("pyarrow", "is not installed, and the tables are parquet", INSTALL) from None
    return pyarrow.lib, pyarrow.parquet


def number(row: Row, name: str, default: float | None = None) -> int:
    """A whole number of a row, 0 to 2^40. Raises `InputError` naming the column where it is none."""
    value = row.get(name, default)
    whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    if not whole or not 0 <= value <= MAX_SIZE:
        raise InputError(name, f"is {str(value)[:40]!r} in a row", "a whole number, as in the published tables")
    return int(value)


def numbers(row: Row, *names: str) -> tuple[int, ...]:
    """Whole numbers of a row: see `number`."""
    return tuple(number(row, name) for name in names)


def word(row: Row, name: str) -> str:
    """A word of a row. Raises `InputError` naming the column where it is none."""
    value = row.get(name)
    if not isinstance(value, str):
        raise InputError(name, f"is {str(value)[:40]!r} in a row", "a word, as in the published tables")
    return value[:120]


def seconds(row: Row, column: str = "latency", per_second: float = 1e3) -> float:
    """The row's time; most tables state milliseconds. Raises `InputError` naming the column where it is no time."""
    value = row.get(column)
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not 0 < value / per_second < 100:
        raise InputError(column, f"is {str(value)[:40]!r} in a row", "a time, as in the published tables")
    return float(value) / per_second
