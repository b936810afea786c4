"""The command line, and its settings: those of the environment and of `pyproject.toml`, for use in Python too."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.app.settings import limits_from as limits_from, notify_from as notify_from
    from watchkeeper.app.settings import prices_from as prices_from, settings_here as settings_here
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "app.settings": "limits_from notify_from prices_from settings_here",
        },
    )
