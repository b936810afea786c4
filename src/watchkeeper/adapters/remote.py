"""Whether adapters may reach other machines: one switch for the whole process.

Importing ``watchkeeper.testing`` turns it off, so that a forgotten fake can never reach a paid model. Adapters ask
before every request; this machine is always allowed.
"""

from __future__ import annotations

import ipaddress
import urllib.parse
from typing import Final

from watchkeeper.core.errors import ConfigurationError


class RemotePolicy:
    """Whether adapters may reach other machines; one for the whole process."""

    __slots__ = ("allowed",)

    def __init__(self) -> None:
        """Allow them."""
        self.allowed = True


REMOTE: Final = RemotePolicy()


def allow_remote(allowed: bool) -> bool:
    """Allow or forbid every host but this machine, for all adapters in the process, and return the setting before.

    Tests forbid it, so that a forgotten fake can never reach a paid model.
    """
    before, REMOTE.allowed = REMOTE.allowed, allowed
    return before


def is_loopback(url: str) -> bool:
    """Return whether a URL points to this machine."""
    host = urllib.parse.urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_remote(url: str) -> None:
    """Refuse a URL on another machine while remote hosts are forbidden.

    Raises:
        ConfigurationError: If `allow_remote` forbids the host.
    """
    if not REMOTE.allowed and not is_loopback(url):
        raise ConfigurationError(
            f"{url} is not on this machine, and real providers are blocked here: use a fake server or the scripted "
            "model, or call watchkeeper.adapters.remote.allow_remote(True) first"
        )
