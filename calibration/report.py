"""Reports of maintainers' commands: JSON that says what it was made on, whole after every row, within a stated time."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from calibration.environment import condition, environment
from calibration.writing import write_whole


class Report:
    """A growing document of a device, written to ``out`` if that is not None.

    ``document`` holds the environment, the condition at the start and, after `close`, at the end, and ``parts``.
    ``seconds`` is how long what is reported may take: see `late`.
    """

    def __init__(self, out: Path | None, device: torch.device, seconds: float = math.inf, **parts: Any) -> None:
        self.out, self.device, self.seconds, self.started = out, device, seconds, time.monotonic()
        self.document: dict[str, Any] = {"environment": environment(device).as_dict()}
        self.document |= {"condition": vars(condition(device)), **parts}

    def add(self, part: str, row: Any) -> None:
        """One more row of a part, kept at once."""
        self.document[part].append(row)
        self.save()

    def save(self) -> None:
        if self.out is not None:
            write_whole(self.out, json.dumps(self.document, indent=1) + "\n")

    def close(self) -> None:
        """Says what the device's condition is at the end."""
        self.document["condition_after"] = vars(condition(self.device))
        self.save()

    def limit(self, seconds: float) -> None:
        """From now on, so many seconds."""
        self.seconds, self.started = seconds, time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return self.elapsed > self.seconds

    def say(self, text: str) -> None:
        """A line for who waits, with the seconds so far."""
        print(f"{self.elapsed:6.1f} s  {text}", flush=True)


def arguments(doc: str | None, seconds: float) -> argparse.ArgumentParser:
    """``--out`` and ``--seconds``, as every command has them; ``doc`` is the command's own module's."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--seconds", type=float, default=seconds, help="about how long to take")
    return parser


def on_a_gpu(run: Callable[[torch.device], object]) -> int:
    """A command's exit code: 2 where there is no GPU to run it on. Random numbers are the same in every run."""
    if not torch.cuda.is_available():
        print("no CUDA GPU is visible", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    run(torch.device("cuda", 0))
    return 0
