"""Base of every specification: frozen, closed, and free of NaN or infinity."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

#: Sizes of a model. The ceiling only stops absurd input (a typo or an attack) from overflowing arithmetic.
Size = Annotated[int, Field(ge=1, le=2**31, strict=True)]
#: Inputs or outputs of a matrix: a product of sizes (heads x head width, three hidden states side by side).
Width = Annotated[int, Field(ge=1, le=2**62, strict=True)]
#: A size that may be absent, where 0 means "none of it".
Count = Annotated[int, Field(ge=0, le=2**31, strict=True)]


class Spec(BaseModel):
    """A frozen statement of fact. Unknown fields are errors: a typo must not become a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
