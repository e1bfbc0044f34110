"""Draft heads by their own ``config.json``: which kind each is, what it weighs, what it caches, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wmtp_sim.catalog.drafter_kinds import drafter_kinds
from wmtp_sim.catalog.drafters import load_drafter
from wmtp_sim.catalog.heads import HEADS
from wmtp_sim.catalog.models import load_model
from wmtp_sim.errors import InputError
from wmtp_sim.spec.drafter import Drafter, mtp_drafter
from wmtp_sim.spec.model import Attention, LatentAttention
from wmtp_sim.work.cache import written_token_bytes
from wmtp_sim.work.resident import drafter_weight_bytes
from wmtp_sim.work.weights import block_params

FOLDER = Path(__file__).parents[1] / "data" / "heads"
#: Each config with its target and what the drafter is.
KINDS = {
    "dflash-qwen3-8b": ("qwen3-8b", "block"),
    "dflash-speculators-qwen3-8b": ("qwen3-8b", "block"),
    "dspark-qwen3-8b": ("qwen3-8b", "block"),
    "domino-qwen3-8b": ("qwen3-8b", "block"),
    "peagle-speculators-qwen3-8b": ("qwen3-8b", "parallel"),
    "pard-qwen3-8b": ("qwen3-8b", "parallel"),
    "medusa-llama-3.1-8b": ("llama-3.1-8b", "heads"),
    "medusa-vllm-llama-3.1-8b": ("llama-3.1-8b", "heads"),
    "eagle3-qwen3-30b-a3b": ("qwen3-30b-a3b", "eagle"),
    "eagle3-speculators-qwen3-8b": ("qwen3-8b", "eagle"),
    "eagle3-narrower-llama-3.1-70b": ("llama-3.1-70b", "eagle"),
    "eagle3-mla-kimi-k2.5": ("kimi-k2.5", "eagle"),
    "eagle-mistral-large-3": ("deepseek-v3", "eagle"),
    "mtp-deepseek-v3": ("deepseek-v3", "mtp"),
}
#: A layer of Qwen3-8B: q, k, v and o, an MLP of three matrices, norms of q and k, two norms of the state.
H, Q, KV, INNER, V = 4096, 32 * 128, 8 * 128, 12_288, 151_936
LAYER = H * (Q + 2 * KV) + Q * H + 3 * H * INNER + 2 * 128 + 2 * H


def config(name: str, **changes: Any) -> dict[str, Any]:
    """A config with fields changed, or left out where None."""
    stated = json.loads((FOLDER / f"{name}.json").read_text()) | changes
    return {field: value for field, value in stated.items() if value is not None}


def loaded(document: dict[str, Any], target: str, folder: Path, draft_weights: str | None = None) -> Drafter:
    path = folder / "head.json"
    path.write_text(json.dumps(document))
    drafter = load_drafter(str(path), load_model(target), draft_weights)
    assert drafter is not None
    return drafter


def read(name: str, folder: Path, **changes: Any) -> Drafter:
    return loaded(config(name, **changes), KINDS[name][0], folder)


def section(name: str, field: str, **changes: Any) -> dict[str, Any]:
    """An object of a config with fields changed, or left out where None."""
    stated = config(name)[field] | changes
    return {key: value for key, value in stated.items() if value is not None}


def params(drafter: Drafter) -> float:
    """Parameters of a drafter whose weights are all bf16."""
    return drafter_weight_bytes(drafter) / 2


def token_bytes(drafter: Drafter) -> float:
    """Bytes that a drafted token leaves in a bf16 cache."""
    return sum(block.count * written_token_bytes(m, 2.0) for block in drafter.blocks for m in block.mixers)


# --- which kind ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_each_config_is_of_its_kind(name: str, tmp_path: Path) -> None:
    assert read(name, tmp_path).kind == KINDS[name][1]


@pytest.mark.parametrize("called", ["qwen3", "llama", "deepseek_v3"])
@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("mtp-deepseek-v3", "pard-qwen3-8b")])
def test_its_model_type_does_not_matter(name: str, called: str, tmp_path: Path) -> None:
    assert read(name, tmp_path, model_type=called) == read(name, tmp_path)


def test_every_kind_that_is_read_has_a_reader() -> None:
    assert {kind.reads for kind in drafter_kinds()} - {None, "model", "pard"} == set(HEADS)


def test_a_head_for_parallel_drafts_may_bear_an_eagle_3_head_s_name(tmp_path: Path) -> None:
    plain = config("eagle3-qwen3-30b-a3b")
    assert loaded(plain, "qwen3-30b-a3b", tmp_path).kind == "eagle"
    for mask in ("pard_token", "ptd_token_id"):
        drafter = loaded(plain | {mask: 151_669, "num_hidden_layers": 4}, "qwen3-30b-a3b", tmp_path)
        assert (drafter.kind, sum(block.count for block in drafter.blocks)) == ("parallel", 4)


# --- block drafters --------------------------------------------------------------------------------------------


def test_dflash_for_qwen3_8b(tmp_path: Path) -> None:
    """Five layers, five states of the target joined; embedding and lm_head are the target's."""
    drafter = read("dflash-qwen3-8b", tmp_path)
    assert LAYER == 192_946_432
    assert params(drafter) == 5 * LAYER + 5 * H * H + 2 * H == 1_048_626_432
    (fused,) = drafter.projections
    assert (fused.k, fused.n, fused.every_step) == (5 * H, H, False)
    assert token_bytes(drafter) == 5 * 2 * 8 * 128 * 2 == 20_480
    assert (drafter.block, drafter.samples_anchor, drafter.micro) == (16, False, ())
    assert (drafter.vocab, drafter.own_lm_head, drafter.embedding_rows) == (V, False, 0)
    assert drafter.max_positions == 40_960


def test_states_that_are_not_listed_are_one_for_each_layer(tmp_path: Path) -> None:
    """``num_target_layers`` counts the target's layers, not the states."""
    inner = section("dflash-qwen3-8b", "dflash_config", target_layer_ids=None)
    drafter = read("dflash-qwen3-8b", tmp_path, dflash_config=inner, num_hidden_layers=8)
    assert drafter.projections[0].k == 8 * H


def test_dflash_in_the_speculators_format(tmp_path: Path) -> None:
    """Three states, a vocabulary and an lm_head of its own, and a window in every layer."""
    drafter = read("dflash-speculators-qwen3-8b", tmp_path)
    assert params(drafter) == 5 * LAYER + 3 * H * H + 2 * H + 32_000 * H
    assert (drafter.block, drafter.vocab, drafter.own_lm_head) == (8, 32_000, True)
    assert [getattr(mixer, "window", None) for mixer in drafter.mixers] == [2048]
    assert not drafter.windowable
    layer = section("dflash-speculators-qwen3-8b", "transformer_layer_config", vocab_size=V)
    whole = read("dflash-speculators-qwen3-8b", tmp_path, draft_vocab_size=V, transformer_layer_config=layer)
    assert (whole.own_lm_head, whole.vocab) == (False, V)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sliding_window": 2048}, {None: 5}),
        ({"use_sliding_window": True, "sliding_window": 2048, "max_window_layers": 2}, {None: 2, 2048: 3}),
        ({"use_sliding_window": True, "sliding_window": 2048, "max_window_layers": 28}, {None: 5}),
        (
            {
                "use_sliding_window": None,
                "sliding_window": 4096,
                "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
            },
            {4096: 4, None: 1},
        ),
    ],
)
def test_layers_slide_as_the_config_says(changes: dict[str, Any], expected: dict[Any, int], tmp_path: Path) -> None:
    drafter = read("dflash-qwen3-8b", tmp_path, **changes)
    found = {m.window: block.count for block in drafter.blocks for m in block.mixers if isinstance(m, Attention)}
    assert found == expected


def test_a_section_of_its_own_may_slide_all_layers(tmp_path: Path) -> None:
    inner = section("dflash-qwen3-8b", "dflash_config", use_swa=True, swa_window_size=1024, attention_sink_bias=True)
    (mixer,) = read("dflash-qwen3-8b", tmp_path, dflash_config=inner).mixers
    assert isinstance(mixer, Attention)
    assert (mixer.window, mixer.sink_logits) == (1024, True)


def test_a_block_drafter_narrower_than_its_target(tmp_path: Path) -> None:
    """It can share neither vocabulary matrix."""
    sizes = {"hidden_size": 2048, "num_attention_heads": 16, "target_hidden_size": 4096}
    drafter = read("dflash-qwen3-8b", tmp_path, **sizes)
    assert (drafter.projections[0].k, drafter.projections[0].n) == (5 * 4096, 2048)
    assert (drafter.embedding_rows, drafter.own_lm_head, drafter.vocab) == (V, True, V)


def test_dspark_drafts_a_token_with_every_row(tmp_path: Path) -> None:
    """DFlash's backbone; a table of V x r, r -> V once a token, and a confidence head of h + r inputs and a bias."""
    drafter = read("dspark-qwen3-8b", tmp_path)
    rank = 256
    assert [(each.k, each.n) for each in drafter.micro] == [(rank, V)]
    assert params(drafter) == params(read("dflash-qwen3-8b", tmp_path)) + 2 * V * rank + H + rank + 1
    assert (drafter.block - 1, drafter.samples_anchor) == (7, True)
    anchored = read("dspark-qwen3-8b", tmp_path, sample_from_anchor=False)
    assert (anchored.block - 1, anchored.samples_anchor) == (6, False)


@pytest.mark.parametrize(
    ("kind", "first"), [("gated", (H + 256, 256)), ("rnn", (H + 2 * 256, 3 * 256))], ids=["gated", "rnn"]
)
def test_other_markov_heads_have_a_matrix_in_front(kind: str, first: tuple[int, int], tmp_path: Path) -> None:
    drafter = read("dspark-qwen3-8b", tmp_path, markov_head_type=kind)
    assert [(each.k, each.n) for each in drafter.micro] == [first, (256, V)]
    vanilla = read("dspark-qwen3-8b", tmp_path)
    assert params(drafter) == params(vanilla) + (first[0] + 1) * first[1]


def test_a_markov_head_may_lie_in_a_dflash_config(tmp_path: Path) -> None:
    inner = section("dflash-qwen3-8b", "dflash_config", markov_rank=64, markov_head_type="vanilla")
    drafter = read("dflash-qwen3-8b", tmp_path, dflash_config=inner)
    assert [(each.k, each.n) for each in drafter.micro] == [(64, V)]


def test_domino_corrects_with_a_gru(tmp_path: Path) -> None:
    """Three gates over h and the state of g, then h + g -> r -> V; no biases."""
    drafter = read("domino-qwen3-8b", tmp_path)
    gru, rank = 1024, 256
    assert [(p.k, p.n) for p in drafter.micro] == [(H, 3 * gru), (gru, 3 * gru), (H + gru, rank), (rank, V)]
    assert params(drafter) == params(read("dflash-qwen3-8b", tmp_path)) + sum(p.params for p in drafter.micro)


# --- parallel drafters -----------------------------------------------------------------------------------------


def test_p_eagle_has_layers_behind_an_eagle_3_head_s(tmp_path: Path) -> None:
    """Only the first reads [embedding, state]; masks have a learnt state, and the embedding is trained."""
    drafter = read("peagle-speculators-qwen3-8b", tmp_path)
    layer = LAYER - 2 * 128
    first = layer + H * (Q + 2 * KV) + H
    assert params(drafter) == 3 * H * H + first + 3 * layer + H + 3 * H + (32_000 + V) * H
    assert (drafter.block, drafter.vocab, drafter.embedding_rows) == (8, 32_000, V)
    assert token_bytes(drafter) == 4 * 2 * KV * 2
    shared = read("peagle-speculators-qwen3-8b", tmp_path, embed_requires_grad=False)
    assert params(drafter) - params(shared) == V * H


def test_pard_is_a_whole_model(tmp_path: Path) -> None:
    drafter = read("pard-qwen3-8b", tmp_path)
    layers = 28 * (1024 * (2048 + 2 * KV) + 2048 * 1024 + 3 * 1024 * 3072 + 2 * 128 + 2 * 1024)
    assert params(drafter) == layers + 1024 + V * 1024 == 596_049_920  # Qwen3-0.6B
    assert (drafter.embedding_rows, drafter.own_lm_head, drafter.projections) == (V, False, ())


# --- heads side by side ----------------------------------------------------------------------------------------


def test_medusa_heads(tmp_path: Path) -> None:
    """Each has one residual layer with a bias and an lm_head; none has a cache."""
    drafter = read("medusa-llama-3.1-8b", tmp_path)
    assert params(drafter) == 4 * ((H + 1) * H + 128_256 * H)
    assert (drafter.resident_copies, drafter.own_lm_head, drafter.blocks) == (4, True, ())
    assert (drafter.block, token_bytes(drafter)) == (5, 0)
    deeper = read("medusa-llama-3.1-8b", tmp_path, medusa_num_layers=3)
    assert [(each.k, each.n) for each in deeper.projections] == [(H, H)] * 3
    assert params(deeper) - params(drafter) == 4 * 2 * (H + 1) * H


def test_medusa_heads_that_share_the_target_s_lm_head(tmp_path: Path) -> None:
    drafter = read("medusa-vllm-llama-3.1-8b", tmp_path)
    assert params(drafter) == 5 * 2 * (H + 1) * H
    assert (drafter.own_lm_head, drafter.resident_copies, drafter.projections[0].n) == (False, 1, 5 * H)
    unbiased = read("medusa-vllm-llama-3.1-8b", tmp_path, medusa_fc_bias=None)
    assert params(drafter) - params(unbiased) == 5 * 2 * H


# --- EAGLE over latents, and trained heads ---------------------------------------------------------------------


def test_eagle_3_over_latents(tmp_path: Path) -> None:
    """The first half of what the latents are made of reads the embedding; each joined state has a norm."""
    drafter = read("eagle3-mla-kimi-k2.5", tmp_path)
    h, down = 7168, 1536 + 512 + 64
    mla = h * down + 1536 * 64 * 192 + 512 * 64 * (128 + 128) + 64 * 128 * h + 1536 + 512
    expected = 3 * h * h + h * down + mla + 3 * h * 18_432 + 3 * h + h + 3 * h + 163_840 * h
    assert params(drafter) == expected
    assert token_bytes(drafter) == (512 + 64) * 2
    assert drafter.max_positions == 262_144


def test_eagle_3_with_its_own_attention_beside_latents(tmp_path: Path) -> None:
    plain = config("eagle3-qwen3-30b-a3b", hidden_size=7168, num_attention_heads=64, vocab_size=129_280)
    drafter = loaded(plain, "deepseek-v3", tmp_path)
    assert [type(mixer) for mixer in drafter.mixers] == [Attention]
    assert drafter.projections[0].k == 3 * 7168


def test_eagle_3_without_a_vocabulary_of_its_own(tmp_path: Path) -> None:
    drafter = read("eagle3-qwen3-30b-a3b", tmp_path, draft_vocab_size=None)
    assert (drafter.vocab, drafter.own_lm_head) == (V, False)


def test_eagle_3_joins_the_states_that_it_lists(tmp_path: Path) -> None:
    for change in (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 11, 20, 30]}},
        {"num_aux_hidden_states": 4},
    ):
        assert read("eagle3-qwen3-30b-a3b", tmp_path, **change).projections[0].k == 4 * 2048
    assert len(read("eagle3-qwen3-30b-a3b", tmp_path, eagle_config={"use_aux_hidden_state": False}).projections) == 1


def test_eagle_over_a_qwen3_layer_has_norms_of_q_and_k(tmp_path: Path) -> None:
    layer = section("eagle3-speculators-qwen3-8b", "transformer_layer_config", model_type="qwen3")
    normed = read("eagle3-speculators-qwen3-8b", tmp_path, transformer_layer_config=layer)
    assert params(normed) - params(read("eagle3-speculators-qwen3-8b", tmp_path)) == 2 * 128


def test_eagle_for_mistral_large_3(tmp_path: Path) -> None:
    drafter = read("eagle-mistral-large-3", tmp_path)
    assert [type(mixer) for mixer in drafter.mixers] == [LatentAttention]
    layers = sum(block_params(block, 7168) for block in drafter.blocks)
    assert params(drafter) == 2 * 7168 * 7168 + layers + 7168
    experts = {"n_routed_experts": 128, "num_experts_per_tok": 4, "moe_intermediate_size": 4096, "n_shared_experts": 1}
    routed = read("eagle-mistral-large-3", tmp_path, first_k_dense_replace=0, **experts)
    experts_params = (128 + 1) * 3 * 7168 * 4096 + 128 * 7168 + 128
    assert params(routed) - params(drafter) == 2 * (experts_params - 3 * 7168 * 16_384)


def test_a_trained_head_apart_is_the_target_s_own(tmp_path: Path) -> None:
    own = mtp_drafter(load_model("deepseek-v3"))
    assert own is not None
    assert read("mtp-deepseek-v3", tmp_path) == own.model_copy(update={"max_positions": 163_840})


@pytest.mark.parametrize(
    ("called", "target"),
    [
        ({"architectures": ["Qwen3NextMTP"]}, "qwen3-next-80b-a3b"),
        ({"architectures": ["Qwen3_5MTP"]}, "qwen3.5-27b"),
        ({"architectures": ["MiMoMTPModel"]}, "mimo-7b"),
        ({"architectures": ["Glm4MoeForCausalLMNextN"]}, "glm-4.5"),
        ({"architectures": ["EagleDeepSeekMTPModel"]}, "deepseek-r1"),
        ({"architectures": ["NemotronHForCausalLMMTP"]}, "nemotron-3-super-120b-a12b"),
        ({"model_type": "step3p5_mtp"}, "step-3.5-flash"),
        ({"speculators_model_type": "mtp"}, "qwen3.5-35b-a3b"),
    ],
)
def test_trained_heads_by_every_name(called: dict[str, Any], target: str, tmp_path: Path) -> None:
    model = load_model(target)
    drafter = loaded({"hidden_size": model.hidden, "vocab_size": model.vocab} | called, target, tmp_path)
    assert drafter == mtp_drafter(model)


def test_a_draft_model_says_how_far_its_positions_go() -> None:
    drafter = load_drafter("llama-3.2-1b", load_model("llama-3.1-8b"))
    assert drafter is not None
    assert drafter.max_positions == 131_072


# --- what is refused -------------------------------------------------------------------------------------------

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("dflash-qwen3-8b", {"block_size": None}, "block_size: is missing"),
    ("dflash-qwen3-8b", {"hidden_size": 2048}, "hidden_size: 2048 differs from the target's 4096"),
    ("dflash-qwen3-8b", {"vocab_size": 248_320}, "vocab_size: 248320 differs"),
    ("dflash-qwen3-8b", {"draft_vocab_size": 200_000}, "draft_vocab_size: 200000 is more than"),
    ("dflash-qwen3-8b", {"kv_lora_rank": 512}, "kv_lora_rank: heads with such layers"),
    ("dflash-qwen3-8b", {"num_experts": 64}, "num_experts: heads with such layers"),
    ("dflash-qwen3-8b", {"layer_types": ["full_attention"]}, "layer_types: has 1 entries"),
    ("dflash-qwen3-8b", {"layer_types": ["sliding_attention"] * 5}, "use_sliding_window: false, but"),
    ("dflash-qwen3-8b", {"use_sliding_window": True}, "max_window_layers: is missing"),
    ("dflash-qwen3-8b", {"use_aux_hidden_state": False}, "use_aux_hidden_state"),
    ("dflash-qwen3-8b", {"dflash_config": {"target_layer_ids": [1, 60]}}, "dflash_config: target_layer_ids: 2 layers"),
    ("dflash-qwen3-8b", {"dflash_config": {"target_layer_ids": []}}, "dflash_config: target_layer_ids: 0 layers"),
    ("dflash-qwen3-8b", {"dflash_config": {"mask_token_id": 1}, "num_target_layers": 40}, "num_target_layers: 40"),
    ("dflash-qwen3-8b", {"dflash_config": {"conv_kernel_size": 2}}, "dflash_config: conv_kernel_size: is a field"),
    ("dflash-qwen3-8b", {"dflash_config": {"projector_type": "lilicorr"}}, "projector_type: 'lilicorr' is unknown"),
    ("dflash-qwen3-8b", {"draft_length_head": 1}, "draft_length_head: is a field of a drafter"),
    ("dflash-qwen3-8b", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config: the formats"),
    ("dflash-speculators-qwen3-8b", {"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids: is missing"),
    ("dflash-speculators-qwen3-8b", {"draft_vocab_size": None}, "draft_vocab_size: is missing"),
    ("dspark-qwen3-8b", {"markov_rank": None}, "markov_rank: is missing"),
    ("dspark-qwen3-8b", {"markov_head_type": None}, "markov_head_type: is missing"),
    ("dspark-qwen3-8b", {"markov_head_type": "lstm"}, "markov_head_type: 'lstm' is unknown"),
    ("dspark-qwen3-8b", {"dspark_draft_topk": 32}, "dspark_draft_topk: is a field of a drafter"),
    ("domino-qwen3-8b", {"draft_vocab_size": 32_000}, "draft_vocab_size: a Domino drafter has"),
    ("peagle-speculators-qwen3-8b", {"draft_vocab_size": None}, "draft_vocab_size: is missing"),
    ("peagle-speculators-qwen3-8b", {"block_size": 8}, "block_size: is a field of a drafter"),
    ("pard-qwen3-8b", {"vocab_size": 151_671}, "151,671 tokens"),
    ("medusa-llama-3.1-8b", {"medusa_num_layers": None}, "medusa_num_layers: is missing"),
    ("medusa-llama-3.1-8b", {"medusa_num_layers": 10_000}, "medusa_num_layers: 10000 is out of range"),
    ("medusa-vllm-llama-3.1-8b", {"num_heads": 2**24, "num_hidden_layers": 4000}, "head.json: Drafter: extra_params"),
    ("medusa-llama-3.1-8b", {"hidden_size": 5120}, "hidden_size: 5120 differs"),
    ("medusa-vllm-llama-3.1-8b", {"num_heads": None}, "medusa_num_heads: is missing"),
    ("eagle3-qwen3-30b-a3b", {"medusa_num_heads": 4}, "medusa_num_heads: is a field of a drafter"),
    ("eagle3-mla-kimi-k2.5", {"qk_rope_head_dim": None}, "qk_rope_head_dim: is missing"),
    (
        "eagle3-mla-kimi-k2.5",
        {"layer_types": ["sliding_attention"], "sliding_window": 2048},
        "sliding_window: heads that attend a window of latents",
    ),
    ("eagle-mistral-large-3", {"n_routed_experts": 128}, "first_k_dense_replace: is missing"),
    ("mtp-deepseek-v3", {"hidden_size": 4096}, "hidden_size: 4096 differs"),
    ("mtp-deepseek-v3", {"vocab_size": None}, "vocab_size: is missing"),
]


@pytest.mark.parametrize(("name", "changes", "says"), REFUSED)
def test_what_does_not_fit_is_refused_by_its_field(
    name: str, changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as refused:
        read(name, tmp_path, **changes)
    assert says in str(refused.value)


@pytest.mark.parametrize("field", ["gru_hidden_dim", "emb_dim"])
def test_domino_must_state_its_ranks(field: str, tmp_path: Path) -> None:
    inner = section("domino-qwen3-8b", "dflash_config", **{field: None})
    with pytest.raises(InputError, match=rf"^head\.json: {field}: is missing"):
        read("domino-qwen3-8b", tmp_path, dflash_config=inner)


def test_dspark_in_the_speculators_format_must_say_what_the_anchor_does(tmp_path: Path) -> None:
    """Speculators takes an absent flag for true, vLLM for false."""
    plain = config("dflash-speculators-qwen3-8b", architectures=["DSparkSpeculator"], speculators_model_type="dspark")
    stated = plain | {"markov_rank": 256, "markov_head_type": "vanilla"}
    assert loaded(stated, "qwen3-8b", tmp_path).block == 8
    del stated["sample_from_anchor"]
    with pytest.raises(InputError, match="sample_from_anchor: is missing"):
        loaded(stated, "qwen3-8b", tmp_path)


def test_a_trained_head_for_a_target_without_one(tmp_path: Path) -> None:
    plain = {"architectures": ["MTPDraftModel"], "hidden_size": 4096, "vocab_size": V}
    with pytest.raises(InputError, match="'MTPDraftModel' is a target's trained head, and qwen3-8b has none"):
        loaded(plain, "qwen3-8b", tmp_path)


def test_a_quantised_head_needs_its_formats(tmp_path: Path) -> None:
    stored = config("dflash-qwen3-8b", quantization_config={"quant_method": "fp8"})
    assert loaded(stored, "qwen3-8b", tmp_path, "fp8").formats.mlp == "fp8"


@pytest.mark.parametrize(
    "marker", ["draft_length", "mask_token_id", "block_size", "eagle_layers", "mtp_depth", "spec_k"]
)
def test_a_draft_model_has_no_field_of_a_head(marker: str, tmp_path: Path) -> None:
    plain = config("pard-qwen3-8b", pard_token=None, spd_type=None)
    assert loaded(plain, "qwen3-8b", tmp_path).kind == "model"
    with pytest.raises(InputError, match=rf"^head\.json: {marker}: is a field of a drafter that is not known"):
        loaded(plain | {marker: 7}, "qwen3-8b", tmp_path)
