"""What a call may cost at worst, and what it did cost.

Both are made once per call, so they are msgspec structs: frozen, and ten times cheaper to build than a dataclass.
Money is integer nano-dollars. An estimate must be a true upper bound: a ceiling holds as exactly as the estimates do.
"""

from __future__ import annotations

from typing import Final

import msgspec

from watchkeeper.core.usage import TokenUsage

NO_TOKENS: Final = TokenUsage()


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """The worst case of a call.

    Attributes:
        input_tokens: The most input it can have.
        max_output_tokens: The output cap that is wished for; the gate may grant less.
        min_output_tokens: The least output worth asking for; 0 takes ``Limits.min_output_tokens``.
        input_nanos: The most that its input, and whatever else does not depend on the output cap, can cost.
        output_nanos_per_token: The most that one output token can cost, rounded up.
        known_cost: False if there is no price; the gate then refuses wherever a cost ceiling holds.
    """

    input_tokens: int = 0
    max_output_tokens: int = 0
    min_output_tokens: int = 0
    input_nanos: int = 0
    output_nanos_per_token: int = 0
    known_cost: bool = True

    def nanos(self, output_tokens: int) -> int:
        """Return the most that the call can cost with this output cap, in nano-dollars."""
        return self.input_nanos + self.output_nanos_per_token * output_tokens


class Charge(msgspec.Struct, frozen=True):
    """What a call really cost.

    Attributes:
        tokens: As the provider reported them.
        cost_nanos: Money, or None if nobody knows the price.
    """

    tokens: TokenUsage = NO_TOKENS
    cost_nanos: int | None = 0
