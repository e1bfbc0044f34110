"""A second implementation: FLOPs and bytes of a pass, in plain Python, straight from the shipped ``config.json`` files.

Nothing here goes through our importers, specs or `work.weights`; only the JSON and what is known of each architecture
(transformers and SGLang model code; architectures.md, sections 2 to 5 and 7). Ours must agree to rounding, and within
0.1 % where a small term is told apart (`TOLERANCE`), in

- ``products``: FLOPs of every weight matrix, and ``weights``: the bytes that they are stored in,
- ``scores``: FLOPs of attention (QK, PV, and index scores of sparse attention),
- ``kv``: bytes read from and written to the cache, and ``state``: of recurrent and convolution states.

Small terms that one side leaves out or counts otherwise:

- both leave out norms, other vectors, activations and the embedding's row;
- we let a row scan and gather the new rows besides its own top-k tokens, so that latents of DeepSeek-V3.2 are read
  ``rows`` too often in ``rows x 2048``; index keys of the new rows are not scanned;
- biases of gpt-oss's experts are bf16 in its checkpoint; we store them like their matrix.

We multiply every row with all positions that the rows of a sequence see together, as tiled kernels do: ``masked`` is
the oracle's own count of the pairs that no row attends.

Both sides count a whole convolution state per verify row although engines keep one column per row, and let the rows of
a sequence choose their top-k tokens without overlap (an upper bound). FLOPs of recurrences are counted apart: see
`test_recurrence`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import wmtp_sim

CONFIGS = Path(wmtp_sim.__file__).parent / "data" / "models"
BF16, FP32 = 2.0, 4.0
MXFP4 = 0.5 + 1 / 32
#: Models with one of the small terms above (DeepSeek-V3: scales of a latent projection's last, partial block).
TOLERANCE = {"gpt-oss-120b": 1e-3, "deepseek-v3.2": 1e-3, "deepseek-v3": 1e-6}
ROUNDING = 1e-12


@cache
def config(name: str) -> dict:
    return json.loads((CONFIGS / f"{name}.json").read_text())


# --- the oracle's arithmetic -----------------------------------------------------------------------------------


@dataclass
class Bill:
    """What a pass of ``rows`` rows in each of ``batch`` sequences with ``context`` cached tokens has come to so far."""

    batch: int
    rows: int
    context: int
    kv_width: float = BF16
    fp8_blocks: bool = False
    products: float = 0.0
    weights: float = 0.0
    scores: float = 0.0
    masked: float = 0.0
    kv: float = 0.0
    state_size: float = 0.0
    scan: float = 0.0

    def _stored(self, k: int, n: int, plain: bool) -> float:
        """bf16, or fp8 with an fp32 scale for every 128 x 128 block."""
        if plain or not self.fp8_blocks:
            return k * n * BF16
        return k * n + 4 * math.ceil(k / 128) * math.ceil(n / 128)

    def matrix(self, k: int, n: int, copies: int = 1, plain: bool = False, rows: int | None = None) -> None:
        """y = x W for every row. ``plain``: not quantised."""
        self.products += 2 * (self.batch * self.rows if rows is None else rows) * k * n * copies
        self.weights += self._stored(k, n, plain) * copies

    def experts(self, total: int, top_k: int, shapes: list[tuple[int, int]], width: float = 0, biases: int = 0) -> None:
        """Routed experts: every row multiplies top_k of them; each touched one is read once."""
        tokens = self.batch * self.rows
        self.products += 2 * tokens * top_k * sum(k * n for k, n in shapes)
        one = sum(k * n * width if width else self._stored(k, n, plain=False) for k, n in shapes) + biases * BF16
        self.weights += total * (1 - (1 - top_k / total) ** tokens) * one

    def lm_head(self, hidden: int, vocab: int, rows: int | None = None) -> None:
        self.matrix(hidden, vocab, plain=True, rows=rows)

    def attend(self, flops: float, before: float, most: float = math.inf, pooled: float = 0) -> None:
        """``flops`` for every pair of a row and a position that it attends: itself and what precedes it.

        Args:
            flops: of one pair, all heads.
            before: cached positions that a tile of all rows covers, besides the rows themselves.
            most: positions that one row attends at most, itself included.
            pooled: compressed positions that every row attends in addition.
        """
        attended = sum(min(self.context + row, most) for row in range(1, self.rows + 1))
        self.scores += self.batch * flops * (attended + self.rows * pooled)
        self.masked += self.batch * flops * (self.rows * (before + self.rows) - attended)

    def softmax(self, q_heads: int, kv_heads: int, qk: int, v: int, window: int | None = None) -> None:
        """Grouped-query attention: one read of the cache per KV head serves all rows."""
        most = window or math.inf
        before = min(self.context, most - 1)
        self.attend(q_heads * 2 * (qk + v), before, most)
        self.kv += self.batch * (before + self.rows + self.rows) * kv_heads * (qk + v) * self.kv_width

    def latent(self, c: dict) -> None:
        """Absorbed MLA, dense or sparse. One latent is key and value of all heads."""
        heads, rank, rope = c["num_attention_heads"], c["kv_lora_rank"], c["qk_rope_head_dim"]
        top_k = c.get("index_topk", math.inf)
        slot = (rank + rope) * self.kv_width
        if self.kv_width == 1 and "index_topk" in c:
            slot = rank + 4 * rank / 128 + 2 * rope
        self.attend(heads * 2 * (2 * rank + rope), min(self.context, top_k), top_k)
        read = min(self.context + self.rows, self.rows * top_k)
        self.kv += self.batch * (read + self.rows) * slot
        if "index_topk" in c:
            self.index(c, self.context)

    def index(self, c: dict, keys: float, written: float = 1.0) -> None:
        """Lightning indexer: every row against every key; a key is 128 fp8 values and one fp32 scale."""
        width = c["index_head_dim"]
        self.scores += self.batch * self.rows * c["index_n_heads"] * 2 * width * keys
        self.kv += self.batch * (keys + self.rows * written) * (width + 4)

    def recurrence(self, elements: int, channels: int, taps: int, flops: int, width: float = FP32) -> None:
        """A state, and taps - 1 inputs of every convolved channel in bf16. ``flops`` per element and row."""
        self.state_size += self.batch * (elements * width + channels * (taps - 1) * BF16)
        self.scan += self.batch * self.rows * elements * flops


# --- parts that several architectures share --------------------------------------------------------------------


def swiglu(bill: Bill, hidden: int, inner: int) -> None:
    for k, n in ((hidden, inner), (hidden, inner), (inner, hidden)):
        bill.matrix(k, n)


def swiglu_experts(bill: Bill, hidden: int, inner: int, total: int, top_k: int, width: float = 0) -> None:
    bill.matrix(hidden, total, plain=True)
    bill.experts(total, top_k, [(hidden, inner), (hidden, inner), (inner, hidden)], width)


def gqa(bill: Bill, c: dict, head_dim: int, window: int | None = None, gated: bool = False) -> None:
    hidden, heads, kv_heads = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    bill.matrix(hidden, heads * head_dim * (2 if gated else 1))
    bill.matrix(hidden, kv_heads * head_dim)
    bill.matrix(hidden, kv_heads * head_dim)
    bill.matrix(heads * head_dim, hidden)
    bill.softmax(heads, kv_heads, head_dim, head_dim, window)


def mla(bill: Bill, c: dict) -> None:
    hidden, heads, rank, v = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"], c["v_head_dim"]
    nope, rope, q_rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["q_lora_rank"]
    if q_rank:
        bill.matrix(hidden, q_rank)
        bill.matrix(q_rank, heads * (nope + rope))
    else:
        bill.matrix(hidden, heads * (nope + rope))
    bill.matrix(hidden, rank + rope)
    bill.matrix(rank, heads * (nope + v))
    bill.matrix(heads * v, hidden)
    if "index_topk" in c:
        bill.matrix(q_rank, c["index_n_heads"] * c["index_head_dim"])
        bill.matrix(hidden, c["index_head_dim"], plain=True)
        bill.matrix(hidden, c["index_n_heads"], plain=True)
    bill.latent(c)


def mamba2(bill: Bill, hidden: int, heads: int, head_dim: int, groups: int, state: int, taps: int) -> None:
    inner = heads * head_dim
    convolved = inner + 2 * groups * state
    bill.matrix(hidden, inner + convolved + heads)
    bill.matrix(inner, hidden)
    bill.recurrence(inner * state, convolved, taps, flops=5)


def nextn(bill: Bill, hidden: int) -> None:
    """The projection of embedding and hidden state side by side, which no engine quantises."""
    bill.matrix(2 * hidden, hidden, plain=True)


# --- architectures: the target's layers, and the head's layer --------------------------------------------------


def llama(bill: Bill, c: dict) -> None:
    for _ in range(c["num_hidden_layers"]):
        gqa(bill, c, c["hidden_size"] // c["num_attention_heads"])
        swiglu(bill, c["hidden_size"], c["intermediate_size"])


def qwen3_moe(bill: Bill, c: dict) -> None:
    for _ in range(c["num_hidden_layers"]):
        gqa(bill, c, c["head_dim"])
        swiglu_experts(bill, c["hidden_size"], c["moe_intermediate_size"], c["num_experts"], c["num_experts_per_tok"])


def _qwen3_5_layer(bill: Bill, c: dict, kind: str) -> None:
    hidden = c["hidden_size"]
    if kind == "full_attention":
        gqa(bill, c, c["head_dim"], gated=c["attn_output_gate"])
    else:
        k_heads, v_heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
        k_dim, v_dim = c["linear_key_head_dim"], c["linear_value_head_dim"]
        keys, values = k_heads * k_dim, v_heads * v_dim
        for n in (keys, keys, values, values, v_heads, v_heads):  # q, k, v, z, b, a
            bill.matrix(hidden, n)
        bill.matrix(values, hidden)
        bill.recurrence(v_heads * k_dim * v_dim, 2 * keys + values, c["linear_conv_kernel_dim"], flops=7)
    if "num_experts" in c:
        swiglu_experts(bill, hidden, c["moe_intermediate_size"], c["num_experts"], c["num_experts_per_tok"])
        swiglu(bill, hidden, c["shared_expert_intermediate_size"])
        bill.matrix(hidden, 1)
    else:
        swiglu(bill, hidden, c["intermediate_size"])


def qwen3_5(bill: Bill, c: dict) -> None:
    for kind in c["layer_types"]:
        _qwen3_5_layer(bill, c, kind)


def qwen3_5_head(bill: Bill, c: dict) -> None:
    nextn(bill, c["hidden_size"])
    _qwen3_5_layer(bill, c, "full_attention")


def _nemotron_mixer(bill: Bill, c: dict, kind: str) -> None:
    hidden = c["hidden_size"]
    if kind == "M":
        mamba2(
            bill,
            hidden,
            c["mamba_num_heads"],
            c["mamba_head_dim"],
            c["n_groups"],
            c["ssm_state_size"],
            c["conv_kernel"],
        )
    elif kind == "*":
        gqa(bill, c, c["head_dim"])
    else:  # latent experts without a gate, and an ungated shared expert on the full width
        assert kind == "E"
        latent, inner, shared = (
            c["moe_latent_size"],
            c["moe_intermediate_size"],
            c["moe_shared_expert_intermediate_size"],
        )
        bill.matrix(hidden, c["n_routed_experts"], plain=True)
        bill.matrix(hidden, latent)
        bill.matrix(latent, hidden)
        bill.experts(c["n_routed_experts"], c["num_experts_per_tok"], [(latent, inner), (inner, latent)])
        bill.matrix(hidden, shared)
        bill.matrix(shared, hidden)


def nemotron(bill: Bill, c: dict) -> None:
    for kind in c["hybrid_override_pattern"]:
        _nemotron_mixer(bill, c, kind)


def nemotron_head(bill: Bill, c: dict) -> None:
    nextn(bill, c["hidden_size"])
    for kind in c["mtp_hybrid_override_pattern"]:
        _nemotron_mixer(bill, c, kind)


def _deepseek_channel(bill: Bill, c: dict, dense: bool) -> None:
    hidden, inner = c["hidden_size"], c["moe_intermediate_size"]
    if dense:
        swiglu(bill, hidden, c["intermediate_size"])
        return
    total = c.get("n_routed_experts") or c["num_experts"]
    swiglu_experts(bill, hidden, inner, total, c.get("num_experts_per_tok") or c["num_experts_per_token"])
    swiglu(bill, hidden, inner * (c.get("n_shared_experts") or c["num_shared_experts"]))


def deepseek(bill: Bill, c: dict) -> None:
    for layer in range(c["num_hidden_layers"]):
        mla(bill, c)
        _deepseek_channel(bill, c, layer < c["first_k_dense_replace"])


def deepseek_head(bill: Bill, c: dict) -> None:
    nextn(bill, c["hidden_size"])
    mla(bill, c)
    _deepseek_channel(bill, c, dense=False)


def glm(bill: Bill, c: dict) -> None:
    for layer in range(c["num_hidden_layers"]):
        gqa(bill, c, c["head_dim"])
        _deepseek_channel(bill, c, layer < c["first_k_dense_replace"])


def glm_head(bill: Bill, c: dict) -> None:
    nextn(bill, c["hidden_size"])
    gqa(bill, c, c["head_dim"])
    _deepseek_channel(bill, c, dense=False)


def gpt_oss(bill: Bill, c: dict) -> None:
    """Every other layer slides; experts are mxfp4 with bf16 biases on all three matrices, all else is bf16."""
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    for kind in c["layer_types"]:
        gqa(bill, c, c["head_dim"], window=c["sliding_window"] if kind == "sliding_attention" else None)
        bill.matrix(hidden, c["num_local_experts"], plain=True)
        shapes = [(hidden, inner), (hidden, inner), (inner, hidden)]
        bill.experts(c["num_local_experts"], c["num_experts_per_tok"], shapes, MXFP4, biases=2 * inner + hidden)


def ling(bill: Bill, c: dict) -> None:
    """The last of every 8 layers is MLA, the others are lightning attention: q, k, v, an output gate, dense."""
    hidden, heads, width = c["hidden_size"], c["num_attention_heads"], c["num_attention_heads"] * c["head_dim"]
    for layer in range(c["num_hidden_layers"]):
        if (layer + 1) % c["layer_group_size"] == 0:
            mla(bill, c)
        else:
            bill.matrix(hidden, width, copies=4)
            bill.matrix(width, hidden)
            bill.recurrence(heads * c["head_dim"] ** 2, 0, 1, flops=5)
        _deepseek_channel(bill, c, layer < c["first_k_dense_replace"])


def kimi_linear(bill: Bill, c: dict) -> None:
    """Layer numbers count from 1. KDA: q, k, v; decay through head_dim; beta; output gate through head_dim; o."""
    hidden, linear = c["hidden_size"], c["linear_attn_config"]
    heads, dim = linear["num_heads"], linear["head_dim"]
    for layer in range(1, c["num_hidden_layers"] + 1):
        if layer in linear["full_attn_layers"]:
            mla(bill, c)
        else:
            assert layer in linear["kda_layers"]
            bill.matrix(hidden, heads * dim, copies=3)
            bill.matrix(hidden, dim, copies=2)
            bill.matrix(dim, heads * dim, copies=2)
            bill.matrix(hidden, heads)
            bill.matrix(heads * dim, hidden)
            bill.recurrence(heads * dim * dim, 3 * heads * dim, linear["short_conv_kernel_size"], flops=7)
        _deepseek_channel(bill, c, layer <= c["first_k_dense_replace"])


def jamba(bill: Bill, c: dict) -> None:
    hidden, inner = c["hidden_size"], c["mamba_expand"] * c["hidden_size"]
    state, rank = c["mamba_d_state"], c["mamba_dt_rank"]
    for layer in range(c["num_hidden_layers"]):
        if layer % c["attn_layer_period"] == c["attn_layer_offset"]:
            gqa(bill, c, hidden // c["num_attention_heads"])
        else:
            for k, n in ((hidden, 2 * inner), (inner, rank + 2 * state), (rank, inner), (inner, hidden)):
                bill.matrix(k, n)
            bill.recurrence(inner * state, inner, c["mamba_d_conv"], flops=5)
        if layer % c["expert_layer_period"] == c["expert_layer_offset"]:
            swiglu_experts(bill, hidden, c["intermediate_size"], c["num_experts"], c["num_experts_per_tok"])
        else:
            swiglu(bill, hidden, c["intermediate_size"])


def falcon_h1(bill: Bill, c: dict) -> None:
    """Attention and Mamba-2 side by side in every layer."""
    hidden, groups, state = c["hidden_size"], c["mamba_n_groups"], c["mamba_d_state"]
    assert c["mamba_n_heads"] * c["mamba_d_head"] == c["mamba_d_ssm"]
    for _ in range(c["num_hidden_layers"]):
        gqa(bill, c, c["head_dim"])
        mamba2(bill, hidden, c["mamba_n_heads"], c["mamba_d_head"], groups, state, c["mamba_d_conv"])
        swiglu(bill, hidden, c["intermediate_size"])


def _mimo_attention(bill: Bill, c: dict, sliding: bool) -> None:
    prefix, window = ("swa_", c["sliding_window"]) if sliding else ("", None)
    heads, kv_heads = c[f"{prefix}num_attention_heads"], c[f"{prefix}num_key_value_heads"]
    qk, v = c[f"{prefix}head_dim"], c[f"{prefix}v_head_dim"]
    for n in (heads * qk, kv_heads * qk, kv_heads * v):
        bill.matrix(c["hidden_size"], n)
    bill.matrix(heads * v, c["hidden_size"], plain=True)  # o_proj has no scales in the checkpoint
    bill.softmax(heads, kv_heads, qk, v, window)


def mimo_v2(bill: Bill, c: dict) -> None:
    for sliding, sparse in zip(c["hybrid_layer_pattern"], c["moe_layer_freq"], strict=True):
        _mimo_attention(bill, c, sliding == 1)
        if sparse:
            swiglu_experts(
                bill, c["hidden_size"], c["moe_intermediate_size"], c["n_routed_experts"], c["num_experts_per_tok"]
            )
        else:
            swiglu(bill, c["hidden_size"], c["intermediate_size"])


def mimo_v2_head(bill: Bill, c: dict) -> None:
    """A sliding layer with a dense MLP."""
    nextn(bill, c["hidden_size"])
    _mimo_attention(bill, c, sliding=True)
    swiglu(bill, c["hidden_size"], c["intermediate_size"])


def _deepseek_v4_layer(bill: Bill, c: dict, ratio: int) -> None:
    """Window attention with one shared K=V head; 4: plus top-k of every 4th token's pooled key; 128: plus all pooled.

    Compressors (key and gate; twice as wide where windows overlap, at ratio 4) and head weights are not quantised.
    """
    hidden, heads, dim, groups = c["hidden_size"], c["num_attention_heads"], c["head_dim"], c["o_groups"]
    bill.matrix(hidden, c["q_lora_rank"])
    bill.matrix(c["q_lora_rank"], heads * dim)
    bill.matrix(hidden, dim)
    bill.matrix(heads * dim // groups, c["o_lora_rank"], copies=groups)
    bill.matrix(groups * c["o_lora_rank"], hidden)
    window, rows = c["sliding_window"], bill.rows
    before, pooled, written = min(bill.context, window - 1), 0, rows
    read = before + rows
    if ratio:
        keys = bill.context // ratio
        overlapping = 2 if ratio == 4 else 1
        bill.matrix(hidden, overlapping * dim, copies=2, plain=True)
        top_k = c["index_topk"] if ratio == 4 else math.inf
        pooled = min(keys, top_k)
        read += min(keys, rows * top_k)
        written += rows / ratio
        if ratio == 4:
            bill.matrix(c["q_lora_rank"], c["index_n_heads"] * c["index_head_dim"])
            bill.matrix(hidden, c["index_n_heads"], plain=True)
            bill.matrix(hidden, overlapping * c["index_head_dim"], copies=2, plain=True)
            bill.index(c, keys, written=1 / ratio)
    bill.attend(heads * 2 * (dim + dim), before, window, pooled)
    bill.kv += bill.batch * (read + written) * dim * bill.kv_width
    inner = c["moe_intermediate_size"]
    swiglu_experts(bill, hidden, inner, c["n_routed_experts"], c["num_experts_per_tok"], width=MXFP4)
    swiglu(bill, hidden, inner * c["n_shared_experts"])


def deepseek_v4(bill: Bill, c: dict) -> None:
    for ratio in c["compress_ratios"][: c["num_hidden_layers"]]:
        _deepseek_v4_layer(bill, c, ratio)


def deepseek_v4_head(bill: Bill, c: dict) -> None:
    """Embedding and hidden state have a projection each, and are added."""
    bill.matrix(c["hidden_size"], c["hidden_size"], copies=2, plain=True)
    _deepseek_v4_layer(bill, c, c["compress_ratios"][-1])


#: Catalogue name -> layers, and layers of the trained head where there is one.
ARCHITECTURES = {
    "llama-3.1-8b": (llama, None),
    "qwen3-30b-a3b": (qwen3_moe, None),
    "qwen3.5-35b-a3b": (qwen3_5, qwen3_5_head),
    "qwen3.5-27b": (qwen3_5, qwen3_5_head),
    "nemotron-3-super-120b-a12b": (nemotron, nemotron_head),
    "deepseek-v3": (deepseek, deepseek_head),
    "deepseek-v3.2": (deepseek, deepseek_head),
    "glm-4.5-air": (glm, glm_head),
    "gpt-oss-120b": (gpt_oss, None),
    "ling-2.6-flash": (ling, deepseek_head),
    "kimi-linear-48b-a3b": (kimi_linear, None),
    "jamba-1.5-mini": (jamba, None),
    "falcon-h1-34b": (falcon_h1, None),
    "mimo-v2-flash": (mimo_v2, mimo_v2_head),
    "deepseek-v4-flash": (deepseek_v4, deepseek_v4_head),
}
WITH_HEAD = [name for name, (_, head) in ARCHITECTURES.items() if head]
#: Heads of their own for the first drafted tokens: narrow passes start after them.
HEADS = {"mimo-v2-flash": 3}


def text(name: str) -> dict:
    return config(name).get("text_config", config(name))


def blank(name: str, batch: int, rows: int, context: int, kv: str) -> Bill:
    quantised = text(name).get("quantization_config", {}).get("quant_method") == "fp8"
    return Bill(batch, rows, context, kv_width={"bf16": 2.0, "fp8": 1.0}[kv], fp8_blocks=quantised)


def target_bill(name: str, batch: int, rows: int, context: int, kv: str = "bf16") -> Bill:
    bill, c = blank(name, batch, rows, context, kv), text(name)
    ARCHITECTURES[name][0](bill, c)
    bill.lm_head(c["hidden_size"], c["vocab_size"])
    return bill


def draft_bill(name: str, batch: int, rows: int, context: int, kv: str = "bf16") -> Bill:
    """One pass of the head; only one row of each sequence gets logits."""
    bill, c = blank(name, batch, rows, context, kv), text(name)
    ARCHITECTURES[name][1](bill, c)
    bill.lm_head(c["hidden_size"], c["vocab_size"], rows=batch)
    return bill


# --- our side --------------------------------------------------------------------------------------------------

PRODUCTS, SCORES = ("gemm", "moe"), ("attention", "mla", "index_scan")


def ours(step, term: str) -> dict[str, float]:
    """Sums over a term, without DeepSeek-V4's hyper-connections, whose storage we have no source for."""
    operations = [e.operation for e in step.entries if e.term == term and "hyper_connection" not in e.operation.name]

    def total(field: str, kernels=None) -> float:
        chosen = (op for op in operations if kernels is None or op.kernel in kernels)
        return float(sum(getattr(op, field) * op.repeats for op in chosen))

    return {
        "products": total("flops", PRODUCTS),
        "scores": total("flops", SCORES),
        "scan": total("flops", ("recurrent",)),
        "all": total("flops"),
        "weights": total("weights"),
        "kv": total("kv"),
        "state": total("state"),
    }


def ideal(name: str, batch: int, context: int, depth: int, kv: str = "bf16"):
    """Without a head of its own, the verify of any drafter will do."""
    drafter = "mtp" if name in WITH_HEAD else None
    if drafter is None:
        kinds = {m.kind for block in wmtp_sim.load_model(name).blocks for m in block.mixers}
        drafter = "eagle" if "attention" in kinds else name
    return wmtp_sim.estimate(
        name, "h200", context=context, depth=depth, batch=batch, engine="ideal", drafter=drafter, kv=kv
    )


def agree(name: str, found: dict[str, float], bill: Bill, moves: float) -> None:
    """``moves``: reads and writes of every state in this pass."""
    expected = {
        "products": bill.products,
        "scores": bill.scores + bill.masked,
        "weights": bill.weights,
        "kv": bill.kv,
        "state": bill.state_size * moves,
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=TOLERANCE.get(name, ROUNDING), abs=0)


# --- comparisons -----------------------------------------------------------------------------------------------

SHAPES = [(1, 4_096), (1, 1_048_576), (6, 131_072)]


@pytest.mark.parametrize(("batch", "context"), SHAPES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_base_step(name, batch, context):
    """One row: every state is read and written once."""
    step = ideal(name, batch, context, 1).base_step
    agree(name, ours(step, "verify"), target_bill(name, batch, 1, context), moves=2)


@pytest.mark.parametrize("rows", [2, 4, 8])
@pytest.mark.parametrize(("batch", "context"), SHAPES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_verify(name, batch, context, rows):
    """One read of every state and a snapshot for each row; nothing is copied (ideal engine, as vLLM)."""
    step = ideal(name, batch, context, rows - 1).steps["native"]
    bill = target_bill(name, batch, rows, context)
    agree(name, ours(step, "verify"), bill, moves=1 + rows)
    assert ours(step, "sample")["state"] == 0


@pytest.mark.parametrize("kv", ["bf16", "fp8"])
@pytest.mark.parametrize(("batch", "context"), SHAPES)
@pytest.mark.parametrize("name", WITH_HEAD)
def test_narrow_draft_pass(name, batch, context, kv):
    """The first narrow pass, native over the context and windowed over 4032 + 64 tokens."""
    depth = HEADS.get(name, 1) + 1
    steps = ideal(name, batch, context, depth, kv).steps
    for policy, attended in (("native", context), ("flag", 4096), ("ring", 4096)):
        agree(name, ours(steps[policy], "draft"), draft_bill(name, batch, 1, attended, kv), moves=0)


@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize(("batch", "context"), SHAPES)
@pytest.mark.parametrize("name", WITH_HEAD)
def test_wide_draft_pass(name, batch, context, rows):
    """The head over the rows just verified, once per head where there are several. Only the ring windows it."""
    steps = ideal(name, batch, context, rows - 1).steps
    passes = min(HEADS.get(name, 1), rows - 1)
    for policy, attended in (("native", context), ("flag", context), ("ring", 4096)):
        bill = draft_bill(name, batch, rows, attended)
        found = {key: value / passes for key, value in ours(steps[policy], "extend").items()}
        agree(name, found, bill, moves=0)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "deepseek-v3.2", "deepseek-v4-flash", "mimo-v2-flash"])
def test_fp8_cache(name):
    """DeepSeek-V3.2 keeps scales and a bf16 rotary part beside an fp8 latent; index keys are fp8 in any case."""
    step = ideal(name, 2, 131_072, 3, kv="fp8").steps["native"]
    agree(name, ours(step, "verify"), target_bill(name, 2, 4, 131_072, kv="fp8"), moves=5)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_recurrence(name):
    """We charge 8 FLOPs per state element and row; 5 (decay, add an outer product, read out) to 7 (delta rule) are due.

    Either way they are below 2 % of a pass, and two orders of magnitude below what would bind instead of the bytes.
    """
    found, bill = ours(ideal(name, 1, 32_768, 1).base_step, "verify"), target_bill(name, 1, 1, 32_768)
    assert bill.scan <= found["scan"] <= 1.6 * bill.scan
    assert found["scan"] <= 0.02 * found["all"]
    assert found["all"] == pytest.approx(found["products"] + found["scores"] + found["scan"])
