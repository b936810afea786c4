"""HTTP clients for the providers' own SDKs: each call passes the gate of the `contained` block it is made in."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.contained_sdk.http import contained_async_http_client as contained_async_http_client
    from watchkeeper.contained_sdk.http import contained_http_client as contained_http_client
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "contained_sdk.http": "contained_async_http_client contained_http_client",
        },
    )
