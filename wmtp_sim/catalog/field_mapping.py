"""What the public measurements' names mean in this catalogue: ``mapping.toml``, and a row in `estimate`'s words.

A name that the mapping lacks has no counterpart here, and neither has one whose counterpart this release does not ship:
the row then carries the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.field import FieldRow, Whole, field_folder
from wmtp_sim.catalog.gpus import load_gpu
from wmtp_sim.catalog.models import load_model, model_names
from wmtp_sim.catalog.toml_files import read_spec
from wmtp_sim.errors import InputError
from wmtp_sim.spec.base import Spec
from wmtp_sim.spec.model import Model
from wmtp_sim.spec.precision import FORMATS, GroupFormats, Precision, WeightGroup

SCHEMA = "wmtp-field-mapping/1"
CacheFormat = Literal["bf16", "fp8"]


class _Weights(Spec):
    weights: str
    head_weights: str | None = None
    draft_weights: str | None = None


class _Cache(Spec):
    """``either``: formats that a row may have meant; which of them decides the attention kernels."""

    kv: CacheFormat | None = None
    up_to_context: int | None = None
    either: tuple[CacheFormat, ...] = ()


class _Parallelism(Spec):
    """Ranks, 0 for the row's number of GPUs, and the groups of ranks that whole experts are dealt to."""

    tp: Whole
    expert_groups: int = 1


class _Method(Spec):
    drafter: Literal["mtp", "eagle"]
    policy: str | None = None


class _Checkpoint(Spec):
    """A catalogue config that stores a model as a row says, or whose formats (of ``only`` some groups) to give it."""

    model: str
    weights: tuple[str, ...]
    config: str
    formats_of: str | None = None
    only: tuple[WeightGroup, ...] = ()


class Mapping(Spec):
    """What rows' names mean here (``mapping.toml``)."""

    fitted_on: tuple[str, ...] = ()
    engines: dict[str, str]
    versions: dict[str, dict[str, str]]
    models: dict[str, str]
    checkpoints: tuple[_Checkpoint, ...]
    weights: dict[str, _Weights]
    caches: dict[str, _Cache]
    gpus: dict[str, str]
    parallelism: dict[str, _Parallelism]
    methods: dict[str, _Method]

    def caches_of(self, row: FieldRow) -> tuple[CacheFormat, ...]:
        """The cache formats that a row may have meant, where it does not say which; else none."""
        found = self.caches.get(row.kv_dtype or "")
        return () if found is None else found.either

    def taking(self, cache: CacheFormat) -> Mapping:
        """The mapping under which rows that do not say their cache's format had this one."""
        settled = {name: _Cache(kv=cache) if cache in each.either else each for name, each in self.caches.items()}
        return self.model_copy(update={"caches": settled})


@dataclass(frozen=True)
class Deployment:
    """A row in `estimate`'s words. ``depth`` and ``drafter`` are None where only the base step can be priced, and
    ``attention`` where the row leaves the backend to the engine.
    """

    model: Model
    gpu: str
    engine: str
    attention: str | None
    weights: str | None
    head_weights: str | None
    draft_weights: str | None
    kv: str | None
    tp: int
    expert_groups: int
    context: int
    batch: int
    drafter: str | None = None
    depth: int | None = None
    policy: str | None = None
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
def read_mapping() -> Mapping:
    """The shipped mapping."""
    return read_spec(field_folder() / "mapping.toml", Mapping, SCHEMA)


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
    if row.id in mapping.fitted_on:
        raise _Unmapped("an engine definition was fitted on it")
    engine = _engine(row, mapping)
    if engine is None or not _ships(load_engine, engine):
        raise _Unmapped("no engine definition" if row.engine else "engine not stated", row.engine)
    gpu = mapping.gpus.get(row.gpu or "")
    if gpu is None or not _ships(load_gpu, gpu):
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
    model, formats = _stored(name, row.weight_dtype, mapping)
    ranks = _ranks(row, mapping)
    return Deployment(
        model=model,
        gpu=gpu,
        engine=engine,
        attention=_attention(row, engine),
        weights=None if formats is None else formats.weights,
        head_weights=None if formats is None else formats.head_weights,
        draft_weights=None if formats is None else formats.draft_weights,
        kv=_cache_format(row, mapping),
        tp=ranks.tp or row.n_gpu or 1,
        expert_groups=ranks.expert_groups,
        context=_resident(row.context, row.batch if row.shared_prefix else 1),
        batch=row.batch,
    )


def _resident(context: int, sharing: int) -> int:
    """Tokens of KV that each sequence streams; 0 is a prompt of next to nothing.

    A prefix that all sequences share is taken to be streamed once, a share of it each. A lower estimate: the measured
    steps grow by a quarter to a third of what a read per sequence would add.
    """
    return max(round(context / sharing), 1)


def _engine(row: FieldRow, mapping: Mapping) -> str | None:
    """The definition of the stated release, or else the engine's newest."""
    releases = mapping.versions.get(row.engine or "", {})
    return releases.get(row.engine_version or "", mapping.engines.get(row.engine or ""))


def _attention(row: FieldRow, engine: str) -> str | None:
    """The backend that a row states, in its engine's own word; None where it states none."""
    if row.attention_backend is not None and row.attention_backend not in load_engine(engine).attention_backends:
        raise _Unmapped("attention backend not in the catalogue", row.attention_backend)
    return row.attention_backend


@cache
def _ships(load: Callable[[str], object], name: str) -> bool:
    try:
        load(name)
    except InputError:
        return False
    return True


def _stored(name: str, stated: str | None, mapping: Mapping) -> tuple[Model, _Weights | None]:
    """The model, and the formats to state where its config states none."""
    for checkpoint in mapping.checkpoints:
        if checkpoint.model == name and stated in checkpoint.weights:
            return _as_stored(checkpoint), None
    model = load_model(name)
    if stated is None:
        if model.precision.stated:  # released in one format, which its config states
            return model, None
        raise _Unmapped("weight format not stated")
    wanted = mapping.weights.get(stated)
    if wanted is None or wanted.weights not in FORMATS:
        raise _Unmapped("weight format not in the catalogue", stated)
    if model.precision.stated:
        if wanted.weights not in {model.precision.target.expert, model.precision.target.mlp}:
            raise _Unmapped("weight format not in the catalogue", f"{name} as {stated}")
        return model, None
    return model, wanted


def _as_stored(checkpoint: _Checkpoint) -> Model:
    model = load_model(checkpoint.config)
    if checkpoint.formats_of is None:
        return model
    precision = load_model(checkpoint.formats_of).precision
    if checkpoint.only:
        formats = {group: getattr(precision.target, group) for group in checkpoint.only}
        precision = Precision(target=GroupFormats(**formats), stated=True)
    return model.model_copy(update={"precision": precision})


def _cache_format(row: FieldRow, mapping: Mapping) -> str | None:
    """``--kv``: as stated; the checkpoint's own where nothing is."""
    if row.kv_dtype is None:
        return None
    found = mapping.caches.get(row.kv_dtype)
    if found is not None and found.either:
        raise _Unmapped("cache format not stated", row.kv_dtype)
    if found is None or (found.up_to_context is not None and (row.context or 0) > found.up_to_context):
        raise _Unmapped("cache format not in the catalogue", row.kv_dtype)
    return found.kv


def _ranks(row: FieldRow, mapping: Mapping) -> _Parallelism:
    if row.parallelism is None:
        if row.n_gpu != 1:
            raise _Unmapped("parallelism not stated" if row.n_gpu else "number of GPUs not stated")
        return _Parallelism(tp=1)
    ranks = mapping.parallelism.get(row.parallelism)
    if ranks is None or not (ranks.tp or row.n_gpu):
        raise _Unmapped("parallelism not priced", row.parallelism)
    return ranks


def _with_drafts(base: Deployment, row: FieldRow, mapping: Mapping) -> Deployment:
    method = mapping.methods.get(row.method or "")
    if method is None:
        raise _Unmapped("no such drafter in the catalogue", row.method)
    if row.depth is None:
        raise _Unmapped("depth not stated")
    if method.policy is not None and row.window is None:
        raise _Unmapped("window not stated")
    return replace(
        base,
        drafter=method.drafter,
        depth=row.depth,
        policy=method.policy,
        window=row.window,
        sink=row.sink,
    )
