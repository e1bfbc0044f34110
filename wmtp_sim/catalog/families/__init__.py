"""One importer per model family: a Hugging Face ``config.json`` becomes an `Architecture`.

An importer takes the text model's fields and the whole document's, and states every size that the family's modelling
code derives from them. What it does not know it refuses by name.
"""

from __future__ import annotations

from collections.abc import Callable

from wmtp_sim.catalog.families.architecture import Architecture
from wmtp_sim.catalog.families.bailing import bailing_hybrid
from wmtp_sim.catalog.families.deepseek import deepseek_v3, deepseek_v32
from wmtp_sim.catalog.families.deepseek_v4 import deepseek_v4
from wmtp_sim.catalog.families.gemma import gemma3, gemma4
from wmtp_sim.catalog.families.glm import glm4_moe, glm_moe_dsa
from wmtp_sim.catalog.families.gpt_oss import gpt_oss
from wmtp_sim.catalog.families.hybrids import falcon_h1, granitemoehybrid, jamba
from wmtp_sim.catalog.families.kimi import kimi_k2, kimi_linear
from wmtp_sim.catalog.families.llama import llama
from wmtp_sim.catalog.families.longcat import longcat_flash
from wmtp_sim.catalog.families.mimo import mimo, mimo_v2_flash
from wmtp_sim.catalog.families.minimax import minimax_m2, minimax_m3
from wmtp_sim.catalog.families.nemotron import nemotron_h
from wmtp_sim.catalog.families.qwen import qwen2, qwen3, qwen3_5, qwen3_5_moe, qwen3_moe, qwen3_next
from wmtp_sim.catalog.families.step import step3p5
from wmtp_sim.catalog.fields import Fields

Importer = Callable[[Fields, Fields], Architecture]

#: Hugging Face ``model_type`` of the text model -> importer.
FAMILIES: dict[str, Importer] = {
    "bailing_hybrid": bailing_hybrid,
    "deepseek_v3": deepseek_v3,
    "deepseek_v32": deepseek_v32,
    "deepseek_v4": deepseek_v4,
    "falcon_h1": falcon_h1,
    "gemma3": gemma3,
    "gemma4": gemma4,
    "glm4_moe": glm4_moe,
    "glm_moe_dsa": glm_moe_dsa,
    "gpt_oss": gpt_oss,
    "granitemoehybrid": granitemoehybrid,
    "jamba": jamba,
    "kimi_k2": kimi_k2,
    "kimi_k25": kimi_k2,
    "kimi_k3": kimi_linear,
    "kimi_linear": kimi_linear,
    "llama": llama,
    "longcat_flash": longcat_flash,
    "mimo": mimo,
    "mimo_v2_flash": mimo_v2_flash,
    "minimax_m2": minimax_m2,
    "minimax_m3": minimax_m3,
    "minimax_m3_vl": minimax_m3,
    "nemotron_h": nemotron_h,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3_5": qwen3_5,
    "qwen3_5_moe": qwen3_5_moe,
    "qwen3_moe": qwen3_moe,
    "qwen3_next": qwen3_next,
    "step3p5": step3p5,
}
