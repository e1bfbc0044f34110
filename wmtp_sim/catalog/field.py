"""Public measurements of speculative decoding: figures as their sources state them, and in seconds."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from wmtp_sim.catalog.fields import Fields, read_json_object, shipped
from wmtp_sim.catalog.toml_files import validated
from wmtp_sim.errors import InputError
from wmtp_sim.spec.base import Spec

SCHEMA = "wmtp-field/1"

Positive = Annotated[float, Field(gt=0)]
Whole = Annotated[int, Field(ge=0, le=2**31)]
Stated = Annotated[str, Field(max_length=200)]


class FieldRow(Spec):
    """One measurement, in its source's units: milliseconds, tokens per second, tokens.

    Attributes:
        attention_backend: the engine's flag, where the source states it.
        context: as stated; 0 is a prompt of next to nothing.
        context_allocated: the stated context is what was allocated, not what was resident.
        accept_length: tokens per step, bonus token included.
        tps_scope: whether ``tps_*`` is of all sequences together (``aggregate``) or of one.
        shared_prefix: all sequences go on from one cached prefix.
        spoiled: why the figures with speculation are not those of a decode step against no speculation.
    """

    id: Stated
    source: Stated
    date: Stated | None = None
    model: Stated | None = None
    weight_dtype: Stated | None = None
    kv_dtype: Stated | None = None
    gpu: Stated | None = None
    n_gpu: Annotated[int, Field(ge=1)] | None = None
    parallelism: Stated | None = None
    engine: Stated | None = None
    engine_version: Stated | None = None
    attention_backend: Stated | None = None
    batch: Annotated[int, Field(ge=1)] | None = None
    context: Whole | None = None
    context_allocated: bool = False
    method: Stated | None = None
    depth: Annotated[int, Field(ge=1)] | None = None
    window: Annotated[int, Field(ge=1)] | None = None
    sink: Whole | None = None
    accept_length: Annotated[float, Field(ge=1)] | None = None
    tps_spec: Positive | None = None
    tps_base: Positive | None = None
    tps_scope: Literal["aggregate", "single stream", "per stream", "per user"] | None = None
    ms_per_step_spec: Positive | None = None
    ms_per_step_base: Positive | None = None
    tpot_ms_spec: Positive | None = None
    tpot_ms_base: Positive | None = None
    speedup: Positive | None = None
    unverified: bool = False
    shared_prefix: bool = False
    spoiled: Stated | None = None

    @property
    def base_s(self) -> float | None:
        """Seconds of a base step: stated, or the time of a sequence's token."""
        if self.ms_per_step_base is not None:
            return self.ms_per_step_base / 1e3
        return self._token_s(self.tpot_ms_base, self.tps_base)

    @property
    def spec_token_s(self) -> float | None:
        """Seconds between the tokens of one sequence with speculation: a step over its accept length."""
        found = self._token_s(self.tpot_ms_spec, self.tps_spec)
        if found is None and self.ms_per_step_spec is not None and self.accept_length is not None:
            return self.ms_per_step_spec / 1e3 / self.accept_length
        return found

    @property
    def step_s(self) -> float | None:
        """Seconds of a speculative step: stated, or what the accept length makes of a token's time."""
        if self.spoiled:
            return None
        if self.ms_per_step_spec is not None:
            return self.ms_per_step_spec / 1e3
        token_s = self.spec_token_s
        return None if token_s is None or self.accept_length is None else token_s * self.accept_length

    @property
    def measured_speedup(self) -> float | None:
        """Per-token rate with speculation over without: stated, or from the two times of a token."""
        if self.spoiled:
            return None
        if self.speedup is not None:
            return self.speedup
        base, token = self.base_s, self.spec_token_s
        return None if base is None or token is None else base / token

    def _token_s(self, tpot_ms: float | None, tps: float | None) -> float | None:
        if tpot_ms is not None:
            return tpot_ms / 1e3
        if tps is None:
            return None
        if self.tps_scope == "aggregate":
            return None if self.batch is None else self.batch / tps
        return 1.0 / tps if self.tps_scope or self.batch == 1 else None


@cache
def read_field() -> tuple[FieldRow, ...]:
    """The shipped rows."""
    return read_rows(field_folder() / "measurements.json")


def field_folder() -> Path:
    """Where the rows and their mapping lie."""
    return shipped("field")


def read_rows(path: Path) -> tuple[FieldRow, ...]:
    """The rows of a file.

    Raises:
        InputError: another schema, a field that is unknown, mistyped or out of range, an id stated twice.
    """
    document = Fields(read_json_object(path), str(path))
    if document.values.get("schema") != SCHEMA:
        stated = repr(document.values.get("schema"))[:60]
        raise InputError(f"{path}: schema", f"is {stated}", f"this release reads {SCHEMA!r}")
    rows: dict[str, FieldRow] = {}
    for values in document.items("rows", of=dict):
        row = validated(values, FieldRow, f"{path}: {str(values.get('id'))[:60]}")
        if row.id in rows:
            raise document.error("rows", f"holds {row.id[:60]!r} twice", "ids are unique")
        rows[row.id] = row
    return tuple(rows.values())
