"""An engine as data: which passes a speculative step runs, which kernels serve them, and what surrounds them.

Fields mirror the engine definition files (``data/engines/*.toml``). Their table ``sources`` says of every value where
it comes from; a source begins with its grade, one of `GRADES`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from wmtp_sim.spec.base import Spec
from wmtp_sim.spec.drafter import DrafterKind
from wmtp_sim.spec.gpu import Gpu
from wmtp_sim.spec.parallel import Layout
from wmtp_sim.spec.precision import FORMATS, KV_BYTES, MathDtype, WeightGroup

Seconds = Annotated[float, Field(ge=0, le=10)]
#: How a value is known: measured by us or from a published trace, read in the release's code or documents, fitted to
#: published steps, or assumed.
GRADES = ("measured", "code", "fitted", "assumed", "stated", "derivation")
#: What a definition is called; every other field is a value, and has a source.
TITLES = frozenset({"name", "version", "title", "notes"})
Phase = Literal["base", "draft", "verify", "extend"]
#: What small kernels stand around.
Part = Literal[
    "attention",
    "mla",
    "compressed",
    "gdn",
    "kda",
    "mamba2",
    "mamba1",
    "lightning",
    "mlp",
    "moe",
    "norm",
    "embedding",
]


class AttentionKernel(Spec):
    """How an attention implementation spreads one read over the GPU.

    Attributes:
        streams: what walks the context by itself: a KV head of a sequence (query rows packed), each query head, or each
            tile of a KV head's packed rows. Of several that share a KV head each reads its cache.
        read_together: whether those reads are so close that memory is read once and the GPU's caches serve the others.
        max_splits: thread blocks along the context per stream; 0 lets the kernel fill the GPU.
        tile_tokens: fewest cached tokens per thread block.
        row_tile: query rows are padded to a multiple of this in arithmetic.
        fp8, sinks: whether it reads caches of 8 bits, and knows sink logits.
        verify_mask_bytes: bytes moved per (verify row x cached token) to build an explicit mask, all passes over it.
        plan_s: time that the host plans before each pass; 0 where nothing is planned, or it lies within ``host``.
    """

    streams: Literal["kv_head", "q_head", "row_tile"] = "kv_head"
    read_together: bool = False
    max_splits: int = Field(default=0, ge=0)
    tile_tokens: int = Field(default=64, ge=1)
    row_tile: int = Field(default=1, ge=1)
    fp8: bool = True
    sinks: bool = True
    verify_mask_bytes: float = Field(default=0, ge=0)
    plan_s: Seconds = 0.0

    def serves(self, kv_bytes: float, sinks: bool) -> bool:
        """Whether it reads a cache of such elements, for layers with sink logits or without."""
        return (self.fp8 or kv_bytes > KV_BYTES["fp8"]) and (self.sinks or not sinks)


class ServedBy(Spec):
    """A kernel of an attention backend, and which passes take it; what is not stated fits every pass.

    Attributes:
        kernel: a name of ``Engine.attention_kernels``.
        gpus: GPU architectures or vendors, by the GPU file's words.
        head_dims: sizes of a head; any where none is named.
        rows: most query rows of a sequence.
        blocks: most thread blocks that the pass has before its context is split: sequences x streams x tiles of rows.
    """

    kernel: str
    gpus: tuple[str, ...] = ()
    head_dims: tuple[int, ...] = ()
    rows: int | None = Field(default=None, ge=1)
    blocks: int | None = Field(default=None, ge=1)

    def concerns(self, gpu: Gpu) -> bool:
        """Whether it runs on a GPU; one that states no vendor is taken as NVIDIA's."""
        return not self.gpus or gpu.architecture in self.gpus or (gpu.vendor or "nvidia") in self.gpus

    @property
    def serves_all(self) -> bool:
        """Whether it takes every pass."""
        return self.rows is None and self.blocks is None and not self.head_dims


class AttentionChoice(Spec):
    """The attention backend of each pass: a name of ``Engine.attention_backends``, or a kernel that serves every pass.

    Verify follows base, the draft's passes follow one another, and all follow base where nothing else is stated. The
    draft's backend honours a window where the engine has one that does, so that draft policies compare like with like.
    ``windowed`` is the backend of draft passes that leave a part of the context out, where it is another.
    ``by_hand``: the passes whose backend a person chose.
    """

    base: str
    verify: str
    draft: str
    extend: str
    windowed: str | None = None
    by_hand: tuple[Phase, ...] = ()

    def of(self, phase: Phase, windowed: bool = False) -> str:
        """The backend of a pass."""
        others = windowed and self.windowed is not None and phase in ("draft", "extend") and phase not in self.by_hand
        return str(self.windowed if others else getattr(self, phase))

    @model_validator(mode="before")
    @classmethod
    def _follows(cls, stated: Any) -> Any:
        if not isinstance(stated, dict) or "base" not in stated:
            return stated
        first = {"verify": stated["base"], "draft": stated["base"]} | stated
        return {"extend": first["draft"]} | first


class AttentionDefault(AttentionChoice):
    """What a release picks on a GPU; for layers with ``sinks`` logits, or over an ``fp8`` cache, where it differs."""

    sinks: AttentionChoice | None = None
    fp8: AttentionChoice | None = None

    def stating(self, backends: Mapping[Phase, str]) -> AttentionDefault:
        """The same with the backends of some passes stated, over every cache and for all layers."""
        changes: dict[str, Any] = dict(backends.items())
        changes["by_hand"] = tuple(backends)
        special = {"sinks": self.sinks, "fp8": self.fp8}
        others = {name: choice.model_copy(update=changes) for name, choice in special.items() if choice is not None}
        return self.model_copy(update=changes | others)

    def over(self, kv_bytes: float, sinks: bool) -> AttentionChoice:
        """The choice for a cache of such elements, and for layers with sink logits or without."""
        if sinks and self.sinks is not None:
            return self.sinks
        return self.fp8 if self.fp8 is not None and kv_bytes <= KV_BYTES["fp8"] else self


class IndexBuild(Spec):
    """Kernels that write the list of cache slots a pass will read: cheap in bytes, slow in dependent turns.

    One program walks a list, ``tokens_per_turn`` at a time; with ``tokens_per_block`` a list is cut into blocks of that
    many tokens, of which at most ``max_blocks`` run for all lists and sequences together. With ``per_depth`` every
    narrow draft pass has a list of its own. ``turn_slowdown`` is a turn over the profile's, which is that of a loop
    over 128 tokens; it is ``crowded_slowdown`` where all lists together move more than ``crowded_bytes``. Entries that
    name ``architectures`` (the GPU file's word) are those GPUs'; the others serve every GPU that none names.
    """

    phase: Phase
    architectures: tuple[str, ...] = ()
    tokens_per_turn: float = Field(gt=0)
    tokens_per_block: float | None = Field(default=None, gt=0)
    max_blocks: float = Field(default=512, ge=1)
    turn_slowdown: float = Field(default=1.0, ge=0.1, le=100)
    crowded_slowdown: float = Field(default=1.0, ge=0.1, le=100)
    crowded_bytes: float = Field(default=1e18, gt=0, le=1e18)
    bytes_per_position: float = Field(default=12, ge=0)
    launches: float = Field(default=1, ge=0)
    per_depth: bool = False


class Host(Spec):
    """What the host adds to a step, without speculation (base) and with it, and per narrow draft pass.

    Attributes:
        base_s, step_s, per_draft_s: time that the GPU waits: between graphs, for plans, copies and sampling.
        base_work_s, step_work_s, per_draft_work_s: the host's own work per step, which runs beside the GPU. A step is
            never shorter: where kernels are quick, the host is what a step waits for.
        per_sequence_s: time that the GPU waits for each sequence of a speculative step.
        eager_launch_s: one launch outside a graph; a phase that runs so takes at least its launches times this.
        eager: phases that run without a graph.
    """

    base_s: Seconds = 0.0
    step_s: Seconds = 0.0
    per_draft_s: Seconds = 0.0
    base_work_s: Seconds = 0.0
    step_work_s: Seconds = 0.0
    per_draft_work_s: Seconds = 0.0
    per_sequence_s: Seconds = 0.0
    eager_launch_s: Seconds = 0.0
    eager: tuple[Phase, ...] = ()


#: The times of a host.
HOST_SECONDS = tuple(name for name in Host.model_fields if name.endswith("_s"))


class StateHandling(Spec):
    """Recurrent states under speculation.

    Attributes:
        writes_per_row: states written per verify row.
        commit_copies: states read or written when a row is accepted.
        resident_snapshots: held per sequence beside the state itself: one per verify row, or one per drafted token.
    """

    writes_per_row: float = Field(default=1, ge=0)
    commit_copies: float = Field(default=0, ge=0)
    resident_snapshots: Literal["per_row", "per_draft"] = "per_row"


class MeasuredSteps(Spec):
    """Whole steps of this very release that were measured and held against predictions that were not fitted on them.

    Attributes:
        gpu: the GPU that they ran on, by the GPU file's name.
        drafters: who drafted.
        ranks: GPUs that shared the model.
        layers: kinds of token mixers and MLPs that the models had.
        formats: how weights and caches were stored.
        steps: how many were measured.
        off: the largest error of a predicted ratio of base step and speculative step among them.
    """

    gpu: str
    drafters: tuple[DrafterKind, ...]
    ranks: tuple[Annotated[int, Field(ge=1)], ...]
    layers: tuple[Part, ...]
    formats: tuple[str, ...]
    steps: int = Field(ge=1)
    off: float = Field(ge=0, le=1)


class Note(Spec):
    """What a person must know about an engine on GPUs of some architectures, as the GPU file names them; () is all.

    ``window``: whether it concerns those alone who window their drafts.
    """

    text: str
    architectures: tuple[str, ...] = ()
    window: bool = False

    def concerns(self, architecture: str) -> bool:
        return not self.architectures or architecture in self.architectures


class Engine(Spec):
    """One engine release.

    Attributes:
        offers: systems that the release can really run, by name; others are priced as what-if and say so.
        window_backends: the attention backends whose drafts honour a window; where none is named, all do.
        attention: attention backends per GPU architecture (the GPU file's word, ``Hopper``), and ``default``.
        attention_backends: what each backend, by the engine's own word, runs: the first entry that fits a pass.
        pad_draft_rows: the rows of a narrow draft pass, all sequences together, are padded to a multiple of depth + 1.
        graph_batches: batches for which graphs are captured: one between them runs padded to the next, its matrix
            products and experts with it. Batches above the last run as they are. Empty: every batch has its graph.
        weight_slowdown: seconds of this engine's products over the profile's, by weight format (``int4``): kernels that
            unpack weights do not stream as those do that need not.
        quantize_launches: small kernels that bring a product's inputs into its own number format before it, by that
            format, for dense products; for a layer's experts, ``expert_quantize_launches``.
        row_cost: what each further row of a product over packed weights takes, in shares of its first row, by GPU
            architecture (and ``default``): kernels that unpack on vector units multiply row by row, up to eight rows.
        idle_wide_pass: whether the wide draft pass runs while an adaptive depth is 0.
        elementwise: small kernels that the engine starts around each kind of mixer and MLP, per norm and for the
            embedding, after its fusions.
        concurrent_groups: weight groups whose products run on a second stream: their launches hide behind the other
            stream's, their bytes do not.
        spread: factor that this definition itself may be off by, beyond its kernels: 1 where its steps were measured.
        parallel_spread: factor that a step over eight GPUs may be off by on top of ``spread``, and its cube root for
            each doubling: collectives are priced as timed alone, and ranks that wait for one another are not priced.
        joint: kinds of weights that the ranks of all groups share under attention data parallelism; others are a
            group's own. Without any, groups are replicas.
        all_to_all: whether rows can be sent to the ranks of their experts and back.
        whole_expert_launches: small kernels more around a layer's experts where ranks hold whole ones.
        joined_host: what a step takes beyond its kernels where groups share experts, where that is more than ``host``.
        drafter_hosts: ``host`` with drafters of a kind whose worker is another.
        draft_tp: kinds of drafters that may have fewer ranks than the target; others lie as it does.
        base_by_reduction: whether groups exchange rows by all-reduces in base steps (`Layout.by_reduction`).
        memory_fraction: share of the GPU's memory that weights, caches and states may fill.
        measured: its steps that were measured; of anything else a verdict is not sure.
    """

    name: str
    version: str
    title: str
    attention: dict[str, AttentionDefault]
    attention_backends: dict[str, tuple[ServedBy, ...]] = Field(default_factory=dict)
    attention_kernels: dict[str, AttentionKernel]
    offers: tuple[str, ...] = ()
    window_backends: tuple[str, ...] = ()
    pad_draft_rows: bool = False
    graph_batches: tuple[Annotated[int, Field(ge=1)], ...] = ()
    weight_slowdown: dict[str, Annotated[float, Field(ge=0.1, le=100)]] = Field(default_factory=dict)
    quantize_launches: dict[MathDtype, Annotated[float, Field(ge=0, le=100)]] = Field(default_factory=dict)
    expert_quantize_launches: dict[MathDtype, Annotated[float, Field(ge=0, le=100)]] = Field(default_factory=dict)
    row_cost: dict[str, Annotated[float, Field(ge=0, le=10)]] = Field(default_factory=dict)
    idle_wide_pass: bool = False
    elementwise: dict[Part, Annotated[float, Field(ge=0, le=100)]]
    sample_launches: float = Field(default=0, ge=0)
    concurrent_groups: tuple[WeightGroup, ...] = ()
    spread: float = Field(default=1, ge=1, le=10)
    parallel_spread: float = Field(default=1, ge=1, le=10)
    joint: tuple[WeightGroup, ...] = ()
    all_to_all: bool = False
    draft_tp: tuple[DrafterKind, ...] = ()
    base_by_reduction: bool = False
    whole_expert_launches: float = Field(default=0, ge=0, le=100)
    joined_host: Host | None = None
    drafter_hosts: dict[DrafterKind, Host] = Field(default_factory=dict)
    memory_fraction: float = Field(gt=0, le=1)
    state: StateHandling = StateHandling()
    index: tuple[IndexBuild, ...] = ()
    host: Host = Host()
    ideal: bool = False
    notes: tuple[Note, ...] = ()
    measured: tuple[MeasuredSteps, ...] = ()
    sources: dict[str, str]

    def has(self, system: str) -> bool:
        """Whether the release can run a system."""
        return self.ideal or system in self.offers

    def source_of(self, path: str) -> str:
        """Where a value comes from: the source of its path, or of the longest path that it lies under."""
        return source_among(self.sources, path)

    def stated(self, path: str) -> bool:
        """Whether a person put this value over the definition: it is then no guess of ours."""
        return self.source_of(path).startswith("stated")

    @property
    def standing(self) -> Literal["as defined", "judged", "stated"]:
        """What the range around a step rests on, of this definition: a spread of 1 is worth an interval only where
        nobody put values of their own into it.
        """
        if any(source.startswith("stated") for source in self.sources.values()):
            return "stated"
        return "judged" if max(self.spread, self.parallel_spread) > 1 else "as defined"

    @model_validator(mode="after")
    def _sources_have_grades(self) -> Engine:
        for path, source in self.sources.items():
            if source.split(":")[0].split(" ")[0] not in GRADES:
                raise ValueError(f"sources.{path} begins with none of {', '.join(GRADES)}")
        return self

    @model_validator(mode="after")
    def _formats_are_known(self) -> Engine:
        if unknown := sorted(set(self.weight_slowdown) - set(FORMATS)):
            raise ValueError(f"weight_slowdown.{unknown[0]} is no weight format; one of {', '.join(FORMATS)}")
        if list(self.graph_batches) != sorted(set(self.graph_batches)):
            raise ValueError("graph_batches do not ascend")
        return self

    @model_validator(mode="after")
    def _parts_are_complete(self) -> Engine:
        missing = [part for part in get_args(Part) if part not in self.elementwise]
        if missing:
            raise ValueError(f"elementwise lacks {', '.join(missing)}")
        return self

    @model_validator(mode="after")
    def _kernels_exist(self) -> Engine:
        for backend, entries in self.attention_backends.items():
            for entry in entries:
                if entry.kernel not in self.attention_kernels:
                    where = f"attention_backends.{backend}"
                    raise ValueError(f"{where} names {entry.kernel!r}, which attention_kernels does not define")
            if not entries or not entries[-1].serves_all:
                raise ValueError(f"attention_backends.{backend} needs a last entry that serves every pass")
        return self

    @model_validator(mode="after")
    def _backends_exist(self) -> Engine:
        if "default" not in self.attention:
            raise ValueError("attention lacks default, the backends for GPUs that it does not name")
        for architecture, stated in self.attention.items():
            choices = {"": stated, ".fp8": stated.fp8, ".sinks": stated.sinks}
            for where, choice in ((architecture + place, choice) for place, choice in choices.items()):
                for phase in get_args(Phase) if choice else ():
                    name = getattr(choice, phase)
                    if name not in self.backend_names:
                        problem = "which neither attention_backends nor attention_kernels defines"
                        raise ValueError(f"attention.{where}.{phase} names {name!r}, {problem}")
        return self

    def spread_over(self, gpus: int) -> float:
        """The factor, either way, that this definition leaves open for a step over some GPUs."""
        return float(self.spread * self.parallel_spread ** (math.log2(gpus) / 3.0))

    def host_of(self, layout: Layout, drafter: DrafterKind | None = None) -> Host:
        """What a step takes beyond its kernels, by who drafts and as GPUs share the model."""
        joined, own = self.joined_host, self.host if drafter is None else self.drafter_hosts.get(drafter, self.host)
        if joined is None or layout.joined == 1:
            return own
        longer = {name: max(getattr(own, name), getattr(joined, name)) for name in HOST_SECONDS}
        return own.model_copy(update=longer)

    def slots_for(self, batch: ArrayLike) -> NDArray[np.float64]:
        """Sequences that a batch's graph was captured for: ``batch`` itself where no graph is larger."""
        batch = np.asarray(batch, dtype=float)
        if not self.graph_batches:
            return batch
        at = np.searchsorted(self.graph_batches, batch)
        return np.where(at < len(self.graph_batches), np.append(self.graph_batches, 0.0)[at], batch)

    def further_row(self, architecture: str, weight_format: str) -> float:
        """What each further row of a product takes on a GPU architecture, in shares of its first row."""
        stored = FORMATS[weight_format]
        if stored.math != "bf16" or stored.bytes_per_weight >= 2.0:
            return 0.0
        return self.row_cost.get(architecture, self.row_cost.get("default", 0.0))

    def index_on(self, architecture: str, phase: Phase) -> tuple[IndexBuild, ...]:
        """What builds a phase's slot lists on a GPU architecture."""
        builds = tuple(build for build in self.index if build.phase == phase)
        own = tuple(build for build in builds if architecture in build.architectures)
        return own or tuple(build for build in builds if not build.architectures)

    @property
    def backend_names(self) -> tuple[str, ...]:
        """What may be chosen for a pass: backends, and kernels that serve every pass."""
        return (*self.attention_backends, *self.attention_kernels)

    def with_attention(self, stated: Mapping[Phase, str]) -> Engine:
        """This release with the backends of some passes chosen by hand, whatever the GPU and the cache."""
        chosen = {name: found.stating(stated) for name, found in self.attention.items()}
        return self.model_copy(update={"attention": chosen})

    def attention_on(
        self, architecture: str, kv_bytes: float = KV_BYTES["bf16"], sinks: bool = False
    ) -> AttentionChoice:
        """The attention backends that this release picks: by GPU architecture, cache, and whether layers have sinks."""
        return (self.attention.get(architecture) or self.attention["default"]).over(kv_bytes, sinks)

    def kernels_of(self, backend: str, gpu: Gpu, kv_bytes: float, sinks: bool) -> tuple[ServedBy, ...]:
        """The kernels of a backend on a GPU, over a cache of such elements, for layers with sink logits or without.

        A pass takes the first that fits it. All kernels of the backend where it does not run there.
        """
        return self._running(backend, gpu, kv_bytes, sinks) or self._entries(backend)

    def _running(self, backend: str, gpu: Gpu, kv_bytes: float, sinks: bool) -> tuple[ServedBy, ...]:
        """The kernels of a backend that run there, up to the first that takes every pass; none where no such does."""
        there = [entry for entry in self._entries(backend) if entry.concerns(gpu)]
        able = [entry for entry in there if self.attention_kernels[entry.kernel].serves(kv_bytes, sinks)]
        last = next((i for i, entry in enumerate(able) if entry.serves_all), None)
        return () if last is None else tuple(able[: last + 1])

    def _entries(self, backend: str) -> tuple[ServedBy, ...]:
        return self.attention_backends.get(backend, (ServedBy(kernel=backend),))

    def windows(self, choice: AttentionChoice) -> bool:
        """Whether drafts on the chosen backends honour a window; what the release picks itself is left to its notes."""
        return not self.window_backends or "draft" not in choice.by_hand or choice.draft in self.window_backends

    def backends_on(self, gpu: Gpu, kv_bytes: float, sinks: bool) -> tuple[str, ...]:
        """The backends that run on a GPU, over a cache of such elements, and for layers with sink logits or without."""
        return tuple(name for name in self.attention_backends if self.runs(name, gpu, kv_bytes, sinks))

    def runs(self, backend: str, gpu: Gpu, kv_bytes: float, sinks: bool) -> bool:
        """Whether a backend runs on a GPU, over a cache of such elements, for layers with sink logits or without."""
        return bool(self._running(backend, gpu, kv_bytes, sinks))


def source_among(sources: dict[str, str], path: str) -> str:
    """The source of a value's path, or of the longest path that it lies under; empty where there is none."""
    found = [known for known in sources if lies_under(path, known)]
    if not found:
        return ""
    return sources[max(found, key=lambda known: (known.count(".") + bool(known), "*" not in known))]


def lies_under(path: str, table: str) -> bool:
    """Whether a value's path is ``table`` or lies in it: ``*`` there stands for any one name, ``""`` for all."""
    if not table:
        return True
    known, parts = names_of(table), names_of(path)
    return len(known) <= len(parts) and all(a in ("*", b) for a, b in zip(known, parts, strict=False))


def names_of(path: str) -> list[str]:
    """The names of a value's path; one that holds a dot is in quotes, as in TOML: ``attention."RDNA3.5".base``."""
    return [name.strip().strip('"') for name in re.split(r'\.(?=(?:[^"]*"[^"]*")*[^"]*$)', path)]


def quoted(name: str) -> str:
    """A name as a path holds it."""
    return f'"{name}"' if "." in name else name
