"""What both of OpenAI's interfaces share: the client, the key, and how ids and images are written.

Any server that speaks one of the interfaces is reached with ``base_url``; it needs a key only if it asks for one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from watchkeeper.adapters.endpoint import Endpoint, check_base_url, import_sdk
from watchkeeper.adapters.strict_schema import strict_schema
from watchkeeper.core.errors import MissingKeyError
from watchkeeper.core.messages import ImagePart
from watchkeeper.core.model import OutputSchema

NO_KEY: Final = "no-key"
NAME_LENGTH: Final = 64


def openai_endpoint(
    what: str, *, api_key: str | None, base_url: str | None, provider: str, headers: Mapping[str, str] | None
) -> Endpoint:
    """Return an endpoint that speaks through the OpenAI SDK.

    Args:
        what: Who asks, for the error if the SDK is missing.
        api_key: The key, or None for ``OPENAI_API_KEY``.
        base_url: Address up to and with ``/v1``, or None for ``OPENAI_BASE_URL`` or OpenAI itself.
        provider: Provider name, for errors.
        headers: Sent with every request.

    Raises:
        MissingExtraError: If the SDK is not installed.
        MissingKeyError: If OpenAI itself is meant and there is no key.
    """
    sdk = import_sdk("openai", what, "openai")
    from watchkeeper.adapters.transport import aio_client

    base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
    check_base_url(base_url)
    key = api_key or os.environ.get("OPENAI_API_KEY")
    if not key and base_url is None:
        raise MissingKeyError(
            f"{what} needs a key: set OPENAI_API_KEY or pass api_key=...; for a server of your own pass base_url=..."
        )
    client: Any = sdk.AsyncOpenAI(
        api_key=key or NO_KEY, base_url=base_url, max_retries=0, http_client=aio_client(sdk), default_headers=headers
    )
    return Endpoint(provider, sdk, client, {"security": {"bearer_auth": True}})


def image_url(part: ImagePart) -> str:
    """Return an image's address, or the image itself as a data URL."""
    return part.url or f"data:{part.media_type};base64,{part.data}"


def named_schema(output: OutputSchema) -> dict[str, Any]:
    """Return the name, the schema and whether it is enforced, as both interfaces want them."""
    strict = strict_schema(output.schema)
    name = "".join(char if char.isascii() and (char.isalnum() or char in "_-") else "_" for char in output.name)
    return {
        "name": name[:NAME_LENGTH] or "output",
        "schema": output.schema if strict is None else strict,
        "strict": strict is not None,
    }
