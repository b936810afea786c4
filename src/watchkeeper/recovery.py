"""Stored runs that go on: interrupted and stopped ones, replays, forks. See docs/recovery.md."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.app.replay import areplay as areplay, replay as replay
    from watchkeeper.app.resume import ResumeManyOptions as ResumeManyOptions, ResumeOptions as ResumeOptions
    from watchkeeper.app.resume import afork as afork, aresume as aresume, aresume_many as aresume_many, fork as fork
    from watchkeeper.app.resume import resume as resume, resume_many as resume_many
    from watchkeeper.loop.replay import Difference as Difference, Replayed as Replayed
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "app.replay": "areplay replay",
            "app.resume": "ResumeManyOptions ResumeOptions afork aresume aresume_many fork resume resume_many",
            "loop.replay": "Difference Replayed",
        },
    )
