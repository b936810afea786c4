"""What was used: tokens of a reply, and the running total of a run.

Values only, added with ``+``. Money is integer nano-dollars (1e-9 USD), so that sums are exact; ``None`` means that
the cost is not known, which is never the same as 0. Input tokens include the cached ones (providers differ; adapters
normalise), output tokens include the reasoning ones.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final

import msgspec

NANOS_PER_USD: Final = 1_000_000_000


class TokenUsage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one model reply or of many, in provider-neutral terms.

    Attributes:
        input_tokens: All input, cached reads and cache writes included.
        output_tokens: All output, reasoning included.
        cached_tokens: The part of the input that was read from the provider's cache.
        cache_write_tokens: The part of the input that was written to the provider's cache.
        reasoning_tokens: The part of the output that was reasoning.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: TokenUsage) -> TokenUsage:
        """Return the sum."""
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What a run and all its children have used.

    Attributes:
        tokens: Tokens of every model call, failed ones included where the provider reported them.
        cost_nanos: Money in nano-dollars, or None if any priced thing had no known price.
        model_calls: Admitted model calls, failed ones included.
        tool_calls: Admitted tool calls, failed ones included.
        steps: All admitted calls.
        retries: Admitted calls that repeated a failed one.
    """

    tokens: TokenUsage = TokenUsage()
    cost_nanos: int | None = 0
    model_calls: int = 0
    tool_calls: int = 0
    steps: int = 0
    retries: int = 0

    @property
    def cost(self) -> Decimal | None:
        """Money in US dollars, exact; None if unknown."""
        return None if self.cost_nanos is None else Decimal(self.cost_nanos) / NANOS_PER_USD

    def __add__(self, other: Usage) -> Usage:
        """Return the sum; an unknown cost on either side stays unknown."""
        known = self.cost_nanos is not None and other.cost_nanos is not None
        return Usage(
            tokens=self.tokens + other.tokens,
            cost_nanos=(self.cost_nanos or 0) + (other.cost_nanos or 0) if known else None,
            model_calls=self.model_calls + other.model_calls,
            tool_calls=self.tool_calls + other.tool_calls,
            steps=self.steps + other.steps,
            retries=self.retries + other.retries,
        )
