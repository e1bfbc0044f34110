"""Launch lines: a deployment in each release's flags, accepted by our strict reader and by the engines' own."""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from wmtp_sim.catalog.commands import read_command
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.flags import check_line, grammar_names, load_grammar, read_line, vocabulary
from wmtp_sim.catalog.launch import launch_line
from wmtp_sim.catalog.systems import windows_drafts
from wmtp_sim.errors import InputError
from wmtp_sim.spec.deployment import ServerDeployment
from wmtp_sim.spec.engine import GRADES

RELEASES = ("sglang@0.5.23", "sglang@26.06", "vllm@0.33", "vllm@0.26")
MODEL = "Qwen/Qwen3.5-35B-A3B"


def deployments(engine: str) -> Iterator[ServerDeployment]:
    """Each choice of depth, window, cache, weights and ranks that the release can express."""
    windowed = (None, 4032) if windows_drafts(load_engine(engine)) else (None,)
    for depth, window, kv, quantization, ranks in itertools.product(
        (0, 1, 6), windowed, (None, "bf16", "fp8"), (None, "fp8"), (1, 8)
    ):
        if window and not depth:
            continue
        yield ServerDeployment(
            model=MODEL,
            engine=engine,
            tp=ranks,
            ep=ranks,
            context=2**20,
            depth=depth,
            window=window,
            sink=64 if window else None,
            kv=kv,
            quantization=quantization,
            memory_fraction=0.85,
            max_running=16,
        )


@pytest.mark.parametrize("engine", RELEASES)
def test_a_line_reads_back_as_what_it_was_written_from(engine: str) -> None:
    for stated in deployments(engine):
        command = read_command(launch_line(stated).text, engine)
        assert (command.line.unknown, command.line.refused, command.aside[1:]) == ([], [], ())
        read = command.deployment
        for name in ServerDeployment.model_fields:
            if name in ("verify_rows", "draft_attention_backend"):  # written where they follow
                continue
            assert getattr(read, name) == getattr(stated, name), name
        assert read.rows == stated.depth + 1


def test_the_papers_geometry_on_sglang() -> None:
    """depth, num_steps and num_draft_tokens: 6 drafted, 7 verified; the default backend would ignore the window."""
    stated = ServerDeployment(model="m", engine="sglang", depth=6, window=4032, sink=64)
    assert launch_line(stated).text == (
        "python -m sglang.launch_server --model-path m --speculative-algorithm NEXTN --speculative-num-steps 6"
        " --speculative-eagle-topk 1 --speculative-num-draft-tokens 7 --speculative-draft-attention-backend flashinfer"
        " --speculative-draft-window-size 4032 --speculative-draft-sink-size 64"
    )


def test_vllm_states_one_number() -> None:
    words = launch_line(ServerDeployment(model="m", engine="vllm", depth=3)).words
    assert words[:3] == ("vllm", "serve", "m")
    assert json.loads(words[words.index("--speculative-config") + 1]) == {"method": "mtp", "num_speculative_tokens": 3}


@pytest.mark.parametrize("engine", RELEASES)
def test_depth_0_is_off(engine: str) -> None:
    assert "spec" not in launch_line(ServerDeployment(model="m", engine=engine)).text


def test_a_stated_draft_backend_stands() -> None:
    stated = ServerDeployment(model="m", depth=6, window=4032, draft_attention_backend="triton")
    assert "--speculative-draft-attention-backend triton" in launch_line(stated).text


def test_names_are_quoted_for_a_shell() -> None:
    name = "a b'; rm -rf $HOME"
    line = launch_line(ServerDeployment(model=name, engine="vllm"))
    assert shlex.split(line.text)[2] == name
    assert read_command(line.text).deployment.model == name


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"engine": "vllm", "depth": 3, "window": 4032}, "no flag of vllm 0.33 windows an MTP head"),
        ({"engine": "sglang@26.06", "depth": 3, "window": 4032}, "no flag of sglang 26.06 windows an MTP head"),
        ({"engine": "sglang", "depth": 0, "window": 4032}, "4032 without drafts"),
        ({"engine": "sglang", "depth": 3, "sink": 64}, "64 without a window"),
        ({"engine": "vllm", "depth": 3, "topk": 4}, "drafts chains only"),
        ({"engine": "vllm", "kv_splits": 64}, "'64' has no flag in vllm 0.33"),
        ({"engine": "sglang@26.06", "depth": 3, "draft_kv": "fp8"}, "has no flag in sglang 26.06"),
        ({"engine": "sglang", "attention_backend": "fa9"}, "'fa9' is none of "),
        ({"engine": "sglang", "quantization": "fp3"}, "'fp3' is none of "),
        ({"engine": "sglang", "depth": 3, "method": "other"}, "'other' has no word in sglang"),
        ({"engine": "trtllm"}, "no flags are known of 'trtllm'"),
        ({"engine": "vllm@pre-split"}, "no flags are known of vllm pre-split"),
    ],
)
def test_what_a_release_cannot_be_told_is_refused(stated: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as refused:
        launch_line(ServerDeployment(model="m", **stated))
    assert says in str(refused.value)
    assert refused.value.field.startswith(("--", "sglang", "vllm"))


# --- the grammar files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", grammar_names())
def test_grammars_name_their_sources(engine: str) -> None:
    grammar = load_grammar(engine)
    for release in grammar.releases:
        assert grammar.sources[release].split(":")[0] in GRADES
    newest = load_engine(engine)
    assert set(newest.window_backends) <= set(newest.attention_backends)
    words = {name.lower() for name in grammar.flags["--attention-backend"][-1].choices}
    assert not words or {name.lower() for name in newest.attention_backends} <= words


@pytest.mark.parametrize("reference", RELEASES)
def test_every_name_is_one_flags(reference: str) -> None:
    known = vocabulary(reference)
    assert len(known.flags) > 250
    for name, flag in known.flags.items():
        assert known.resolve(name) == name
        assert not (flag.kind == "switch" and (flag.choices or flag.many))
    names = [n for name, flag in known.flags.items() for n in (name, *flag.also, *flag.off)]
    assert len(names) == len(set(names))


def test_flags_come_and_go_with_releases() -> None:
    assert "--speculative-draft-sink-size" in vocabulary("sglang@0.5.23").flags
    assert "--speculative-draft-sink-size" not in vocabulary("sglang@26.06").flags
    assert vocabulary("sglang@26.06").other_releases("--speculative-draft-sink-size") == ["0.5.23"]
    assert "draft_lm_head_quantization" in vocabulary("vllm@0.33").keys("--speculative-config")
    assert "draft_lm_head_quantization" not in vocabulary("vllm@0.26").keys("--speculative-config")


# --- the reader ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "line", "name", "value"),
    [
        ("sglang", "--tp 4", "--tp-size", 4),
        ("sglang", "--tensor-parallel-size=4", "--tp-size", 4),
        ("sglang", "--tp 2 --tp 4", "--tp-size", 4),
        ("sglang", "--context-length 128Ki", "--context-length", 131_072),
        ("sglang", "--context-length 128k", "--context-length", 128_000),
        ("sglang", "--context-length 1M", "--context-length", 1_000_000),
        ("sglang", "--context-length 1Mi", "--context-length", 1_048_576),
        ("sglang", "--context-length 0.5M", "--context-length", 500_000),
        ("vllm", "--max-model-len 1M", "--max-model-len", 1_048_576),
        ("sglang", "--mamba-max-states-per-path -1", "--mamba-max-states-per-path", -1),
        ("vllm", "-tp 4", "--tensor-parallel-size", 4),
        ("vllm", "--tensor_parallel_size 4", "--tensor-parallel-size", 4),
        ("vllm", "-O3", "--optimization-level", "3"),
        ("vllm", "--enforce-eager", "--enforce-eager", True),
        ("vllm", "--no-enforce-eager", "--enforce-eager", False),
        ("vllm", "--max-model-len auto", "--max-model-len", -1),
        ("vllm", "--speculative-config.method mtp", "--speculative-config.method", "mtp"),
        ("vllm", "--speculative-config.num_speculative_tokens 3", "--speculative-config.num_speculative_tokens", 3),
        ("vllm", '-sc \'{"method": "mtp"}\'', "--speculative-config.method", "mtp"),
        ("vllm", "--served-model-name a b", "--served-model-name", ["a", "b"]),
    ],
)
def test_flags_are_read_as_the_engines_read_them(engine: str, line: str, name: str, value: Any) -> None:
    read = check_line(vocabulary(engine), shlex.split(line))
    assert read.value(name) == value
    assert type(read.value(name)) is type(value)


@pytest.mark.parametrize(
    ("engine", "line", "says"),
    [
        ("sglang", "--tp four", "'four' is not a whole number"),
        ("sglang", "--tp", "lacks its value"),
        ("sglang", "--tp --dp 2", "--tp-size lacks its value"),
        ("sglang", "--context-length 128K", "is not a whole number"),
        ("sglang", "--context-length 1.5Ki", "whole numbers alone stand before Ki"),
        ("sglang", "--spec 3", "--spec may mean "),
        ("sglang", "--kv-cache-dtype int3", "is none of auto, "),
        ("sglang", "--mem-fraction-static nan", "is not a finite number"),
        ("sglang", "--trust-remote-code=yes", "takes no value"),
        ("vllm", "--speculative-config {", "is not JSON"),
        ("vllm", "--speculative-config.window 3", "window is no key of vllm 0.33"),
        ("vllm", "--speculative-config.num_speculative_tokens three", "is not a whole number"),
        ("vllm", "--speculative-config.num_speculative_tokens true", "is not a whole number"),
        ("vllm", "--speculative-config " + "[" * 5000, "is not JSON"),
        ("vllm", "--max-model-len 1.5M", "whole numbers alone"),
        ("vllm", "--max-model-len " + "9" * 100, "is not a whole number"),
    ],
)
def test_what_the_engines_refuse_is_noted(engine: str, line: str, says: str) -> None:
    read = read_line(vocabulary(engine), shlex.split(line))
    assert read.unknown == []
    assert any(says in problem for problem in read.refused)
    with pytest.raises(InputError):
        check_line(vocabulary(engine), shlex.split(line))


def test_unknown_flags_are_kept_with_their_values() -> None:
    read = read_line(vocabulary("sglang"), ["--new-flag", "1", "2", "--tp", "2", "--newer=3", "--newest", "stray"])
    assert read.unknown == ["--new-flag 1 2", "--newer=3", "--newest stray"]
    assert read.values == {"--tp-size": 2}


# --- the engines' own parsers, where they are installed --------------------------------------------------------------


def test_sglang_itself_takes_the_lines() -> None:
    server_args = pytest.importorskip("sglang.srt.server_args")
    version = pytest.importorskip("sglang").__version__
    if version != "0.5.23":
        pytest.skip(f"sglang {version}")
    parser = argparse.ArgumentParser()
    server_args.ServerArgs.add_cli_args(parser)
    for stated in deployments("sglang@0.5.23"):
        parsed = parser.parse_args(list(launch_line(stated).words[3:]))
        assert parsed.speculative_num_steps == (stated.depth or None)
        assert parsed.speculative_draft_window_size == stated.window


def test_vllm_itself_takes_the_lines() -> None:
    utils = pytest.importorskip("vllm.utils.argparse_utils")
    version = ".".join(pytest.importorskip("vllm").__version__.split(".")[:2])
    if version not in load_grammar("vllm").releases:
        pytest.skip(f"vllm {version}")
    arguments = pytest.importorskip(
        "vllm.entrypoints.common.cli_args" if version == "0.33" else "vllm.entrypoints.openai.cli_args"
    )
    parser = arguments.make_arg_parser(utils.FlexibleArgumentParser())
    for stated in deployments(f"vllm@{version}"):
        parsed = parser.parse_args(list(launch_line(stated).words[2:]))
        assert (parsed.speculative_config or {}).get("num_speculative_tokens", 0) == stated.depth
