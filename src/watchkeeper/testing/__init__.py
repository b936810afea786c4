"""Fakes for tests: servers with the real wire formats, models that follow a script, clocks that jump instead of
waiting.

Importing anything from here blocks every real provider for the rest of the process, so that a test which forgot its
fake fails instead of spending money; ``allow_remote(True)`` lifts the block.
"""

from typing import TYPE_CHECKING

from watchkeeper.adapters import endpoint
from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.adapters.endpoint import allow_remote as allow_remote
    from watchkeeper.adapters.scripted import ScriptedModel as ScriptedModel
    from watchkeeper.core.clock import TestClock as TestClock
    from watchkeeper.testing.fake_anthropic import FakeAnthropic as FakeAnthropic
    from watchkeeper.testing.fake_openai import FakeOpenAI as FakeOpenAI
    from watchkeeper.testing.ledger_checks import check_ledger as check_ledger
    from watchkeeper.testing.ledger_checks import check_shared_ledger as check_shared_ledger
    from watchkeeper.testing.traffic import recorded as recorded
    from watchkeeper.testing.wire import Fault as Fault, Reply as Reply, WireReply as WireReply
    from watchkeeper.testing.wire import WireRequest as WireRequest, WireServer as WireServer, call as call
    from watchkeeper.testing.wire import json_reply as json_reply, say as say
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "adapters.endpoint": "allow_remote",
            "adapters.scripted": "ScriptedModel",
            "core.clock": "TestClock",
            "testing.fake_anthropic": "FakeAnthropic",
            "testing.fake_openai": "FakeOpenAI",
            "testing.ledger_checks": "check_ledger check_shared_ledger",
            "testing.traffic": "recorded",
            "testing.wire": "Fault Reply WireReply WireRequest WireServer call json_reply say",
        },
    )

endpoint.allow_remote(False)
