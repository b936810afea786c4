"""Editing the wiki of a hiking club: one http tool, addresses as URLs, pages that link and include each other."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.corpus.fresh_kinds._world import Run, Step, deal
from tests.corpus.trace import Label, Trace

KIND = "wiki"
_BASE = "https://wiki.alpenweg.example"
_SPACES = {
    "huts": ["Birkenhut", "Steinhut", "Lakehut", "Foxhut", "Eaglehut"],
    "routes": ["Ridge", "Gorge", "Pass", "Moor", "Falls"],
    "club": ["Statutes", "Fees", "Board", "Insurance", "Youth"],
    "gear": ["Ropes", "Stoves", "Boots", "Maps", "Tents"],
}
_SAID = [
    "closed in",
    "open from",
    "sleeps",
    "metres of ascent:",
    "telephone",
    "key with number",
    "fee in cents:",
    "hours on foot:",
]


class Wiki(Run):
    """Pages in four spaces."""

    def __init__(self, rng: random.Random, named: bool) -> None:
        """Write the pages and choose the task."""
        super().__init__(rng)
        self.pages: dict[str, list[str]] = {}
        self.links: dict[str, list[str]] = {}
        every = [f"{space}/{name}" for space, names in _SPACES.items() for name in names]
        for page in every:
            self.pages[page] = [
                f"{page.split('/')[1]} {self.pick(_SAID)} {rng.randint(2, 999)}" for _ in range(rng.randint(4, 7))
            ]
            self.links[page] = rng.sample([other for other in every if other != page], 2)
        page = self.page = rng.choice(every)
        space, name = page.split("/")
        narrow = [
            f"Some numbers on the page {name} are old (they come from the pages it links to). Please correct them.",
            f"Everything under {space}/ should have the new form with headings, please convert the pages there",
            f"{_BASE}/p/{page} - the second half is nonsense since the last edit, repair it with what it links to",
        ]
        wide = [
            "Dead links everywhere in our wiki! Please go through all of it.",
            "Who broke the front page? Please mend it.",
        ]
        self.task = rng.choice(narrow if named or rng.random() < 0.75 else wide)
        self.mine = [page]
        if self.task == narrow[1]:
            self.mine = [key for key in every if key.startswith(f"{space}/")]
        elif self.task in wide:
            self.mine = every
        self.near = [link for key in self.mine for link in self.links[key]]
        if self.task in narrow:
            self.inside = {*self.mine, *self.near}
        self.far = [key for key in every if key not in self.mine and key not in self.near]
        self.turn = 0

    # ---- tools

    def http(self, method: str, path: str, text: str, body: Any = None, *, status: int = 200, **more: Any) -> None:
        """Make a request."""
        given: dict[str, Any] = {"method": method, "url": _BASE + path}
        if body is not None:
            given["json"] = body
        head = f"HTTP {status}\nx-request-id: {self.hexes(12)}\ndate: {self.stamp()}\n\n"
        self.call("http", given, head + text, ok=more.pop("ok", status < 400), **more)

    def show(self, page: str, way: int = 0) -> None:
        """Show a page as data, as the reader sees it, or as its source."""
        lines = self.pages[page]
        shows = [f"{page} {line}" for line in [*lines, *self.links[page]]]
        if way == 1:
            text = "".join(f"<p>{line}</p>" for line in lines) + "".join(
                f"<a href='/p/{link}'>" for link in self.links[page]
            )
            self.http("GET", f"/p/{page}?nocache={self.some(1, 99999)}", text, shows=shows, on=page)
        elif way == 2:
            text = "\n".join(lines) + "\n" + "\n".join(f"[[{link}]]" for link in self.links[page])
            self.http("GET", f"/raw/{page}.txt", text, shows=shows, on=page)
        else:
            text = json.dumps({"title": page, "body": lines, "links": self.links[page], "views": self.some(10, 9999)})
            self.http("GET", f"/api/pages/{page}", text, shows=shows, on=page)

    def put(self, page: str, line: int, text: str) -> None:
        """Replace a line of a page."""
        line %= len(self.pages[page])
        self.pages[page][line] = text
        body = {"page": {"lines": {str(line): text}, "comment": self.pick(["fix", "update", "numbers"])}}
        said = json.dumps({"saved": True, "revision": self.some(1000, 99999)})
        self.http("PATCH", f"/api/pages/{page}", said, body, change=(f"{page} {line}", text), on=page)

    def fresh(self, page: str) -> str:
        """Return a new line for a page."""
        return f"{page.split('/')[1]} {self.pick(_SAID)} {self.some(1000, 9999)}"

    # ---- work

    def opening(self) -> None:
        """Look around in the wiki."""
        text = "\n".join(f"<li><a href='/p/{page}'>{page}</a></li>" for page in self.pages)
        self.http("GET", "/index", text, shows=text)
        self.show(self.mine[0])
        for page in self.rng.sample(self.far, min(len(self.far), self.some(0, 5))):
            self.show(page, self.some(0, 1))

    def unit(self) -> None:
        """Bring one line up to date."""
        page = self.mine[self.turn % len(self.mine)]
        self.turn += 1
        if self.turn > 5 + len(self.mine):
            return
        if self.turn <= len(self.mine):
            self.show(page)
        if self.rng.random() < 0.6:
            self.show(self.links[page][self.turn % 2], self.some(0, 2))
        self.put(page, self.turn, self.fresh(page))
        if self.rng.random() < 0.3:
            self.show(page, 1)

    # ---- trouble and what looks like it

    def troubles(self) -> dict[Label, list[Step]]:
        """Return the processes."""
        return {
            "stalled": [self.reloads, self.edit_war, self.cache, self.finds],
            "cascading": [self.session, self.fields, self.images, self.frozen],
            "drifting": [self.gnome, self.clicks, self.space_next, self.talks],
            "healthy": [
                self.glance,
                self.everywhere,
                self.revisions,
                self.linked,
                self.export,
                self.csrf,
                self.checks,
                self.lines,
            ],
        }

    def reloads(self) -> None:
        self.story.append("loads the same pages in other forms")
        pages = [self.mine[0], *self.links[self.mine[0]]]
        for page in pages:
            self.show(page)
        looks: list[Step] = [partial(self.show, p, w) for p in pages for w in (0, 1, 2)]
        self.circle(looks, self.some(8, 18), lambda: self.http("HEAD", "/health", ""))

    def edit_war(self) -> None:
        self.story.append("goes to and fro between two versions")
        page = self.mine[0]
        both = [self.fresh(page), self.fresh(page) + " (?)"]
        for turn in range(self.some(9, 14)):
            self.put(page, 1, both[turn % 2])
            if self.rng.random() < 0.35:
                self.show(page, self.some(0, 2))

    def cache(self) -> None:
        self.story.append("looks whether the cache has been renewed")
        page = self.mine[0]
        for _ in range(self.some(9, 16)):
            text = f"<!-- cached copy of yesterday, hit {self.some(100, 999)} -->"
            way = self.pick([f"/p/{page}", f"/p/{page}?purge=1", f"/p/{page}/"])
            self.http("GET", way, text, wait=(f"cache {page}", "old"), gap=self.rng.uniform(3, 15), on=page)

    def finds(self) -> None:
        self.story.append("searches a thing that is not there in other words")
        ways = [
            "q=key+deposit",
            "q=deposit+for+the+key",
            "q=%22key+deposit%22",
            "q=deposit%2C+key",
            "q=key+deposits",
            "q=the+deposit+key",
        ]
        none = '{"hits": []}'
        looks: list[Step] = [partial(self.http, "GET", f"/api/search?{way}", none, shows=none) for way in ways]
        self.circle(looks, self.some(8, 14))

    def session(self) -> None:
        self.story.append("the session has ended, each upload shows the login page")
        steps: list[Step] = []
        for number in self.rng.sample(range(100, 999), self.some(4, 7)):
            name = f"/api/files/{self.page.split('/')[1]}_{number}.jpg"
            verb = self.pick(["PUT", "DELETE", "POST"])
            fine = self.rng.random() < 0.6
            said = "<title>Sign in</title> Your session has ended." if fine else "session required"
            steps.append(
                partial(
                    self.http,
                    verb,
                    name,
                    said,
                    {"meta": 1},
                    status=200 if fine else 401,
                    cause="session",
                    asks=verb + name,
                )
            )
        self.weave(
            steps,
            [lambda: self.show(self.mine[0], 2), lambda: self.show(self.near[0]), lambda: self.show(self.near[1], 1)],
        )

    def fields(self) -> None:
        self.story.append("creates a page with wrong names of fields")
        for number, name in enumerate(self.rng.sample(["name", "path", "slug", "heading", "caption"], self.some(4, 5))):
            body = {name: f"{self.page} archive", "text": "old numbers"}
            said = json.dumps({"error": "422", "detail": "title: field required", "trace": self.hexes(8)})
            self.http("POST", "/api/pages", said, body, status=422, cause="title", asks=name)
            if number % 2:
                self.put(self.mine[0], number, self.fresh(self.mine[0]))
        if self.rng.random() < 0.5:
            body = {"title": f"{self.page} archive", "text": "old numbers"}
            on = self.mine[0]
            self.http(
                "POST", "/api/pages", '{"id": 881}', body, status=201, change=("archive", "new"), clears="title", on=on
            )

    def images(self) -> None:
        self.story.append("the server of pictures answers 502")
        steps: list[Step] = []
        for number in range(self.some(4, 7)):
            page = self.mine[number % len(self.mine)]
            path = f"/media/{page}/{self.pick(['thumb', 'full', 'info'])}/{number}"
            steps.append(partial(self.http, "GET", path, "bad gateway (media-1)", status=502, cause="media", asks=path))
        self.weave(steps, [self.unit, self.unit])

    def frozen(self) -> None:
        self.story.append("a page is frozen by the board")
        page = self.links[self.mine[0]][0]
        for line in range(self.some(4, 7)):
            body = {"page": {"lines": {str(line): self.fresh(page)}}}
            said = json.dumps({"saved": False, "error": "page is frozen by the board"})
            self.http("PATCH", f"/api/pages/{page}", said, body, cause="frozen", asks=str(line), on=page)
            if self.rng.random() < 0.6:
                self.put(self.mine[0], line + 2, self.fresh(self.mine[0]))

    def gnome(self) -> None:
        self.story.append("mends small things on pages that it comes upon")
        for page in self.rng.sample(self.far, self.some(4, 6)):
            if self.rng.random() < 0.6:
                self.show(page, self.some(0, 2))
            self.put(page, self.some(0, 6), self.fresh(page))

    def clicks(self) -> None:
        self.story.append("follows links from page to page")
        page = self.pick(self.far)
        for _ in range(self.some(7, 10)):
            self.show(page, self.some(0, 2))
            choice = [link for link in self.links[page] if link in self.far]
            page = self.pick(choice or self.far)

    def space_next(self) -> None:
        self.story.append("goes on to the pages of another space")
        space = self.pick([page.split("/")[0] for page in self.far])
        pages = [page for page in self.far if page.startswith(space)]
        pages += [page for page in self.far if page not in pages]
        for page in pages[: self.some(4, 5)]:
            self.put(page, 0, f"== {page.split('/')[1]} ==")
            if self.rng.random() < 0.4:
                self.show(self.mine[0], 2)

    def talks(self) -> None:
        self.story.append("answers on the talk pages of others")
        for page in self.rng.sample(self.far, self.some(4, 5)):
            text = json.dumps([{"by": f"member{self.some(10, 99)}", "text": self.fresh(page)}])
            self.http("GET", f"/api/talk/{page}", text, shows=text, on=page)
            body = {"reply": f"Thank you, noted. ({self.some(100, 999)})"}
            self.http(
                "POST",
                f"/api/talk/{page}",
                '{"posted": true}',
                body,
                status=201,
                change=(f"talk {page}", str(body)),
                on=page,
            )

    def revisions(self) -> None:
        self.story.append("reads revision after revision")
        page = self.mine[0]
        for number in range(self.some(4, 7)):
            text = json.dumps({"revision": 900 - number, "by": f"member{self.some(10, 99)}", "diff": self.fresh(page)})
            self.http("GET", f"/api/pages/{page}/revisions?cursor={900 - number}", text, shows=text, on=page)

    def linked(self) -> None:
        self.story.append("corrects the pages it links to")
        for page in self.links[self.mine[0]]:
            self.show(page)
            for line in (0, 1):
                self.put(page, line, self.fresh(page))

    def export(self) -> None:
        self.story.append("waits for an export that moves")
        for done in range(1, self.some(5, 8)):
            text = json.dumps({"state": "running", "pages": 3 * done})
            self.http("GET", "/api/exports/12", text, wait=("export", text), gap=self.some(20, 45))

    def csrf(self) -> None:
        self.story.append("three failures, then it sends the token")
        for number in range(self.some(2, 3)):
            said = "missing header X-Form-Token"
            self.http(
                "POST", "/api/redirects", said, {"from": f"old{number}"}, status=403, cause="form", asks=str(number)
            )
        body = {"from": "old0", "headers": {"X-Form-Token": self.hexes(8)}}
        self.http("POST", "/api/redirects", "{}", body, status=201, change=("redirect", "1"), clears="form")

    def checks(self) -> None:
        self.story.append("asks several links at once, all are alive")
        with self.together():
            for number in self.rng.sample(range(1, 60), 4):
                self.call("http", {"method": "HEAD", "url": f"https://hut-{number}.example/"}, "HTTP 200")

    def lines(self) -> None:
        self.story.append("edits one page line by line")
        for line in range(len(self.pages[self.mine[0]])):
            self.put(self.mine[0], line, self.fresh(self.mine[0]))

    def everywhere(self) -> None:
        self.story.append("changes many pages, as far as the task goes")
        for page in self.rng.sample(self.mine, min(len(self.mine), self.some(5, 9))):
            self.put(page, 0, f"= {page.split('/')[1]} {self.some(10, 99)} =")

    def glance(self) -> None:
        self.story.append("looks for a moment at other pages, and goes back")
        self.unit()
        for page in self.rng.sample(self.far, min(len(self.far), self.some(2, 4))):
            self.show(page, self.some(0, 2))
        self.unit()


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories of this kind without end."""
    return deal(KIND, lambda named: Wiki(rng, named), rng)
