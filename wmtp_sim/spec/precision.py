"""Bytes per element, per weight group, for weights and cache.

A checkpoint quantises some groups of matrices and leaves others: `Precision` names a format for each group, so that
an MTP head left in bf16 is priced in bf16 while its target is in FP4. Formats carry their block scales.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal

from pydantic import Field

from wmtp_sim.errors import InputError
from wmtp_sim.spec.base import Spec

#: Which matrices share a byte width. "attention_out" is the output projection, which some quantisers leave alone.
#: "small" is everything that is not a matrix (norms, biases, convolutions), and matrices that nobody quantises: an MTP
#: head's projection, DeepSeek-V4's compressors, the key and head weights of sparse indexers.
WeightGroup = Literal[
    "attention",
    "attention_out",
    "linear_mixer",
    "mlp",
    "expert",
    "shared_expert",
    "router",
    "embedding",
    "lm_head",
    "small",
]
#: The arithmetic a matrix product runs in when its weights are stored so.
MathDtype = Literal["bf16", "fp8", "fp4"]


class WeightFormat(Spec):
    """How a weight is stored. ``bytes_per_weight`` includes block scales; ``math`` is the product's input type."""

    name: str
    bytes_per_weight: float = Field(gt=0, le=8)
    math: MathDtype


#: Storage formats of released checkpoints, block scales included:
#: - fp8: one fp32 scale per 128x128 block, 0.02 %. Scales per tensor or channel are counted the same.
#: - mxfp8, mxfp4: one byte (ue8m0) per 32 weights; nvfp4: one fp8 per 16.
#: - int4, int8: one 16-bit scale per group of 128 weights, or as "-g64", "-g32", "-channel" (one per output) say.
#:   int4 and int4-g64 carry 4-bit zero points as AWQ and GPTQ do, int4-g32 does not (compressed-tensors, Kimi);
#:   the same group size with or without them differs by less than 3 %.
#: - q4_k, q5_k, q6_k, q8_0: GGUF blocks of 256 (32) weights with their scales; always unpacked.
#: - "-a16": weights are unpacked and multiplied in bf16, whatever the GPU could do; int4, int8 and mxfp4 always are.
#: - "-a8": multiplied with fp8 activations (DeepSeek-V4's fp4 experts).
FORMATS = MappingProxyType(
    {
        f.name: f
        for f in (
            WeightFormat(name="fp32", bytes_per_weight=4.0, math="bf16"),
            WeightFormat(name="bf16", bytes_per_weight=2.0, math="bf16"),
            WeightFormat(name="fp8", bytes_per_weight=1.0 + 4.0 / 128**2, math="fp8"),
            WeightFormat(name="fp8-a16", bytes_per_weight=1.0 + 4.0 / 128**2, math="bf16"),
            WeightFormat(name="mxfp8", bytes_per_weight=1.0 + 1.0 / 32, math="fp8"),
            WeightFormat(name="int8", bytes_per_weight=1.0 + 2.0 / 128, math="bf16"),
            WeightFormat(name="nvfp4", bytes_per_weight=0.5 + 1.0 / 16, math="fp4"),
            WeightFormat(name="nvfp4-a16", bytes_per_weight=0.5 + 1.0 / 16, math="bf16"),
            WeightFormat(name="mxfp4", bytes_per_weight=0.5 + 1.0 / 32, math="bf16"),
            WeightFormat(name="mxfp4-a8", bytes_per_weight=0.5 + 1.0 / 32, math="fp8"),
            WeightFormat(name="int4", bytes_per_weight=0.5 + 2.0 / 128 + 0.5 / 128, math="bf16"),
            WeightFormat(name="int4-g64", bytes_per_weight=0.5 + 2.0 / 64 + 0.5 / 64, math="bf16"),
            WeightFormat(name="int4-g32", bytes_per_weight=0.5 + 2.0 / 32, math="bf16"),
            WeightFormat(name="int4-channel", bytes_per_weight=0.5, math="bf16"),
            WeightFormat(name="q4_k", bytes_per_weight=144.0 / 256, math="bf16"),
            WeightFormat(name="q5_k", bytes_per_weight=176.0 / 256, math="bf16"),
            WeightFormat(name="q6_k", bytes_per_weight=210.0 / 256, math="bf16"),
            WeightFormat(name="q8_0", bytes_per_weight=34.0 / 32, math="bf16"),
        )
    }
)

#: Bytes per cached K or V element.
KV_BYTES = MappingProxyType({"bf16": 2.0, "fp8": 1.0})
CacheFormat = Literal["bf16", "fp8"]
#: What people and engines call a cache format: the two fp8 layouts take equally many bytes.
CACHE_WORDS: MappingProxyType[str, CacheFormat] = MappingProxyType(
    {"bf16": "bf16", "bfloat16": "bf16", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
)

#: The groups that `--weights` rewrites: the target's linear layers. What released checkpoints leave alone stays.
LINEAR_GROUPS: tuple[WeightGroup, ...] = (
    "attention",
    "attention_out",
    "linear_mixer",
    "mlp",
    "expert",
    "shared_expert",
)

GROUPS: tuple[WeightGroup, ...] = (*LINEAR_GROUPS, "router", "embedding", "lm_head", "small")


def weight_format(name: str, field: str) -> WeightFormat:
    """Look a storage format up by name; ``field`` is what the person typed it for."""
    if name not in FORMATS:
        raise InputError(field, f"unknown weight format {name!r}", f"one of {', '.join(FORMATS)}")
    return FORMATS[name]


def cache_format(word: str, field: str) -> CacheFormat:
    """A cache format by any of its names, in any case; ``field`` is what the person typed it for."""
    found = CACHE_WORDS.get(word.strip().lower())
    if found is None:
        raise InputError(field, f"unknown cache format {word[:40]!r}", f"one of {', '.join(CACHE_WORDS)}")
    return found


class GroupFormats(Spec):
    """A format name for every weight group; bf16 where a checkpoint says nothing."""

    attention: str = "bf16"
    attention_out: str = "bf16"
    linear_mixer: str = "bf16"
    mlp: str = "bf16"
    expert: str = "bf16"
    shared_expert: str = "bf16"
    router: str = "bf16"
    embedding: str = "bf16"
    lm_head: str = "bf16"
    small: str = "bf16"

    def of(self, group: WeightGroup) -> WeightFormat:
        """The storage format of one group."""
        return FORMATS[getattr(self, group)]

    def with_linear(self, fmt: str) -> GroupFormats:
        """These formats with every linear layer stored as ``fmt``."""
        return self.model_copy(update=dict.fromkeys(LINEAR_GROUPS, fmt))


class Precision(Spec):
    """Storage of the target's and of the MTP head's weights, and whether the config said so itself.

    The head's 2h->h projection is stored as ``head.small`` says: engines build it unquantised (SGLang 0.5.23).
    ``stated`` is False when the config has no quantisation section, and then `--weights` may rewrite the target.
    ``kv`` is the cache format that the checkpoint asks for, if it does.
    """

    target: GroupFormats = GroupFormats()
    head: GroupFormats = GroupFormats()
    stated: bool = False
    kv: Literal["bf16", "fp8"] = "bf16"
    note: str = ""


def override(
    precision: Precision, *, weights: str | None, head_weights: str | None, draft_weights: str | None
) -> Precision:
    """``precision`` as a person asks for it.

    Args:
        precision: what the checkpoint says.
        weights: format of the target's linear layers (`LINEAR_GROUPS`): only for a checkpoint that states none.
        head_weights: format of lm_head, in the target and in the MTP head.
        draft_weights: format of the MTP head's linear layers. Its projection stays as ``head.small`` says.

    Raises:
        InputError: an unknown format, or ``--weights`` on a checkpoint that states its formats.
    """
    target, head = precision.target, precision.head
    if weights is not None:
        if precision.stated:
            raise InputError("--weights", f"{weights!r}, but the checkpoint states its own formats", "drop the flag")
        target = target.with_linear(weight_format(weights, "--weights").name)
    if head_weights is not None:
        lm_head = {"lm_head": weight_format(head_weights, "--head-weights").name}
        target, head = target.model_copy(update=lm_head), head.model_copy(update=lm_head)
    if draft_weights is not None:
        head = head.with_linear(weight_format(draft_weights, "--draft-weights").name)
    return precision.model_copy(update={"target": target, "head": head})
