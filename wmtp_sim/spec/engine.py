"""An engine as data: which passes a speculative step runs, which kernels serve them, and what surrounds them.

Fields mirror the engine definition files (``data/engines/*.toml``), where every value names its source.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from wmtp_sim.spec.base import Spec
from wmtp_sim.spec.precision import WeightGroup

Seconds = Annotated[float, Field(ge=0, le=10)]
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
        streams: what gets a thread block of its own: a KV head of a sequence (query rows packed), or each query head
            (the cache is then read once per query head).
        max_splits: thread blocks along the context per stream; 0 lets the kernel fill the GPU.
        tile_tokens: fewest cached tokens per thread block.
        row_tile: query rows are padded to a multiple of this in arithmetic.
        verify_mask_bytes: bytes moved per (verify row x cached token) to build an explicit mask, all passes over it.
    """

    streams: Literal["kv_head", "q_head"] = "kv_head"
    max_splits: int = Field(default=0, ge=0)
    tile_tokens: int = Field(default=64, ge=1)
    row_tile: int = Field(default=1, ge=1)
    verify_mask_bytes: float = Field(default=0, ge=0)


class AttentionChoice(Spec):
    """The kernel that serves each pass; names of ``Engine.attention_kernels``.

    The draft kernel honours a window where the engine has one that does, so that draft policies compare like with like.
    """

    base: str
    verify: str
    extend: str
    draft: str


class IndexBuild(Spec):
    """Kernels that write the list of cache slots a pass will read: cheap in bytes, slow in dependent turns.

    One program walks a list, ``tokens_per_turn`` at a time; with ``tokens_per_block`` a list is cut into blocks of that
    many tokens, of which at most ``max_blocks`` run for all lists and sequences together. With ``per_depth`` every
    narrow draft pass has a list of its own.
    """

    phase: Phase
    tokens_per_turn: float = Field(gt=0)
    tokens_per_block: float | None = Field(default=None, gt=0)
    max_blocks: float = Field(default=512, ge=1)
    bytes_per_position: float = Field(default=12, ge=0)
    launches: float = Field(default=1, ge=0)
    per_depth: bool = False


class Host(Spec):
    """Time the GPU waits for the host: fixed per step, with and without speculation, and per draft pass."""

    base_s: Seconds = 0.0
    step_s: Seconds = 0.0
    per_draft_s: Seconds = 0.0


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


class Note(Spec):
    """What a person must know about an engine on GPUs of some architectures, as the GPU file names them; () is all."""

    text: str
    architectures: tuple[str, ...] = ()

    def concerns(self, architecture: str) -> bool:
        return not self.architectures or architecture in self.architectures


class Engine(Spec):
    """One engine release.

    Attributes:
        window_policies: draft windows the release can really run; others are priced as what-if and say so.
        attention: kernels per GPU architecture (the GPU file's word, ``Hopper``), and ``default``.
        pad_draft_rows: the rows of a narrow draft pass, all sequences together, are padded to a multiple of depth + 1.
        elementwise: small kernels that the engine starts around each kind of mixer and MLP, per norm and for the
            embedding, after its fusions.
        concurrent_groups: weight groups whose products run on a second stream: their launches hide behind the other
            stream's, their bytes do not.
        spread: factor that this definition itself may be off by, beyond its kernels: 1 where its steps were measured.
        memory_fraction: share of the GPU's memory that weights, caches and states may fill.
    """

    name: str
    version: str
    title: str
    attention: dict[str, AttentionChoice]
    attention_kernels: dict[str, AttentionKernel]
    window_policies: tuple[Literal["flag", "ring"], ...] = ()
    pad_draft_rows: bool = False
    elementwise: dict[Part, Annotated[float, Field(ge=0, le=100)]]
    sample_launches: float = Field(default=0, ge=0)
    concurrent_groups: tuple[WeightGroup, ...] = ()
    spread: float = Field(default=1, ge=1, le=10)
    memory_fraction: float = Field(gt=0, le=1)
    state: StateHandling = StateHandling()
    index: tuple[IndexBuild, ...] = ()
    host: Host = Host()
    ideal: bool = False
    notes: tuple[Note, ...] = ()
    sources: tuple[str, ...]

    @model_validator(mode="after")
    def _parts_are_complete(self) -> Engine:
        missing = [part for part in get_args(Part) if part not in self.elementwise]
        if missing:
            raise ValueError(f"elementwise lacks {', '.join(missing)}")
        return self

    @model_validator(mode="after")
    def _kernels_exist(self) -> Engine:
        if "default" not in self.attention:
            raise ValueError("attention lacks default, the kernels for GPUs that it does not name")
        for architecture, choice in self.attention.items():
            for phase, name in choice:
                if name not in self.attention_kernels:
                    where = f"attention.{architecture}.{phase}"
                    raise ValueError(f"{where} names {name!r}, which attention_kernels does not define")
        return self

    def attention_on(self, architecture: str) -> AttentionChoice:
        """The attention kernels that this release picks on a GPU architecture."""
        return self.attention.get(architecture) or self.attention["default"]
