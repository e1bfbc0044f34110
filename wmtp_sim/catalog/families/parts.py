"""Pieces that several families read from the same fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from wmtp_sim.catalog.families.architecture import merged
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Attention, Block, Channel, Mixer, Moe

K = TypeVar("K")
T = TypeVar("T")

#: Per-layer lists longer than this are no model, only a slow import.
MAX_LAYERS = 4096

_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def layer_count(config: Fields) -> int:
    """``num_hidden_layers``, refused where a list of that length would be absurd."""
    layers = config.size("num_hidden_layers")
    if layers > MAX_LAYERS:
        raise config.error("num_hidden_layers", f"{layers} is out of range", f"at most {MAX_LAYERS}")
    return layers


def chosen(config: Fields, name: str, kinds: Sequence[K], of: Mapping[K, T]) -> list[T]:
    """``of[kind]`` for every kind of the per-layer field ``name``; a kind that ``of`` lacks is refused."""
    if not 1 <= len(kinds) <= MAX_LAYERS:
        raise config.error(name, f"has {len(kinds)} entries", f"between 1 and {MAX_LAYERS} layers")
    for kind in kinds:
        if kind not in of:
            known = ", ".join(str(k) for k in of)
            raise config.error(name, f"{str(kind)[:40]!r} is not a known layer kind", f"known: {known}")
    return [of[kind] for kind in kinds]


def per_layer(config: Fields, *names: str, of: Mapping[K, T], length: int | None = None) -> list[T]:
    """The per-layer list under the first of ``names`` that is present, each entry looked up in ``of``."""
    name = next((n for n in names if n in config), names[0])
    return chosen(config, name, config.items(*names, of=type(next(iter(of))), length=length), of)


def layers(
    mixers: Sequence[Mixer], channels: Sequence[Channel], norms: int = 2, extra_params: int = 0
) -> tuple[Block, ...]:
    """Layers of one token mixer and one channel mixer, by default each behind a norm; equal ones merged."""
    found = [
        Block(mixers=(mixer,), channels=(channel,), norms=norms, extra_params=extra_params)
        for mixer, channel in zip(mixers, channels, strict=True)
    ]
    return merged(found)


def refuse(config: Fields, *names: str) -> None:
    """Refuses flags that would add weights or change layers in a way no released model of the family does."""
    for name in names:
        if config.flag(name, default=False):
            raise config.error(name, "true is not supported", "no released model of this family sets it")


def one_head(config: Fields, *names: str, **default: int) -> bool:
    """Whether the config announces a trained head. Engines run one head of these families, and reuse it."""
    heads = config.count(*names, **default)
    if heads > 1:
        raise config.error(names[0], f"{heads} heads are not supported", "this family's releases have one")
    return heads == 1


def gqa(config: Fields, head_dim: int | None = None, **extras: Any) -> Attention:
    """Attention from the usual fields; ``head_dim`` where the family does not state it under that name."""
    head_dim = head_dim or config.size("head_dim")
    return Attention(
        q_heads=config.size("num_attention_heads"),
        kv_heads=config.size("num_key_value_heads"),
        head_dim=head_dim,
        v_head_dim=head_dim,
        **extras,
    )


def routed_experts(
    config: Fields,
    count: str = "num_experts",
    top_k: str = "num_experts_per_tok",
    inner: str = "moe_intermediate_size",
    shared: str | None = None,
    shared_inner: str | None = None,
    **extras: Any,
) -> Moe:
    """Experts by the names of the fields that count them, choose among them and size them.

    ``shared`` counts experts that every token takes (one where it is not named), and ``shared_inner`` is their width,
    else that of the others.
    """
    sizes = {"experts": config.size(count), "top_k": config.size(top_k), "inner": config.size(inner)}
    if shared or shared_inner:
        copies = config.count(shared) if shared else 1
        sizes["shared_inner"] = copies * (config.size(shared_inner) if shared_inner else sizes["inner"])
    return Moe(**sizes, **extras)


def split_head_dim(config: Fields) -> int:
    """The hidden size split among the query heads, unless ``head_dim`` is stated."""
    return config.size("head_dim", default=config.size("hidden_size") // config.size("num_attention_heads"))


def state_bytes(config: Fields) -> int:
    """Bytes per element of recurrent states: float32 unless the config says so (sglang 0.5.23 mamba_utils)."""
    name = next((n for n in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype") if n in config), "mamba_ssm_dtype")
    dtype = config.text(name, default="float32")
    if dtype not in _STATE_BYTES:
        raise config.error(name, f"{dtype[:40]!r} is unknown", f"one of {', '.join(_STATE_BYTES)}")
    return _STATE_BYTES[dtype]
