"""`wmtp preflight`: exit codes that a pipeline can test, one JSON document, and refusals in a line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wmtp_sim.catalog.commands import read_command
from wmtp_sim.catalog.models import catalog_folder

Run = Callable[..., Any]
GOOD = (
    "python -m sglang.launch_server --model-path Qwen/Qwen3.5-35B-A3B --context-length 131072 "
    "--speculative-algorithm NEXTN --speculative-num-steps 6 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 7 --speculative-draft-window-size 4032 --speculative-draft-sink-size 64 "
    "--speculative-draft-attention-backend flashinfer"
)
INERT = GOOD.replace(" --speculative-draft-attention-backend flashinfer", "")


def test_errors_are_exit_code_1(run: Run) -> None:
    ran = run("preflight", "--from-command", INERT, "--gpu", "h200")
    assert (ran.status, ran.err) == (1, "")
    assert "error   the draft runs on fa3 (the default on Hopper)" in ran.out
    assert "[window-inert-backend]" in ran.out
    assert "-> --speculative-draft-attention-backend flashinfer" in ran.out
    ran = run("preflight", "--from-command", GOOD, "--gpu", "h200")
    assert (ran.status, ran.err) == (0, "")
    assert "error " not in ran.out
    assert "0 errors, " in ran.out


def test_the_document(run: Run) -> None:
    ran = run("preflight", "--from-command", INERT + " --new 1", "--gpu", "h200", "--json")
    assert (ran.status, len(ran.out.splitlines())) == (1, 1)
    document = ran.document
    assert document["schema"] == "wmtp-preflight/1"
    assert (document["passed"], document["engine"]) == (False, "sglang@0.5.23")
    assert (document["model"], document["context"]) == ("qwen3.5-35b-a3b", 131_072)
    stated = document["deployment"]
    assert (stated["depth"], stated["verify_rows"], stated["window"], stated["sink"]) == (6, 7, 4032, 64)
    errors = [trap["id"] for trap in document["traps"] if trap["severity"] == "error"]
    assert errors == ["unknown-flag", "window-inert-backend"]
    assert all(trap.keys() == {"id", "severity", "reason", "fix"} for trap in document["traps"])
    assert document["memory"]["native"]["fits"]
    assert document["memory"]["base"]["max_context"] > document["memory"]["native"]["max_context"] > 131_072
    assert document["launch"] is None


def test_options_make_a_launch_line(run: Run) -> None:
    ran = run("preflight", "qwen3.5-27b", "--gpu", "h200", "--engine", "vllm@0.26", "--context", "128K", "--json")
    assert ran.status == 0
    line = ran.document["launch"]
    read = read_command(line, "vllm@0.26").deployment
    assert (read.depth, read.context, read.model) == (3, 131_072, "qwen3.5-27b")


def test_weights_that_are_converted_on_loading(run: Run) -> None:
    words = ("preflight", "qwen3.5-27b", "--gpu", "h200", "--context", "4K", "--json", "--weights")
    assert "--quantization fp8" in run(*words, "fp8").document["launch"]
    assert "--quantization" not in run(*words, "int4").document["launch"]


def test_a_line_mends_what_options_left_open(run: Run) -> None:
    ran = run("preflight", "qwen3.5-27b", "--gpu", "h200", "--context", "128K", "--depth", "6", "--window", "4K")
    assert ran.status == 1
    assert "launch line, with a draft backend that honours the window:" in ran.out
    line = ran.out.splitlines()[-1]
    assert "--speculative-draft-window-size 4096 --speculative-draft-sink-size 64" in line
    assert run("preflight", "--gpu", "h200", "--from-command", line).status == 0


def test_a_hubs_name(run: Run) -> None:
    ran = run("preflight", "Qwen/Qwen3.5-27B", "--gpu", "h200", "--context", "4K", "--json")
    assert ran.document["model"] == "qwen3.5-27b"
    assert " Qwen/Qwen3.5-27B " in ran.document["launch"]


def test_a_base_server(run: Run) -> None:
    ran = run("preflight", "qwen3-8b", "--gpu", "h200", "--depth", "0", "--context", "32K")
    assert ran.status == 0
    assert "no speculation" in ran.out
    assert "--speculative" not in ran.out


def test_what_the_user_measured(run: Run) -> None:
    ran = run("preflight", "qwen3.5-35b-a3b", "--gpu", "h200", "--context", "128K", "--kv-pool-tokens", "300000")
    assert "[kv-pool-differs]" in ran.out
    ran = run(
        "preflight", "qwen3.5-35b-a3b", "--gpu", "h200", "--context", "128K", "--alpha", "0.9995", "--random-data"
    )
    assert "[acceptance-perfect]" in ran.out
    assert "[random-data]" in ran.out


def test_a_script(run: Run, refused: Callable[..., str], tmp_path: Path) -> None:
    """The command in a file is the command as text, and variables exported before it count as its own."""
    path = tmp_path / "serve.sh"
    path.write_text(f"#!/bin/sh\nexport SGLANG_SIMULATE_ACC_LEN=3\nexec {GOOD} \\\n  --port $PORT\n")
    ran = run("preflight", "--from-command", path, "--gpu", "h200", "--json")
    assert ran.status == 0
    assert (
        ran.document["deployment"]
        == run("preflight", "--from-command", GOOD, "--gpu", "h200", "--json").document["deployment"]
    )
    assert "acceptance-forced" in [trap["id"] for trap in ran.document["traps"]]
    asked = ("recommend", "--gpu", "h200", "--context", "8K", "--alpha", "0.5", "--depth", "1", "--from-command")
    assert run(*asked, path).status == 0
    path.write_text(f"{GOOD}\n{GOOD}\n")
    assert "serve.sh starts 2 servers, in lines 1 and 2" in refused(
        "preflight", "--from-command", path, "--gpu", "h200"
    )


def test_a_file_of_arguments(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    path.write_text("model: qwen3.5-27b\nspeculative-config:\n  method: mtp\n  num_speculative_tokens: 3\n")
    ran = run("preflight", "--from-command", path, "--engine", "vllm", "--gpu", "h200", "--context", "128K", "--json")
    assert ran.document["deployment"]["depth"] == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--gpu", "h200"), "MODEL: is missing; name a model, or give --from-command"),
        (("--gpu", "h200", "--from-command", GOOD, "--tp", "2"), "--tp: is given beside a command"),
        (("--gpu", "h200", "--from-command", "vllm serve 'x"), "cannot be split into words"),
        (("--gpu", "h200", "--from-command", "vllm serve " + "x" * 70_000), "at most 65,536 are read"),
        (("--gpu", "h200", "--from-command", "vllm serve \x1b[31mred"), "holds control characters"),
        (("--gpu", "h200", "--from-command", "vllm serve nobody/knows"), "MODEL: no catalogue model or file is called"),
        (
            ("--gpu", "h200", "--from-command", GOOD, "--engine", "vllm"),
            "--engine: vllm, but the command starts sglang",
        ),
        (("--gpu", "h200", "--from-command", GOOD, "--accept-length", "9"), "exceeds 7"),
        (("qwen3-8b", "--gpu", "h200", "--engine", "trtllm"), "--engine: no flags are known of 'trtllm'"),
        (("qwen3.5-27b", "--gpu", "h200", "--kv", "fp3"), "--kv: unknown cache format 'fp3'; one of bf16"),
        (("qwen3.5-27b", "--gpu", "h200", "--depth", "65"), "--depth: '65': input should be less than or equal to 64"),
        (("qwen3.5-27b", "--gpu", "h200", "--memory-fraction", "nan"), "--memory-fraction: "),
        (("qwen3.5-27b", "--gpu", "h200", "--attention-backend", "fa9"), "'fa9' is none of"),
        (("qwen3.5-27b", "--gpu", "h200", "--batch", "0"), "--batch"),
        (("qwen3.5-27b", "--gpu", "h200", "--context", "0"), "--context: "),
        (
            ("--from-command", GOOD, "--gpu", "h200", "--context", "0"),
            "--context: 0 is not a whole number of at least 1",
        ),
        (("--from-command", GOOD, "--gpu", "h200", "--kv-pool-tokens", "-5"), "--kv-pool-tokens: -5 is no pool"),
        (("qwen3.5-27b", "--gpu", "h200", "--kv-pool-tokens", "many"), "--kv-pool-tokens: 'many' is not a number"),
    ],
    ids=lambda value: repr(value)[-30:],
)
def test_refusals(refused: Callable[..., str], words: tuple[str, ...], says: str) -> None:
    assert says in refused("preflight", *words)


def test_a_hostile_index(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((catalog_folder() / "qwen3.5-27b.json").read_text())
    index = tmp_path / "model.safetensors.index.json"
    for content, says in (
        ("{}", "model.safetensors.index.json: weight_map: is missing"),
        ('{"weight_map": []}', "weight_map"),
        ("{", "not valid JSON"),
        (" " * (17 * 2**20), "at most 16,777,216 are read"),
    ):
        index.write_text(content)
        assert says in refused("preflight", tmp_path, "--gpu", "h200", "--context", "4K")
