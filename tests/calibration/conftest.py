"""Without a GPU the Triton kernels run in Triton's interpreter, which must be chosen before triton is imported."""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
