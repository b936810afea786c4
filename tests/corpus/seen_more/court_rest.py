"""A law office's file system by REST: one tool with method, url and body; replies are JSON or XML."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.corpus.seen_more.world import Args, Place, Scene, Shape, js, stories
from tests.corpus.trace import Trace

KIND = "court_rest"

SORTS = ["pleading", "exhibit", "note", "invoice", "letter", "protocol", "opinion", "power-of-attorney"]
TOPICS = ["lease", "warranty", "custody", "inheritance", "copyright", "dismissal", "boundary wall"]
MARKS = ["urgent", "sealed", "copy", "draft", "checked", "undated", "translated", "privileged"]


class Registry(Scene):
    """Dockets with documents and linked dockets; a task that names a docket, a document, a topic or a date range."""

    def __init__(self, rng: random.Random) -> None:
        """File the dockets and choose the task."""
        super().__init__(rng)
        first = rng.randint(100, 880)
        self.dockets = {first + number: rng.choice(TOPICS) for number in range(9)}
        self.docs = {docket: [f"{docket}-{n:03d}" for n in range(1, rng.randint(8, 20))] for docket in self.dockets}
        self.docket = rng.choice(list(self.dockets))
        self.linked = rng.choice([docket for docket in self.dockets if docket != self.docket])
        self.form = rng.choice(["docket", "docket", "document", "topic", "dates", "nothing"])
        topic = self.dockets[self.docket]
        self.document = rng.choice(self.docs[self.docket])
        self.task = {
            "docket": rng.choice(
                [
                    f"Prepare docket {self.docket} for the hearing: index, marks, missing exhibits.",
                    f"Complete the file {self.docket} (linked: {self.linked}) and send the list to the court.",
                ]
            ),
            "document": f"Document {self.document} is attributed wrongly. Correct its data and what refers to it.",
            "topic": f"Collect all that we have on '{topic}' and mark it for the new colleague.",
            "dates": f"Docket {self.docket}, documents received 2024-03-01..2024-05-31: add the date stamps.",
            "nothing": "Tidy the registry where it needs it.",
        }[self.form]
        names = {self.docket, self.linked} if str(self.linked) in self.task else {self.docket}
        if self.form == "topic":
            names = {docket for docket, about in self.dockets.items() if about == topic}
        self.names = names
        self.outside = [docket for docket in self.dockets if docket not in names]
        self.version = 1
        self.read_: set[str] = set()
        if self.form == "topic":
            items = [f"docket {docket}: {about}" for docket, about in self.dockets.items() if docket in names]
            self.http("GET", f"/dockets?about={topic}", js(items=items), place="in")

    def place(self, docket: int, doc: str = "") -> Place:
        """Say whether a docket or document belongs to the task."""
        if self.form == "nothing":
            return ""
        if self.form == "document" and doc:
            return "in" if doc == self.document or (docket != self.docket and docket in self.names) else "out"
        return "in" if docket in self.names else "out"

    def http(self, method: str, path: str, reply: str, body: Args | None = None, **truth: object) -> None:
        """Send one request."""
        args: Args = {"method": method, "url": f"http://registry.law.internal/v3{path}"}
        if body is not None:
            args["body"] = body
        self.run.call("http_request", args, reply, **truth)  # type: ignore[arg-type]

    def own(self) -> tuple[int, str]:
        """Choose a document of the task."""
        if self.form == "document":
            return self.docket, self.document
        docket = self.rng.choice(list(self.dockets) if self.form == "nothing" else sorted(self.names))
        return docket, self.rng.choice(self.docs[docket])

    def foreign(self) -> tuple[int, str]:
        """Choose a document that the task is not about."""
        docket = self.rng.choice(self.outside)
        if self.form == "document" and self.rng.random() < 0.7:
            docket = self.docket
        return docket, self.rng.choice([doc for doc in self.docs[docket] if doc != self.document])

    def look(self, docket: int, doc: str) -> None:
        """Ask something new about a document."""
        rng = self.rng
        self.version += 1
        base = f"/dockets/{docket}/documents/{doc}"
        parts = [part for part in ("", "/history", "/parties", "/stamps") if base + part not in self.read_]
        part = rng.choice([*parts, "/text", "/references"])
        self.read_.add(base + part)
        day = f"2024-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
        if part == "":
            reply = js(id=doc, sort=rng.choice(SORTS), received=day, mark=rng.choice(MARKS), etag=self.run.hexid(6))
        elif part in ("/text", "/references"):
            self.read_.discard(base + part)
            part += f"?page={self.version}"
            reply = f"<page n='{self.version}' of='{doc}'>{rng.choice(SORTS)} of {day}, {rng.choice(TOPICS)}</page>"
        else:
            items = [f"{day} {rng.choice(MARKS)} by clerk {rng.randint(1, 9)}" for _ in range(rng.randint(1, 6))]
            reply = js(request=self.run.hexid(), **{part[1:]: items})
        self.http("GET", base + part, reply, place=self.place(docket, doc), fresh=True)

    def change(self, docket: int, doc: str) -> None:
        """Change something to what it was not before."""
        rng = self.rng
        self.version += 1
        ways: list[tuple[str, str, Args]] = [
            ("PATCH", f"/dockets/{docket}/documents/{doc}", {"mark": rng.choice(MARKS), "version": self.version}),
            ("POST", f"/dockets/{docket}/documents/{doc}/notes", {"text": f"see page {self.version}"}),
            ("PUT", f"/dockets/{docket}/documents/{doc}/stamps/{self.version}", {"on": "2024-04-02"}),
        ]
        method, path, body = rng.choice(ways)
        said = js(ok=True, etag=self.run.hexid(6)) if rng.random() < 0.7 else "204 No Content"
        self.http(method, path, said, body, place=self.place(docket, doc), change=True, clears="etag", fresh=True)

    def step(self) -> None:
        """Read, then change."""
        docket, doc = self.own()
        self.look(docket, doc)
        if self.rng.random() < 0.5:
            self.change(docket, doc)

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall."""
        rng, (docket, doc) = self.rng, self.own()
        at = self.place(docket, doc)

        def asks_for_an_exhibit_that_was_never_filed() -> None:
            what = rng.choice(["deed", "expert+report", "photograph", "will"])
            ways = [
                f"/search?q={what}&docket={docket}",
                f"/dockets/{docket}/documents?contains={what}",
                f"/dockets/{docket}/documents?filter=title~{what}",
                f"/search?q={what.upper()}&docket={docket}&fuzzy=2",
                f"/dockets/{docket}/exhibits?title={what}*",
                f"/dockets/{docket}/documents?contains={what}&limit=500",
            ]
            none = ['{"items": []}', '{"total": 0, "hits": [], "took": %d}', "<documents count='0'/>", "[]"]
            for number in range(rng.randint(8, 15)):
                said = rng.choice(none).replace("%d", str(self.run.millis()))
                self.http("GET", rng.choice(ways), said, place=at, fresh=number == 0)
                if number == 5 and rng.random() < 0.4:
                    self.look(docket, doc)

        def marks_and_unmarks() -> None:
            marks = rng.sample(MARKS, 2)
            for number in range(rng.randint(8, 12)):
                body = {"mark": marks[number % 2]}
                path = f"/dockets/{docket}/documents/{doc}"
                self.http("PATCH", path, js(ok=True), body, place=at, change=True, fresh=number < 2, clears="etag")

        def polls_the_conversion_that_has_failed() -> None:
            job = self.run.hexid(6)
            for _ in range(rng.randint(9, 15)):
                said = js(job=job, state="failed", detail="page 3 unreadable", age_s=int(self.run.clock))
                self.http("GET", f"/jobs/{job}", said, watch="job", final=True, gap=rng.uniform(10, 60))

        def reads_the_same_data_by_four_addresses() -> None:
            sort, pages = rng.choice(SORTS), rng.randint(2, 60)
            for number in range(rng.randint(8, 14)):
                path, said = rng.choice(
                    [
                        (f"/documents/{doc}", js(id=doc, sort=sort, pages=pages, req=self.run.hexid())),
                        (f"/dockets/{docket}/documents/{doc}", js(pages=pages, sort=sort, id=doc)),
                        (f"/documents/{doc}?format=xml", f"<doc id='{doc}' sort='{sort}' pages='{pages}'/>"),
                        (
                            f"/dockets/{docket}/documents?id={doc}",
                            js(items=[{"id": doc, "sort": sort, "pages": pages}]),
                        ),
                    ]
                )
                self.http("GET", path, said, place=at, fresh=number == 0)

        return [
            asks_for_an_exhibit_that_was_never_filed,
            marks_and_unmarks,
            polls_the_conversion_that_has_failed,
            reads_the_same_data_by_four_addresses,
        ]

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng = self.rng

        def wrong_version_at_every_write() -> None:
            for _ in range(rng.randint(4, 8)):
                docket, doc = self.own()
                self.version += 1
                said = rng.choice(
                    [
                        js(status="ok", result={"error": {"code": "PreconditionRequired", "need": "If-Match"}}),
                        "428 Precondition Required: send the If-Match header",
                        js(ok=False, reason="write without etag is refused", trace=self.run.hexid(10)),
                    ]
                )
                path = f"/dockets/{docket}/documents/{doc}"
                body = {"mark": rng.choice(MARKS), "note": self.version}
                self.http("PATCH", path, said, body, ok=rng.random() < 0.8, cause="etag", place=self.place(docket, doc))
                self.look(*self.own())

        def the_token_has_expired() -> None:
            for _ in range(rng.randint(4, 7)):
                self.version += 1
                docket, doc = self.own()
                said = rng.choice(
                    [
                        js(error="invalid_token", error_description="expired", at=self.run.time()),
                        "<fault><code>401.3</code><text>Credential no longer valid</text></fault>",
                        js(type="about:blank", title="Unauthorized", instance=f"/r/{self.run.hexid()}"),
                    ]
                )
                path = f"/dockets/{docket}/documents/{doc}?v={self.version}"
                self.http("GET", path, said, ok=rng.random() < 0.4, cause="token", place=self.place(docket, doc))
                if rng.random() < 0.8:
                    self.run.call("memo_write", {"text": f"{doc}: asked for version {self.version}"}, "noted")

        def the_archive_is_sealed() -> None:
            docket = self.own()[0]
            for _ in range(rng.randint(4, 6)):
                self.version += 1
                said = js(
                    data=None, errors=[{"message": f"docket {docket} archive: sealed by order", "path": [self.version]}]
                )
                path = f"/archive/{docket}/boxes/{self.version}"
                self.http("GET", path, said, cause="seal", place=self.place(docket))
                self.look(*self.own())

        def sends_the_refused_request_again() -> None:
            docket, doc = self.own()
            for number in range(rng.randint(7, 12)):
                said = js(error={"code": 412, "message": "etag missing", "id": self.run.hexid(10)})
                path = f"/dockets/{docket}/documents/{doc}"
                fresh = number == 0
                at = self.place(docket, doc)
                self.http(
                    "PATCH", path, said, {"mark": "checked"}, cause="etag", place=at, fresh=fresh, ok=rng.random() < 0.5
                )

        return [
            sends_the_refused_request_again,
            wrong_version_at_every_write,
            the_token_has_expired,
            the_archive_is_sealed,
        ]

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task."""
        if self.form == "nothing" or not self.outside:
            return ()
        rng = self.rng

        def reads_other_files() -> None:
            for _ in range(rng.randint(12, 22)):
                self.look(*self.foreign())

        def tidies_the_next_docket_too() -> None:
            for _ in range(rng.randint(4, 9)):
                what = self.foreign()
                if rng.random() < 0.5:
                    self.look(*what)
                self.change(*what)

        def now_and_then_a_foreign_one() -> None:
            for _ in range(rng.randint(4, 6)):
                self.change(*self.foreign())
                self.look(*self.own())

        return [reads_other_files, tidies_the_next_docket_too, now_and_then_a_foreign_one]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        rng, (docket, doc) = self.rng, self.own()
        at = self.place(docket, doc)

        def pages_of_the_index() -> None:
            for page in range(1, rng.randint(5, 9)):
                items = [f"{docket}-{rng.randint(1, 400):03d} {rng.choice(SORTS)}" for _ in range(8)]
                self.http("GET", f"/dockets/{docket}/index?page={page}", js(page=page, items=items), place=at)

        def three_conflicts_then_a_fresh_etag() -> None:
            for number in range(rng.randint(2, 3)):
                path = f"/dockets/{docket}/documents/{doc}"
                self.http("PATCH", path, js(error="conflict"), {"n": number}, cause="etag", ok=False, place=at)
            self.look(docket, doc)
            self.change(docket, doc)

        def converts_and_waits() -> None:
            job, done = self.run.hexid(6), 0
            while done < 100:
                more = rng.choice([0, 15, 40])
                done += more
                said = js(job=job, state="running", percent=min(done, 100))
                self.http("GET", f"/jobs/{job}", said, watch=job, moved=more > 0, gap=rng.uniform(21, 45))

        def asks_which_numbers_exist() -> None:
            for number in range(rng.randint(4, 7)):
                self.http("HEAD", f"/dockets/{docket}/documents/{docket}-9{number:02d}", "404 Not Found", place=at)
            self.http("POST", f"/dockets/{docket}/documents", js(created=f"{docket}-900"), {}, place=at, change=True)

        def pings() -> None:
            for _ in range(3):
                self.http("GET", "/health", "up")
            self.work(4)

        def sees_what_the_linked_docket_says() -> None:
            for _ in range(rng.randint(3, 4)):
                self.look(*(self.foreign() if self.outside and self.form != "nothing" else self.own()))
            for _ in range(4):
                self.step()

        return [
            pages_of_the_index,
            three_conflicts_then_a_fresh_etag,
            converts_and_waits,
            asks_which_numbers_exist,
            pings,
            sees_what_the_linked_docket_says,
        ]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Registry, rng)
