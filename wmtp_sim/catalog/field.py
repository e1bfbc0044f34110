"""Public measurements of speculative decoding, and what their names mean in this catalogue.

Rows hold figures as their sources state them; properties here are in seconds. ``mapping.toml`` says which model, GPU,
engine, format and drafter a row means. What it does not say has no counterpart: the row then carries the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from wmtp_sim.catalog.engines import engine_names
from wmtp_sim.catalog.fields import Fields, read_json_object
from wmtp_sim.catalog.gpus import load_gpu
from wmtp_sim.catalog.models import load_model, model_names
from wmtp_sim.catalog.toml_files import complaint, read_spec
from wmtp_sim.errors import InputError
from wmtp_sim.spec.base import Spec
from wmtp_sim.spec.model import Model
from wmtp_sim.spec.precision import FORMATS, GroupFormats, Precision, WeightGroup

SCHEMA = "wmtp-field/1"
MAPPING_SCHEMA = "wmtp-field-mapping/1"

Positive = Annotated[float, Field(gt=0)]
Whole = Annotated[int, Field(ge=0, le=2**31)]
Stated = Annotated[str, Field(max_length=200)]


class FieldRow(Spec):
    """One measurement, in its source's units: milliseconds, tokens per second, tokens.

    Attributes:
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


class _Weights(Spec):
    weights: tuple[str, ...]
    head_weights: tuple[str, ...] = ()


class _Cache(Spec):
    kv: Literal["bf16", "fp8"] | None = None
    up_to_context: int | None = None


class _Method(Spec):
    drafter: Literal["mtp", "eagle"]
    policy: Literal["native", "flag", "ring"] = "native"


class _Checkpoint(Spec):
    """A catalogue config that stores a model as a row says, or whose formats (of ``only`` some groups) to give it."""

    model: str
    weights: tuple[str, ...]
    config: str
    formats_of: str | None = None
    only: tuple[WeightGroup, ...] = ()


class Mapping(Spec):
    """What rows' names mean here (``mapping.toml``)."""

    engines: dict[str, str]
    models: dict[str, str]
    checkpoints: tuple[_Checkpoint, ...]
    weights: dict[str, _Weights]
    caches: dict[str, _Cache]
    gpus: dict[str, str]
    parallelism: dict[str, Whole]
    methods: dict[str, _Method]


@dataclass(frozen=True)
class Deployment:
    """A row in `estimate`'s words. ``depth`` and ``drafter`` are None where only the base step can be priced."""

    model: Model
    gpu: str
    engine: str
    weights: str | None
    head_weights: str | None
    kv: str | None
    tp: int
    context: int
    batch: int
    drafter: str | None = None
    depth: int | None = None
    policy: Literal["native", "flag", "ring"] = "native"
    window: int | None = None
    sink: int | None = None


@dataclass(frozen=True)
class Reason:
    """Why something of a row cannot be compared: the kind, which is counted, and the row's own word."""

    kind: str
    detail: str = ""


class _Unmapped(Exception):
    def __init__(self, kind: str, detail: str | None = None) -> None:
        super().__init__(kind)
        self.reason = Reason(kind, detail or "")


@cache
def read_field() -> tuple[FieldRow, ...]:
    """The shipped rows."""
    return read_rows(_folder() / "measurements.json")


@cache
def read_mapping() -> Mapping:
    """The shipped mapping."""
    return read_spec(_folder() / "mapping.toml", Mapping, MAPPING_SCHEMA)


def _folder() -> Path:
    return Path(str(resources.files("wmtp_sim") / "data" / "field"))


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
        row = _row(values, path)
        if row.id in rows:
            raise document.error("rows", f"holds {row.id[:60]!r} twice", "ids are unique")
        rows[row.id] = row
    return tuple(rows.values())


def _row(values: dict[str, Any], path: Path) -> FieldRow:
    try:
        return FieldRow.model_validate(values)
    except ValidationError as error:
        raise complaint(error, f"{path}: {str(values.get('id'))[:60]}") from None


# --- a row in this catalogue's words ---------------------------------------------------------------------------


def deployment(row: FieldRow, mapping: Mapping) -> tuple[Deployment | None, Reason | None]:
    """What to estimate for a row, and why not more than that.

    (None, reason): nothing; a deployment without a depth, and a reason: the base step alone; (deployment, None): all.
    """
    try:
        base = _base(row, mapping)
    except _Unmapped as unmapped:
        return None, unmapped.reason
    try:
        return _with_drafts(base, row, mapping), None
    except _Unmapped as unmapped:
        return base, unmapped.reason


def _base(row: FieldRow, mapping: Mapping) -> Deployment:
    engine = mapping.engines.get(row.engine or "")
    if engine not in engine_names():
        raise _Unmapped("no engine definition" if row.engine else "engine not stated", row.engine)
    gpu = mapping.gpus.get(row.gpu or "")
    if gpu is None or not _known_gpu(gpu):
        raise _Unmapped("GPU not in the catalogue" if row.gpu else "GPU not stated", row.gpu)
    name = mapping.models.get(row.model or "", (row.model or "").lower())
    if name not in model_names():
        raise _Unmapped("model not in the catalogue" if row.model else "model not stated", row.model)
    if row.context is None:
        raise _Unmapped("context not stated")
    if row.context_allocated:
        raise _Unmapped("context not stated", "the allocation alone")
    if row.batch is None:
        raise _Unmapped("batch not stated")
    model, weights, head_weights = _stored(name, row.weight_dtype, mapping)
    return Deployment(
        model=model,
        gpu=gpu,
        engine=engine,
        weights=weights,
        head_weights=head_weights,
        kv=_cache_format(row, mapping),
        tp=_ranks(row, mapping),
        context=_resident(row.context, row.batch if row.shared_prefix else 1),
        batch=row.batch,
    )


def _resident(context: int, sharing: int) -> int:
    """Tokens of KV that each sequence streams; 0 is a prompt of next to nothing.

    A prefix that all sequences share is taken to be streamed once, a share of it each. A lower estimate: the measured
    steps grow by a quarter to a third of what a read per sequence would add.
    """
    return max(round(context / sharing), 1)


@cache
def _known_gpu(name: str) -> bool:
    try:
        load_gpu(name)
    except InputError:
        return False
    return True


def _stored(name: str, stated: str | None, mapping: Mapping) -> tuple[Model, str | None, str | None]:
    """The model, ``--weights`` and ``--head-weights``."""
    for checkpoint in mapping.checkpoints:
        if checkpoint.model == name and stated in checkpoint.weights:
            return _as_stored(checkpoint), None, None
    model = load_model(name)
    if stated is None:
        if model.precision.stated:  # released in one format, which its config states
            return model, None, None
        raise _Unmapped("weight format not stated")
    wanted = mapping.weights.get(stated)
    weights = _first_known(wanted.weights if wanted else ())
    if wanted is None or weights is None:
        raise _Unmapped("weight format not in the catalogue", stated)
    if model.precision.stated:
        if weights not in {model.precision.target.expert, model.precision.target.mlp}:
            raise _Unmapped("weight format not in the catalogue", f"{name} as {stated}")
        return model, None, None
    return model, weights, _first_known(wanted.head_weights)


def _as_stored(checkpoint: _Checkpoint) -> Model:
    model = load_model(checkpoint.config)
    if checkpoint.formats_of is None:
        return model
    precision = load_model(checkpoint.formats_of).precision
    if checkpoint.only:
        formats = {group: getattr(precision.target, group) for group in checkpoint.only}
        precision = Precision(target=GroupFormats(**formats), stated=True)
    return model.model_copy(update={"precision": precision})


def _first_known(names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in FORMATS), None)


def _cache_format(row: FieldRow, mapping: Mapping) -> str | None:
    """``--kv``: as stated; the checkpoint's own where nothing is."""
    if row.kv_dtype is None:
        return None
    found = mapping.caches.get(row.kv_dtype)
    if found is None or (found.up_to_context is not None and (row.context or 0) > found.up_to_context):
        raise _Unmapped("cache format not in the catalogue", row.kv_dtype)
    return found.kv


def _ranks(row: FieldRow, mapping: Mapping) -> int:
    if row.parallelism is None:
        if row.n_gpu != 1:
            raise _Unmapped("parallelism not stated" if row.n_gpu else "number of GPUs not stated")
        return 1
    ranks = mapping.parallelism.get(row.parallelism)
    if ranks == 0:
        ranks = row.n_gpu
    if ranks is None:
        raise _Unmapped("parallelism not priced", row.parallelism)
    return ranks


def _with_drafts(base: Deployment, row: FieldRow, mapping: Mapping) -> Deployment:
    method = mapping.methods.get(row.method or "")
    if method is None:
        raise _Unmapped("no such drafter in the catalogue", row.method)
    if row.depth is None:
        raise _Unmapped("depth not stated")
    if method.policy != "native" and row.window is None:
        raise _Unmapped("window not stated")
    return replace(
        base,
        drafter=method.drafter,
        depth=row.depth,
        policy=method.policy,
        window=row.window,
        sink=row.sink,
    )
