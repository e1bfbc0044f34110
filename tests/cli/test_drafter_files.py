"""`--drafter head.json`: heads in circulation are priced, other kinds of drafters are refused by what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.catalog.test_drafters import BLOCK, EAGLE1, NARROWER, SPECULATORS
from tests.cli.conftest import Run

POINT = ("--context", "2K", "--engine", "vllm")


@pytest.mark.parametrize(
    ("config", "words", "params"),
    [
        (SPECULATORS, ("qwen3-8b", "--gpu", "h200", "--depth", "3", "--accept-length", "2.5"), 399_523_840),
        (EAGLE1, ("llama-3.1-8b", "--gpu", "h100", "--depth", "3", "--accept-length", "2.3"), 251_666_432),
    ],
)
def test_heads_lie_in_memory_as_they_are(
    run: Run, tmp_path: Path, config: dict[str, Any], words: tuple[str, ...], params: int
) -> None:
    path = tmp_path / "head.json"
    path.write_text(json.dumps(config))
    ran = run("estimate", *words, *POINT, "--drafter", path, "--json")
    assert (ran.status, ran.err) == (0, "")
    memory = ran.document["memory"]["arrangements"]
    assert memory["native"]["weights_bytes"] - memory["base"]["weights_bytes"] == 2 * params


def test_a_heads_own_limits_are_warned_about(run: Run, tmp_path: Path) -> None:
    """It proposes 32,000 of 151,936 tokens, and was built for 4,096 positions, of which 2,048 are in use."""
    head = json.loads(json.dumps(SPECULATORS))
    head["transformer_layer_config"]["max_position_embeddings"] = 4096
    path = tmp_path / "head.json"
    path.write_text(json.dumps(head))
    said = []
    for context in ("2K", "8K"):
        words = ("estimate", "qwen3-8b", "--gpu", "h200", "--context", context, "--depth", "3")
        ran = run(*words, "--engine", "vllm", "--drafter", path, "--json")
        said.append({warning["id"] for warning in ran.document["warnings"]})
    assert [("draft-vocabulary" in each, "beyond-drafter-limit" in each) for each in said] == [
        (True, False),
        (True, True),
    ]


def test_a_head_of_another_target_says_so(run: Run) -> None:
    path = Path(__file__).parents[1] / "data" / "heads" / "medusa-llama-3.1-8b.json"
    said = []
    for model in ("qwen3-8b", "llama-3.1-8b"):
        ran = run("estimate", model, "--gpu", "h200", "--context", "4K", "--drafter", path, "--json")
        said.append([each["text"] for each in ran.document["warnings"] if each["id"] == "drafter-assumed"])
    assert said[0] == [f"{path.name} was made for meta-llama/Llama-3.1-8B-Instruct, not for qwen3-8b"]
    assert said[1] == []


def test_a_narrower_head_on_two_gpus(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    path.write_text(json.dumps(NARROWER))
    words = ("llama-3.1-70b", "--gpu", "h200", "--tp", "2", "--depth", "3", "--accept-length", "2.5")
    ran = run("estimate", *words, *POINT, "--drafter", path)
    assert (ran.status, ran.err) == (0, "")


def test_a_block_drafter(run: Run, tmp_path: Path) -> None:
    """It names a Qwen3 of five layers as its model_type: as a chain of 15 passes it would cost 13 times too much."""
    path = tmp_path / "head.json"
    path.write_text(json.dumps(BLOCK))
    words = ("qwen3-8b", "--gpu", "h200", "--depth", "15", "--accept-length", "6.5")
    ran = run("estimate", *words, *POINT, "--drafter", path, "--json")
    assert (ran.status, ran.err) == (0, "")
    found = ran.document["policies"]["dflash"]
    assert found["terms"]["draft"] == pytest.approx(0.001, rel=0.3)  # one pass over a fifth of the target's bytes
    assert found["break_even_accept_length"] == pytest.approx(1.2, abs=0.1)
    stated = json.dumps({"method": "draft_model", "model": str(path), "num_speculative_tokens": 5})
    ran = run(
        "preflight",
        "--from-command",
        f"vllm serve Qwen/Qwen3-8B --speculative-config '{stated}'",
        "--gpu",
        "h200",
        "--json",
    )
    assert ran.status == 0
    assert "drafter-not-priced" not in [trap["id"] for trap in ran.document["traps"]]
