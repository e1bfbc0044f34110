"""Commands and files of arguments that people paste: what they deploy, and that hostile ones are refused in a line."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmtp_sim.catalog.commands import LONGEST_COMMAND, read_command
from wmtp_sim.catalog.launch import launch_line
from wmtp_sim.errors import InputError
from wmtp_sim.spec.parallel import Layout

SGLANG = (
    "python3 -m sglang.launch_server --model-path Qwen/Qwen3.5-35B-A3B --tp 8 --ep 8 --context-length 1Mi "
    "--mem-fraction-static 0.85 --max-running-requests 16 --kv-cache-dtype fp8_e4m3 --speculative-algorithm NEXTN "
    "--speculative-num-steps 6 --speculative-eagle-topk 1 --speculative-num-draft-tokens 7"
)
VLLM = (
    "vllm serve Qwen/Qwen3.5-35B-A3B -tp 4 -dp 2 --enable-expert-parallel --max-model-len 131072 "
    """--speculative-config '{"method": "qwen3_5_mtp", "num_speculative_tokens": 3, "kv_cache_dtype": "fp8"}'"""
)


def test_sglang() -> None:
    read = read_command(SGLANG).deployment
    assert (read.engine, read.tp, read.ep, read.dp) == ("sglang@0.5.23", 8, 8, 1)
    assert (read.depth, read.rows, read.topk, read.method) == (6, 7, 1, "mtp")
    assert (read.context, read.kv, read.memory_fraction, read.max_running) == (2**20, "fp8", 0.85, 16)
    assert (read.window, read.sink, read.draft_attention_backend) == (None, None, None)


def test_vllm() -> None:
    read = read_command(VLLM, "vllm@0.26").deployment
    assert (read.engine, read.tp, read.dp, read.ep) == ("vllm@0.26", 4, 2, 8)
    assert (read.depth, read.rows, read.method, read.draft_kv) == (3, 4, "mtp", "fp8")


@pytest.mark.parametrize(
    ("more", "depth", "method"),
    [
        ("", 0, "mtp"),
        ("--speculative-num-steps 5", 0, "mtp"),  # no algorithm: SGLang drafts nothing
        ("--speculative-algorithm EAGLE", 3, "mtp"),
        ("--speculative-algorithm nextn --speculative-num-steps 2", 2, "mtp"),
        ("--speculative-algorithm EAGLE3 --speculative-draft-model-path d", 3, "eagle"),
        ("--speculative-algorithm STANDALONE --speculative-num-steps 4", 4, "model"),
        ("--speculative-algorithm DFLASH --speculative-draft-model-path d", 0, "DFLASH"),
        ("--speculative-algorithm DFLASH --speculative-num-steps 5", 0, "DFLASH"),  # SGLang makes it one step
        ("--speculative-algorithm dspark", 0, "dspark"),
        ("--speculative-algorithm NGRAM --speculative-num-draft-tokens 8", 0, "NGRAM"),
        ("--speculative-algorithm OF_A_PLUGIN", 0, "OF_A_PLUGIN"),
        ("--speculative-algorithm NONE --speculative-num-steps 3", 0, "mtp"),
    ],
)
def test_who_drafts_on_sglang(more: str, depth: int, method: str) -> None:
    read = read_command(f"sglang serve m {more}").deployment
    assert (read.depth, read.method) == (depth, method)


@pytest.mark.parametrize(
    ("more", "depth", "method"),
    [
        ("--spec-method mtp --spec-tokens 2", 2, "mtp"),
        ("--speculative-config.num_speculative_tokens=2", 2, "mtp"),
        ("--spec-model small --spec-tokens 4", 4, "model"),
        ("""-sc '{"method": "ngram", "num_speculative_tokens": 4}'""", 4, "ngram"),
        ("--spec-method suffix", 0, "suffix"),
        ("--spec-method mtp", 0, "mtp"),
        ("--spec-method eagle3 --spec-model head --spec-tokens 3", 3, "eagle"),
        # the drafter's name decides, whatever chain is stated
        ("--spec-model Qwen3-8B-DFlash-b16 --spec-tokens 15", 15, "dflash"),
        ("--spec-method mtp --spec-model dspark_qwen3_8b --spec-tokens 7", 7, "dspark"),
        ("--spec-model Qwen3-8B_eagle3 --spec-tokens 3", 3, "eagle"),
        ("--spec-model EAGLE-LLaMA3 --spec-tokens 3", 3, "EAGLE-1"),
        ("--spec-model [ngram] --spec-tokens 3", 3, "ngram"),
        (
            """-sc '{"method": "eagle3", "model": "head", "num_speculative_tokens": 7, "parallel_drafting": true}'""",
            7,
            "--speculative-config.parallel_drafting",
        ),
    ],
)
def test_who_drafts_on_vllm(more: str, depth: int, method: str) -> None:
    read = read_command(f"vllm serve m {more}").deployment
    assert (read.depth, read.method) == (depth, method)


#: A command, and tp, dp, whether groups share experts, ranks with whole experts, who sends rows, running sequences.
RANKS: list[tuple[str, tuple[int, int, bool, int, str | None, int | None]]] = [
    ("sglang serve m --tp 8 --max-running-requests 64", (8, 1, False, 1, None, 64)),
    ("sglang serve m --tp 4 --dp 2 --max-running-requests 64", (4, 2, False, 1, None, 128)),
    ("sglang serve m --tp 8 --dp 8 --enable-dp-attention --max-running-requests 64", (1, 8, True, 1, None, 64)),
    ("sglang serve m --tp 8 --attn-dp-size 2", (4, 2, True, 1, None, None)),
    ("sglang serve m --tp 8 --attn-dp-size 8 --ep 8", (1, 8, True, 8, None, None)),
    ("sglang serve m --tp 8 --moe-a2a-backend deepep", (8, 1, False, 8, "deepep", None)),
    ("sglang serve m --tp 8 --attn-dp-size 4 --moe-a2a-backend deepep", (2, 4, True, 8, "deepep", None)),
    ("sglang serve m --tp 8 --moe-a2a-backend none --ep 2", (8, 1, False, 2, None, None)),
    ("vllm serve m -tp 2 -dp 4 --max-num-seqs 16", (2, 4, True, 1, None, 64)),
    ("vllm serve m -dp 8 --enable-expert-parallel", (1, 8, True, 8, None, None)),
    (
        "vllm serve m -dp 8 --enable-expert-parallel --all2all-backend deepep_low_latency",
        (1, 8, True, 8, "deepep", None),
    ),
    ("vllm serve m -tp 8 --enable-expert-parallel --all2all-backend deepep_low_latency", (8, 1, False, 8, None, None)),
    ("vllm serve m -dp 8 --all2all-backend deepep_low_latency", (1, 8, True, 1, None, None)),
]


@pytest.mark.parametrize(("command", "says"), RANKS)
def test_how_gpus_share_a_model(command: str, says: tuple[int, int, bool, int, str | None, int | None]) -> None:
    """SGLang counts the ranks and sequences of all groups that share experts, vLLM those of one group."""
    read = read_command(command).deployment
    assert (read.tp, read.dp, read.dp_attention, read.ep, read.all_to_all, read.max_running) == says


@pytest.mark.parametrize("command", [command for command, _ in RANKS])
def test_a_line_written_anew_shares_a_model_alike(command: str) -> None:
    read = read_command(command)
    written = launch_line(read.deployment.model_copy(update={"model": "m"}), read.engine)
    assert read_command(written.text).deployment == read.deployment


#: A command, its pipeline stages, its hosts, and those whose GPUs work on one step where 8 stand in each.
HOSTS = [
    ("sglang serve m --tp 8", (1, 1, 1)),
    ("sglang serve m --tp 16", (1, 1, 2)),
    ("sglang serve m --tp 8 --nnodes 2 --node-rank 0 --dist-init-addr head:5000", (1, 2, 2)),
    ("sglang serve m --tp-size 16 --nnodes 2", (1, 2, 2)),
    ("sglang serve m --tp 16 --nnodes=4", (1, 4, 4)),
    ("sglang serve m --tp 8 --pp-size 2", (2, 1, 2)),
    ("sglang serve m --tp 8 --pp 1", (1, 1, 1)),
    ("sglang serve m --tp 8 --dp 2", (1, 1, 1)),  # two replicas, each within a host
    ("sglang serve m --tp 16 --dp 16 --enable-dp-attention", (1, 1, 2)),
    ("vllm serve m -tp 8 --nnodes 2", (1, 2, 2)),
    ("vllm serve m -tp 8 -n 2 -r 1", (1, 2, 2)),
    ("vllm serve m -tp 16 --distributed-executor-backend ray", (1, 1, 2)),
    ("vllm serve m -tp 8 --distributed-executor-backend ray", (1, 1, 1)),
    ("vllm serve m -tp 4 -pp 4", (4, 1, 2)),
    ("vllm serve m -dp 16 --data-parallel-size-local 8", (1, 2, 2)),
    ("vllm serve m -dp 4 -tp 2 --data-parallel-size-local 2", (1, 2, 2)),
    ("vllm serve m -dp 8 --data-parallel-size-local 8", (1, 1, 1)),
]


@pytest.mark.parametrize(("command", "says"), HOSTS)
def test_hosts_of_a_command(command: str, says: tuple[int, int, int]) -> None:
    read = read_command(command).deployment
    layout = Layout(tp=read.tp, dp=read.dp, dp_attention=read.dp_attention, pp=read.pp, hosts=read.hosts)
    assert (read.pp, read.hosts, layout.hosts_of_a_step(8)) == says


@pytest.mark.parametrize("flag", ["--nnodes", "--pp-size"])
def test_hosts_in_a_variable_are_refused(flag: str) -> None:
    with pytest.raises(InputError, match=rf"{flag} is \$N, which is not expanded here"):
        read_command(f"sglang serve m --tp 8 {flag} $N --node-rank $RANK")


def test_ranks_that_groups_cannot_share() -> None:
    with pytest.raises(InputError, match="--from-command: 8 groups cannot share 4 ranks"):
        read_command("sglang serve m --tp 4 --attn-dp-size 8")


@pytest.mark.parametrize("dp", ["--dp 2", "--dp 2 --enable-dp-attention", "--dp 4 --enable-dp-attention"])
def test_replicas_of_groups_are_refused(dp: str) -> None:
    """SGLang takes --dp-size for --attn-dp-size only where the latter is not stated; else it refuses the two."""
    with pytest.raises(InputError, match=r"--attn-dp-size 4, which sglang refuses together"):
        read_command(f"sglang serve m --tp 8 {dp} --attn-dp-size 4")


def test_another_way_of_sending_rows_is_said() -> None:
    read = read_command("sglang serve m --tp 8 --moe-a2a-backend mooncake")
    assert read.unpriced == {"all_to_all": "--moe-a2a-backend 'mooncake' (deepep is priced)"}
    assert read.line.unpriced == list(read.unpriced.values())
    assert read.deployment.all_to_all is None


def test_a_heads_own_ranks_are_ignored_where_the_engine_ignores_them() -> None:
    """vLLM 0.33 loads MTP heads over the target's ranks; a draft model may take one."""
    spec = '--speculative-config \'{"method": "%s", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1}\''
    assert read_command("vllm serve m -tp 8 " + spec % "mtp").deployment.draft_tp is None
    assert read_command("vllm serve m -tp 8 " + spec % "draft_model").deployment.draft_tp == 1


def test_words_around_the_command_are_kept_aside() -> None:
    read = read_command(f"CUDA_VISIBLE_DEVICES=0 docker run --rm image {VLLM} --port 8000 2>&1 | tee log")
    assert read.aside == ("CUDA_VISIBLE_DEVICES=0", "docker", "run", "--rm", "image", "2>&1", "|", "tee", "log")
    assert read.line.unknown == []


def test_lines_that_go_on_and_comments() -> None:
    text = "/usr/bin/vllm serve m \\\n  -tp 2 \\\r\n  --port 1  # a comment\n"
    assert read_command(text).deployment.tp == 2


def test_unknown_flags_are_reported_and_the_rest_is_read() -> None:
    read = read_command(f"{SGLANG} --brand-new 7 --speculative-dflash-draft-window-size 512")
    assert read.line.unknown == ["--brand-new 7", "--speculative-dflash-draft-window-size 512"]
    assert read.deployment.depth == 6


def test_a_cache_format_that_is_not_priced_is_said() -> None:
    read = read_command("sglang serve --model m --kv-cache-dtype nvfp4")
    assert read.deployment.kv is None
    assert read.unpriced == {"kv": "--kv-cache-dtype 'nvfp4' (bf16 and fp8 are priced)"}
    assert (read.line.refused, read.line.unpriced) == ([], list(read.unpriced.values()))


# --- files ---------------------------------------------------------------------------------------------------------

YAML = """\
# a config file of vllm
model: Qwen/Qwen3.5-35B-A3B
tensor-parallel-size: 8
enable_expert_parallel: true
enforce-eager: false
served-model-name:
  - one
  - "two words"
speculative-config:
  method: mtp
  num_speculative_tokens: 3   # depth
"""


def test_yaml_and_json_are_the_same_deployment(tmp_path: Path) -> None:
    yaml, plain = tmp_path / "args.yaml", tmp_path / "args.json"
    yaml.write_text(YAML)
    plain.write_text(
        json.dumps(
            {
                "model": "Qwen/Qwen3.5-35B-A3B",
                "tensor_parallel_size": 8,
                "enable-expert-parallel": True,
                "enforce-eager": False,
                "served_model_name": ["one", "two words"],
                "speculative-config": {"method": "mtp", "num_speculative_tokens": 3},
            }
        )
    )
    first, second = read_command(str(yaml), "vllm"), read_command(str(plain), "vllm")
    assert first.deployment == second.deployment
    assert first.line == second.line
    assert (first.deployment.depth, first.deployment.ep) == (3, 8)
    assert first.line.value("--served-model-name") == ["one", "two words"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model: &a b", "line 1: '&a b' is YAML that is not read here"),
        ("model: !!python/object x", "is YAML that is not read here"),
        ("model: m\nmodel: n", "line 2: 'model' is stated twice"),
        ("just words", "line 1: 'just words' is not KEY: VALUE"),
        ("  model: m", "is not KEY: VALUE"),
        ("a:\n  b: 1\n    c: 2", "line 3: is indented unlike"),
        ("model: [1, 2", "neither JSON nor plain text"),
        ("model: [[1]]", "holds lists in a list"),
        ("tp: 2", "names no model"),
    ],
)
def test_broken_yaml(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "args.yml"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        read_command(str(path), "sglang")
    assert says in str(refused.value)


def test_a_file_needs_an_engine(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--engine: is needed"):
        read_command(str(tmp_path / "args.json"))
    with pytest.raises(InputError, match="cannot be read"):
        read_command(str(tmp_path / "args.json"), "vllm")


# --- hostile text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "starts neither"),
        ("python train.py", "starts neither"),
        ("vllm serve 'm", "cannot be split into words (no closing quotation)"),
        ("vllm serve m \\", "cannot be split into words (no escaped character)"),
        ("vllm serve m \x1b[31m", "holds control characters"),
        ("vllm serve m\0", "holds control characters"),
        ("vllm serve " + "a" * 2**20, "has 1,048,587 characters; at most 65,536 are read"),
        ("vllm serve m" + " x" * 5000, "has 5,003 words; at most 4,096 are read"),
        ("vllm serve", "names no model"),
        ("vllm serve ''", "at least 1 character"),
        ("vllm serve m -tp 0", "tp"),
        ("sglang serve --model m --mem-fraction-static 7", "memory_fraction"),
        ("sglang serve --model m --speculative-algorithm NEXTN --speculative-num-steps 100000", "depth"),
        ("vllm serve m --spec-tokens -3", "depth"),
    ],
)
def test_hostile_commands(text: str, says: str) -> None:
    with pytest.raises(InputError) as refused:
        read_command(text)
    assert says in str(refused.value)


def test_another_engines_command() -> None:
    with pytest.raises(InputError, match="the command starts vllm; give --engine vllm"):
        read_command("vllm serve m", "sglang")


def test_nothing_is_expanded() -> None:
    read = read_command("vllm serve $(touch gone) --host `id` --port $PORT --made-up $MORE")
    assert read.deployment.model == "$(touch"
    assert read.line.value("--host") == "`id`"
    assert read.line.unknown == ["gone)", "--made-up $MORE"]


@pytest.mark.parametrize("word", ["$ARGS", "${ARGS}", '"${ARGS[@]}"', '"$@"', "$*", "$1", "$(cat", "`id`"])
@pytest.mark.parametrize("start", ["vllm serve m ", "vllm serve m --enforce-eager ", "sglang serve --model m "])
def test_flags_that_hide_in_a_variable(start: str, word: str) -> None:
    """They may say anything: no layout is taken for the one that is served."""
    with pytest.raises(InputError, match="is not expanded here; write the flags that it stands for"):
        read_command(f"{start}{word} --port 8000")


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    for prefix in ("vllm serve m ", "python -m sglang.launch_server --model m ", ""):
        with contextlib.suppress(InputError):
            read_command(prefix + text)


@given(
    st.lists(st.sampled_from(["--tp", "--speculative-config", "-sc", "{", "a.b", "-1", "=", "--", "-", "--=x", "."]))
)
def test_any_words_are_read_or_refused(words: list[str]) -> None:
    assert len(words) <= LONGEST_COMMAND
    for start in ("vllm serve m ", "sglang serve --model m "):
        with contextlib.suppress(InputError):
            read_command(start + " ".join(words))
