"""``watchkeeper export``: the page of one run and those below it as one file, which needs neither network nor server.

The file has the built page, and what the server would have answered, as JSON that no browser executes. Its own policy
allows the page's script and style by their hashes and nothing else. What is left out is said in a banner: what looks
like a credential, and what does not fit into `MOST_BYTES`. First to be left out are records of events and states, which
the page asks for one by one; if the runs alone are too long, the ends of long texts, then runs below, then the middle
of long lists.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any, Final, cast

import msgspec

from watchkeeper.core.errors import StoreError
from watchkeeper.core.quantities import counted
from watchkeeper.inspector.event_view import view_of
from watchkeeper.inspector.redaction import Redaction
from watchkeeper.inspector.run_view import run_view
from watchkeeper.inspector.runs_view import runs_view_of, shown
from watchkeeper.inspector.state_view import StateFold
from watchkeeper.inspector.story import Tells, changes_in
from watchkeeper.store.run_index import StoredRun
from watchkeeper.store.run_store import RunStore

MOST_BYTES: Final = 20_000_000
"""How long the data of a file may be."""

MOST_READ: Final = 200_000_000
"""How much data is collected before it is cut; further runs below are left out."""

TEXTS: Final = (16_384, 4_096, 1_024, 256)
ENTRIES: Final = (50_000, 20_000, 5_000, 1_000, 200)
"""To how many characters texts are cut, and to how many entries lists, one after the other until the data fit."""

LIST: Final = "api/runs"
RUN: Final = "run"
EVENTS: Final = "events"
STATES: Final = "state"

Answers = dict[str, Any]
"""What the server answers, by the path that is asked for."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A page as one file.

    Attributes:
        run_id: The run's id.
        page: The HTML.
        runs: How many runs are in it.
        left_out: What is not in it, a sentence each.
    """

    run_id: str
    page: str
    runs: int
    left_out: tuple[str, ...]


def exported(store: RunStore, run_id: str, tells: Tells, redaction: Redaction) -> Exported:
    """Return the page of a run and those below it as one file.

    Args:
        store: The runs.
        run_id: The run's id, or the beginning of it.
        tells: Returns the line of an event in words.
        redaction: What is left out of texts.

    Raises:
        StoreError: If there is no such run, or its file cannot be read.
    """
    run = store.find(run_id)
    answers, notes = _answers(store, run, tells, redaction)
    redacted = redaction.in_words()
    answers, cut = fitting(answers, f"api/runs/{run.run_id}")
    left_out = [f"Replaced by [redacted]: {redacted}."] if redacted else []
    left_out += [*notes, *cut]
    data = {"home": f"#/run/{run.run_id}", "left_out": left_out, "answers": answers}
    runs = sum(path != LIST and not _is_single(path) for path in answers)
    title = redaction.text(f"{shown(run.prompt)} {run.run_id[:8]}")
    return Exported(run.run_id, _page(title, _encoded(data)), runs, tuple(left_out))


def _answers(store: RunStore, run: StoredRun, tells: Tells, redaction: Redaction) -> tuple[Answers, list[str]]:
    """Return what the server answers about a run and those below it, and what is missing, in words."""
    answers: Answers = {}
    listed: list[StoredRun] = []
    size = 0
    missing = Counter[str]()
    for each in _with_below(store, run):
        if size > MOST_READ and each.run_id != run.run_id:
            missing[RUN] += 1
            continue
        try:
            view = redaction.data(msgspec.to_builtins(run_view(store, each.run_id, tells)))
        except StoreError:
            if each.run_id == run.run_id:
                raise
            missing[RUN] += 1
            continue
        if each.run_id == run.run_id and view["above"] is not None:
            view["above"]["run_id"] = ""  # it is named, and is not in the file
        path = f"{LIST}/{each.run_id}"
        answers[path] = view
        listed.append(replace(each, parent_id=None) if each.run_id == run.run_id else each)
        size += len(_encoded(view))
        for kind, seq, single in _singles(store, each.run_id):
            if size < MOST_READ:
                found = answers[f"{path}/{kind}/{seq}"] = redaction.data(msgspec.to_builtins(single()))
                size += len(_encoded(found))
            else:
                missing[kind] += 1
    store_view = runs_view_of("", listed)
    answers[LIST] = redaction.data(msgspec.to_builtins(store_view))
    return answers, _dropped(missing)


def _dropped(missing: Mapping[str, int]) -> list[str]:
    """Return in words how many runs, whole records of events, and states are left out."""
    words = (
        (RUN, "{} below it.", "run"),
        (EVENTS, "The whole records of {}.", "event"),
        (STATES, "The state after {}.", "event"),
    )
    return [note.format(counted(missing[kind], what)) for kind, note, what in words if missing.get(kind)]


def _singles(store: RunStore, run_id: str) -> Iterator[tuple[str, int, Callable[[], msgspec.Struct]]]:
    """Yield the events of a run and the states after those that changed it, as the page asks for them one by one.

    Each comes with its kind and number, up to an event that cannot be read.
    """
    with suppress(StoreError):  # the run's own view says where its record ends
        first = next((event.seq for event in store.events(run_id)), 0)
        fold = StateFold()
        for event in store.events(run_id, past=True):  # the state follows from all that its session had before
            fold.add(event)
            if event.seq >= first:
                yield EVENTS, event.seq, partial(view_of, event)
                if changes_in(event):
                    yield STATES, event.seq, fold.view


def _with_below(store: RunStore, run: StoredRun) -> Iterator[StoredRun]:
    """Yield a run and all below it, those that are nearer to it first."""
    waiting = [run]
    for each in waiting:
        yield each
        waiting += store.children(each.run_id)


def fitting(answers: Answers, main: str, most: int = MOST_BYTES) -> tuple[Answers, list[str]]:
    """Return answers that are no longer than that together, and what had to be left out for it, in words.

    Args:
        answers: By path.
        main: The path that is kept whatever it costs.
        most: Bytes that they may have as JSON.
    """
    runs, notes = _runs_fitting({path: answers[path] for path in answers if not _is_single(path)}, main, most)
    room, gone = most - _size(runs), Counter[str]()
    near = {path: place for place, path in enumerate(answers)}

    def turn(path: str) -> tuple[int, bool, int]:
        run, kind, seq = path.rsplit("/", 2)
        return near[run], kind == STATES, -int(seq)  # the last ones say how it ended

    for path in sorted((path for path in answers if _is_single(path) and path.rsplit("/", 2)[0] in runs), key=turn):
        size = len(_encoded(answers[path])) + len(path) + len('"":,')
        if size > room:
            gone[path.rsplit("/", 2)[1]] += 1
        else:
            runs[path] = answers[path]
            room -= size
    return runs, [*notes, *_dropped(gone)]


def _runs_fitting(runs: Answers, main: str, most: int) -> tuple[Answers, list[str]]:
    """Return runs that are no longer than that together, and what had to be left out for it, in words."""
    texts = lists = ""
    for chars in TEXTS:
        if _size(runs) > most:
            runs, count = _each(runs, partial(_text_cut, chars=chars))
            texts = f"The ends of {counted(count, 'text')} of more than {chars:,} characters." if count else texts
    sizes = {path: len(_encoded(run)) for path, run in runs.items()}
    size, gone = sum(sizes.values()), Counter[str]()
    for path in [path for path in runs if path not in (main, LIST)][::-1]:
        if size > most:
            size -= sizes.pop(path)
            gone[RUN] += 1
    runs = {path: runs[path] for path in sizes}
    for entries in ENTRIES:
        if _size(runs) > most:
            runs, count = _each(runs, partial(_list_cut, entries=entries))
            lists = f"The middle of {counted(count, 'list')} of more than {entries:,} entries." if count else lists
    return runs, [note for note in (texts, *_dropped(gone), lists) if note]


def _is_single(path: str) -> bool:
    return f"/{EVENTS}/" in path or f"/{STATES}/" in path


def _size(answers: Answers) -> int:
    return sum(len(_encoded(answer)) for answer in answers.values())


def _each(data: Any, cut: Callable[[Any], Any]) -> tuple[Any, int]:
    """Return data with every value in it cut, and how many were."""
    count = 0

    def walked(value: Any) -> Any:
        nonlocal count
        shorter = cut(value)
        if shorter is not value:
            count += 1
        if isinstance(shorter, list):
            return [walked(each) for each in cast("Iterable[Any]", shorter)]
        if isinstance(shorter, dict):
            return {key: walked(each) for key, each in cast("dict[str, Any]", shorter).items()}
        return shorter

    return walked(data), count


def _text_cut(value: Any, chars: int) -> Any:
    return f"{value[:chars]}…" if isinstance(value, str) and len(value) > chars + 1 else value


def _list_cut(value: Any, entries: int) -> Any:
    if not isinstance(value, list):
        return value
    items = list(cast("Iterable[Any]", value))
    return cast("Any", value) if len(items) <= entries else items[: entries // 2] + items[-(entries // 2) :]


def _encoded(data: Any) -> bytes:
    """Return JSON in which no tag can begin or end."""
    return msgspec.json.encode(data).replace(b"<", b"\\u003c")


PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="page"></div>
<script type="application/json" id="exported">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def _page(title: str, data: bytes) -> str:
    """Return the built page with its script, its style and its data inside."""
    folder = files("watchkeeper.inspector").joinpath("page")
    script, style = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    script = script.replace("</script", "<\\/script").replace("<!--", "\\x3c!--")  # neither ends the element
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; base-uri 'none';"
        " form-action 'none'"
    )
    return PAGE.format(policy=policy, title=escape(title), style=style, data=data.decode(), script=script)


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
