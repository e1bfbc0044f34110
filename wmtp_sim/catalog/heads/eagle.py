"""EAGLE heads: EAGLE-1, EAGLE-3 over grouped-query or latent attention, and P-EAGLE, which drafts in one pass.

Shapes: arXiv 2401.15077 and 2503.01840; SGLang 0.5.23 ``llama_eagle3.py``, ``kimi_k25_eagle3.py``; vLLM 0.33
``llama_eagle3.py``, ``qwen3_eagle3.py``, ``deepseek_eagle3.py``, ``mistral_large_3_eagle.py``; speculators 0.9.
"""

from __future__ import annotations

from wmtp_sim.catalog.drafter_kinds import layer_fields
from wmtp_sim.catalog.families.architecture import merged
from wmtp_sim.catalog.families.deepseek import decoder, mla, sparse_layers
from wmtp_sim.catalog.families.parts import layer_count
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.catalog.heads.parts import Places, attention, positions, same, same_target, windows
from wmtp_sim.spec.drafter import Drafter, DrafterKind
from wmtp_sim.spec.model import Attention, Block, LatentAttention, Mlp, Model, Projection
from wmtp_sim.spec.network import full_attention
from wmtp_sim.spec.precision import GroupFormats

#: Reduced vocabulary of public EAGLE-3 heads (SpecForge configs).
DRAFT_VOCAB = 32_000
#: Hidden states of the target that are joined where a config does not list them: low, middle and high (EAGLE-3).
FUSED = 3
#: Fields that only heads for parallel drafts have.
_PARALLEL = ("pard_token", "ptd_token_id", "mask_token_id", "parallel_drafting")
#: Flags that put norms on the joined states.
_NORMED = ("fc_norm", "use_aux_norm", "norm_before_fc")


def eagle3(config: Fields, target: Model) -> Drafter:
    """An EAGLE-3 head; it may be narrower than its target, attend latents, or draft in parallel.

    A parallel one has layers behind the first, a learnt state for its masks, and as a rule an embedding of its own.
    """
    layer, places = layer_fields(config), Places(config, "eagle_config")
    marks = (fields.values.get(name) for fields in places.all for name in _PARALLEL)
    parallel = _names_parallel(config) or any(mark not in (None, False) for mark in marks)
    if not parallel:
        _one_layer(layer)
    hidden = same_target(config, layer, target)
    if "vocab_size" in layer:
        same(layer, "vocab_size", target.vocab)
    fused = _fused(places)
    drafter = eagle3_drafter(
        target,
        _attention(config, layer),
        layer.size("intermediate_size"),
        places.vocab(target),
        hidden=hidden,
        fused=fused,
        windows=windows(layer),
        kind="parallel" if parallel else "eagle",
        name=f"{'P-EAGLE' if parallel else 'EAGLE-3'} head of {target.name}",
    )
    wide = int(any(places.flag(name) for name in _NORMED)) + int(parallel)
    trained = places.flag("embed_requires_grad", default=parallel and "transformer_layer_config" in config)
    return drafter.model_copy(
        update={
            "extra_params": wide * fused * target.hidden + (hidden if places.flag("bias") else 0),
            "embedding_rows": target.vocab if trained else drafter.embedding_rows,
            "block": _proposed(config) if parallel else 0,
            "max_positions": positions(layer),
        }
    )


def eagle3_drafter(
    target: Model,
    mixer: Attention | LatentAttention,
    inner: int,
    vocab: int | None,
    hidden: int | None = None,
    fused: int = FUSED,
    windows: list[int | None] | None = None,
    kind: DrafterKind = "eagle",
    name: str = "EAGLE-3 head",
    note: str = "",
) -> Drafter:
    """An EAGLE-3 head: hidden states of the target are joined per committed token; the first layer reads [embedding,
    hidden], so that what it makes of the embedding's half is a projection of its own.

    Args:
        target: whose tokens are drafted.
        mixer: the layers' attention, over the whole context.
        inner: width of their MLPs.
        vocab: rows of a vocabulary matrix of its own, usually reduced; None reads the target's.
        hidden: its width, if not the target's; then it has an embedding of its own, too.
        fused: the target's states that are joined, or 0.
        windows: each layer's sliding window; one layer without one where nothing is stated.
        kind, name, note: as of the drafter.
    """
    hidden = hidden or target.hidden
    own = vocab is not None or hidden != target.hidden
    mixers = [mixer if window is None else mixer.model_copy(update={"window": window}) for window in windows or [None]]
    layers = [
        Block(mixers=(each,), channels=(Mlp(inner=inner),), norms=2 if behind else 3)
        for behind, each in enumerate(mixers)
    ]
    joined = [Projection(name="qkv_embedding_half", k=hidden, n=_read_width(mixer))]
    if fused:
        joined.insert(0, Projection(name="fuse_proj", k=fused * target.hidden, n=hidden, every_step=False))
    return Drafter(
        kind=kind,
        name=name,
        hidden=hidden,
        vocab=vocab or target.vocab,
        blocks=merged(layers),
        projections=tuple(joined),
        norms=1,
        formats=GroupFormats() if own else GroupFormats(lm_head=target.precision.target.lm_head),
        own_lm_head=own,
        embedding_rows=0 if hidden == target.hidden else target.vocab,
        note=note,
    )


def eagle1(config: Fields, target: Model) -> Drafter:
    """An EAGLE-1 head: every pass joins [embedding, hidden] to h, runs one layer, and reads the target's lm_head.

    The layer has no norm before its attention, and none follows it.
    """
    layer = layer_fields(config)
    _one_layer(layer)
    mixer, inner = attention(layer, normed=False), layer.size("intermediate_size")
    same(layer, "hidden_size", target.hidden)
    same(layer, "vocab_size", target.vocab)
    if config.flag("layernorms", default=False):
        problem = "true: heads with norms of their own are not priced yet"
        raise config.error("layernorms", problem, "give --drafter eagle")
    bias = config.flag("fusion_bias", "bias", default=False)
    block = Block(mixers=(mixer,), channels=(Mlp(inner=inner),), norms=1)
    return _joined(target, (block,), positions(layer)).model_copy(
        update={"norms": 0, "extra_params": target.hidden if bias else 0}
    )


def eagle_moe(config: Fields, target: Model) -> Drafter:
    """An EAGLE-1 head of DeepSeek's layers (Mistral Large 3): latent attention, an MLP or experts, a final norm."""
    layer = layer_fields(config)
    same(layer, "hidden_size", target.hidden)
    same(layer, "vocab_size", target.vocab)
    count, mixer = layer_count(layer), mla(layer)
    if "n_routed_experts" in layer:
        blocks = decoder([mixer] * count, sparse_layers(layer, count), layer)
    else:
        blocks = (Block(count=count, mixers=(mixer,), channels=(Mlp(inner=layer.size("intermediate_size")),), norms=2),)
    return _joined(target, blocks, positions(layer))


def assumed_eagle(target: Model) -> Drafter:
    """An EAGLE-3 head nobody has shown us: the target's own attention geometry and MLP width."""
    mixer = full_attention(target)
    widths = [c.inner for b in target.blocks for c in b.channels if isinstance(c, Mlp)]
    inner = max(widths, default=4 * target.hidden)
    source = "target" if widths else "4 x hidden"
    note = (
        f"EAGLE-3 head assumed: attention as the target's, MLP {inner} wide ({source}), {DRAFT_VOCAB:,} draft "
        "tokens; give the head's config.json for its own shape"
    )
    return eagle3_drafter(target, mixer, inner, DRAFT_VOCAB, note=note)


def _joined(target: Model, blocks: tuple[Block, ...], max_positions: int) -> Drafter:
    """Layers behind one 2h -> h matrix over [embedding, hidden] of every row; both vocabulary matrices the target's."""
    return Drafter(
        kind="eagle",
        name=f"EAGLE-1 head of {target.name}",
        hidden=target.hidden,
        vocab=target.vocab,
        blocks=blocks,
        projections=(Projection(name="fuse_proj", k=2 * target.hidden, n=target.hidden),),
        formats=GroupFormats(lm_head=target.precision.target.lm_head),
        max_positions=max_positions,
    )


def _one_layer(layer: Fields) -> None:
    if layer.size("num_hidden_layers") != 1:
        raise layer.error("num_hidden_layers", "only one-layer EAGLE heads are known", "expected 1")


def _attention(config: Fields, layer: Fields) -> Attention | LatentAttention:
    """Latent attention where a latent's rank is stated; else q and k have norms where the layer is Qwen3's."""
    if "kv_lora_rank" in layer:
        if any(windows(layer)):
            raise layer.error("sliding_window", "heads that attend a window of latents are not priced yet")
        return mla(layer)
    names = config.items("architectures", of=str) if "architectures" in config else []
    wrapped = "transformer_layer_config" in config and "model_type" in layer and layer.text("model_type") == "qwen3"
    return attention(layer, normed=wrapped or any(name.endswith("Qwen3ForCausalLM") for name in names))


def _read_width(mixer: Attention | LatentAttention) -> int:
    """Outputs of the matrices that read a layer's input: q, k and v, or the latents and what does without one."""
    if isinstance(mixer, LatentAttention):
        queries = mixer.q_lora_rank or mixer.heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
        return queries + mixer.latent_dim
    return mixer.q_heads * mixer.head_dim + mixer.kv_heads * (mixer.head_dim + mixer.v_head_dim)


def _fused(places: Places) -> int:
    """The target's states that are joined: as stated, as many as are listed, or low, middle and high."""
    if not places.flag("use_aux_hidden_state", default=True):
        return 0
    if stated := places.first("num_aux_hidden_states"):
        return stated[0].size(stated[1])
    listed = places.first("eagle_aux_hidden_state_layer_ids")
    return FUSED if listed is None else len(listed[0].items(listed[1], of=int)) or FUSED


def _names_parallel(config: Fields) -> bool:
    names = config.items("architectures", of=str) if "architectures" in config else []
    if "speculators_model_type" in config:
        names = [*names, config.text("speculators_model_type")]
    return any(name.lower().replace("-", "").startswith("peagle") for name in names)


def _proposed(config: Fields) -> int:
    """The rows of a block, one more than the tokens that the speculators format states; 0 where nothing is stated."""
    if "speculators_config" not in config:
        return 0
    methods = config.child("speculators_config").items("proposal_methods", of=dict)
    where = f"{config.where}: speculators_config: proposal_methods"
    return Fields(methods[0], where).size("speculative_tokens") + 1 if methods else 0
