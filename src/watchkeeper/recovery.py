"""What is done with runs that are on record: they are resumed, replayed against the code of today, or forked."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.app.replay import ReplayOptions as ReplayOptions, areplay as areplay, replay as replay
    from watchkeeper.app.resume import ForkOptions as ForkOptions, ResumeOptions as ResumeOptions, afork as afork
    from watchkeeper.app.resume import aresume as aresume, fork as fork, resume as resume
    from watchkeeper.loop.replay import Difference as Difference, Replayed as Replayed
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "app.replay": "ReplayOptions areplay replay",
            "app.resume": "ForkOptions ResumeOptions afork aresume fork resume",
            "loop.replay": "Difference Replayed",
        },
    )
