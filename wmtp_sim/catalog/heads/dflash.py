"""Block drafters: DFlash, and DSpark and Domino, which correct its block token by token.

Layers of Qwen3's shape attend, beside a block's own rows, keys and values made of the target's states: N of them are
joined by one N*h -> h matrix for every committed token. Embedding and lm_head are the target's, unless the config says
otherwise. Shapes: z-lab/dflash 0.1, SGLang 0.5.23 ``dflash.py``, ``dspark.py``, vLLM 0.33 ``qwen3_dflash.py``.
"""

from __future__ import annotations

from wmtp_sim.catalog.drafter_kinds import layer_fields
from wmtp_sim.catalog.families.parts import layers
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.catalog.heads.parts import Places, attention, plain_layers, positions, same, same_target, windows
from wmtp_sim.spec.drafter import Drafter
from wmtp_sim.spec.model import Block, Mlp, Model, Projection
from wmtp_sim.spec.precision import GroupFormats

_LAYER_IDS = ("target_layer_ids", "aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")


def dflash(config: Fields, target: Model) -> Drafter:
    """A DFlash drafter, or what corrects one where the config has its fields."""
    if _places(config).first("markov_rank"):
        return dspark(config, target)
    if _places(config).first("projector_type"):
        return domino(config, target)
    return _backbone(config, target, "DFlash", sampled=False)


def dspark(config: Fields, target: Model) -> Drafter:
    """A DFlash drafter with a low-rank Markov head: the last token's embedding of ``markov_rank`` gives all logits.

    The confidence head reads the state and that embedding: it lies in memory, its product of one output is not priced.
    """
    # the speculators format and vLLM read an absent flag differently
    sampled = None if "transformer_layer_config" in config else True
    drafter = _backbone(config, target, "DSpark", sampled)
    places, hidden = _places(config), drafter.hidden
    rank = places.stating("markov_rank").size("markov_rank")
    kinds = {
        "vanilla": (),
        "gated": (Projection(name="markov_gate", k=hidden + rank, n=rank),),
        "rnn": (Projection(name="markov_rnn", k=hidden + 2 * rank, n=3 * rank),),
    }
    before = kinds[places.stating("markov_head_type").word("markov_head_type", *kinds)]
    confident = places.flag("enable_confidence_head")
    small = hidden + rank + 1 if confident else 0
    table, biases = target.vocab * rank, sum(each.n for each in before)
    return drafter.model_copy(
        update={
            "micro": (*before, Projection(name="markov_w2", k=rank, n=drafter.vocab)),
            "extra_params": drafter.extra_params + table + biases + small,
        }
    )


def domino(config: Fields, target: Model) -> Drafter:
    """A DFlash drafter with a GRU over the drafted tokens and a low-rank matrix that corrects their logits."""
    places = _places(config)
    places.stating("projector_type").word("projector_type", "domino")
    drafter = _backbone(config, target, "Domino", sampled=False)
    if drafter.own_lm_head:
        raise config.error("draft_vocab_size", "a Domino drafter has its target's vocabulary", "another kind's config?")
    hidden = drafter.hidden
    state = places.stating("gru_hidden_dim").size("gru_hidden_dim")
    rank = places.stating("emb_dim").size("emb_dim")
    micro = (
        Projection(name="gru_input", k=hidden, n=3 * state),
        Projection(name="gru_state", k=state, n=3 * state),
        Projection(name="correction_down", k=hidden + state, n=rank),
        Projection(name="correction_up", k=rank, n=drafter.vocab),
    )
    return drafter.model_copy(update={"micro": micro})


def _backbone(config: Fields, target: Model, kind: str, sampled: bool | None) -> Drafter:
    """The drafter without corrections; ``sampled``: whether its anchor's row drafts, too, where nothing is stated."""
    layer, places = layer_fields(config), _places(config)
    plain_layers(layer)
    hidden = same_target(config, layer, target)
    narrower = hidden != target.hidden
    own_embedding = narrower or places.flag("has_embed_tokens")
    if not own_embedding:
        same(layer, "vocab_size", target.vocab)
    vocab = places.vocab(target) or target.vocab
    own_lm_head = narrower or vocab != target.vocab or places.flag("has_own_lm_head", "has_lm_head")
    name = "sample_from_anchor"
    anchor = places.stating(name)
    samples = anchor.flag(name) if sampled is None else anchor.flag(name, default=sampled)
    size = places.stating("block_size").size("block_size")
    joined = _fused(config, target) * target.hidden
    return Drafter(
        kind="block",
        name=f"{kind} drafter of {target.name}",
        hidden=hidden,
        vocab=vocab,
        blocks=_blocks(config, layer),
        projections=(Projection(name="fuse_proj", k=joined, n=hidden, every_step=False),),
        norms=1,
        extra_params=hidden,  # the norm of the joined states
        formats=GroupFormats() if own_lm_head else GroupFormats(lm_head=target.precision.target.lm_head),
        own_lm_head=own_lm_head,
        embedding_rows=layer.size("vocab_size") if own_embedding else 0,
        block=size + 1 if samples else size,
        samples_anchor=samples,
        max_positions=positions(layer),
    )


def _blocks(config: Fields, layer: Fields) -> tuple[Block, ...]:
    """Layers of attention with norms of q and k, and one MLP; ``use_swa`` of its own section slides them all."""
    places = _places(config)
    sinks = places.flag("attention_sink_bias", "add_swa_attention_sink_bias")
    full, mlp = attention(layer, normed=True, sinks=sinks), Mlp(inner=layer.size("intermediate_size"))
    found = windows(layer)
    if places.flag("use_swa") and not any(found):
        place = places.first("swa_window_size") or (layer, "sliding_window")
        found = [place[0].size(place[1])] * len(found)
    mixers = [full.model_copy(update={"window": window}) for window in found]
    return layers(mixers, [mlp] * len(mixers))


def _fused(config: Fields, target: Model) -> int:
    """The target's states that are joined: as many as are listed, else one for each layer of the drafter."""
    places = _places(config)
    if not places.flag("use_aux_hidden_state", default=True):
        place = places.stating("use_aux_hidden_state")
        raise place.error("use_aux_hidden_state", "false: a drafter without the target's states is not priced")
    listed = places.first(*_LAYER_IDS)
    if listed is None and "transformer_layer_config" in config:
        listed = (config, "aux_hidden_state_layer_ids")  # which that format needs
    if listed is None:
        same(places.stating("num_target_layers"), "num_target_layers", target.layers)
        return layer_fields(config).size("num_hidden_layers")
    fields, name = listed
    ids = fields.items(name, of=int)
    if not ids or min(ids) < 0 or max(ids) > target.layers:
        problem = f"{len(ids)} layers of a target of {target.layers}, from 0 to {max(ids, default=0)}"
        raise fields.error(name, problem, "another target's drafter?")
    return len(ids)


def _places(config: Fields) -> Places:
    return Places(config, "dspark_config", "domino_config", "dflash_config")
