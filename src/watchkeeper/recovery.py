"""Stored runs that go on: interrupted and stopped ones, replays, forks. See docs/recovery.md."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.app.replay import areplay as areplay, replay as replay
    from watchkeeper.app.resume import ResumeOptions as ResumeOptions, afork as afork, aresume as aresume, fork as fork
    from watchkeeper.app.resume import resume as resume
    from watchkeeper.app.resume_many import ResumeManyOptions as ResumeManyOptions, aresume_many as aresume_many
    from watchkeeper.app.resume_many import resume_many as resume_many
    from watchkeeper.loop.replay import Difference as Difference, Replayed as Replayed
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "app.replay": "areplay replay",
            "app.resume": "ResumeOptions afork aresume fork resume",
            "app.resume_many": "ResumeManyOptions aresume_many resume_many",
            "loop.replay": "Difference Replayed",
        },
    )
