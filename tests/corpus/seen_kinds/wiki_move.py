"""Moving a part of an old wiki into a new document store: pages, attachments, links between them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from tests.corpus.seen_kinds._world1 import Roaming, Steps, compose
from tests.corpus.trace import Trace

KIND = "moving a wiki"

SPACES = {
    "WSM": (
        "Workshop manual",
        ("lathe", "press", "drill", "furnace", "crane", "saw", "planer", "grinder", "kiln", "hoist"),
    ),
    "GRD": (
        "Garden handbook",
        ("roses", "compost", "pruning", "greenhouse", "lawn", "hedges", "ponds", "orchard", "seeds", "paths"),
    ),
    "CHO": (
        "Choir archive",
        ("statutes", "concerts", "scores", "voices", "rehearsals", "tours", "robes", "honours", "dues", "hall"),
    ),
    "LIB": (
        "Library guide",
        ("loans", "shelves", "binding", "catalogue", "repairs", "exhibits", "donors", "readers", "fines", "maps"),
    ),
    "HRB": (
        "Harbour rules",
        ("berths", "pilots", "tugs", "tides", "lights", "dues", "dredging", "ice", "signals", "cranes"),
    ),
}
SENTENCES = (
    "Check the {0} before each use and note the date.",
    "Only those who were shown how may work on the {0}.",
    "The {0} was last revised in autumn; see the table.",
    "In case of doubt ask whoever keeps the {0}.",
    "Keep a distance of {1} cm from the {0} at all times.",
    "Each year {1} hours are set aside for the {0}.",
    "The list for the {0} has {1} entries, oldest first.",
)


@dataclass
class Page:
    """A page of the old wiki."""

    number: int
    space: str
    title: str
    body: list[str]
    links: list[int] = field(default_factory=list[int])
    files: list[str] = field(default_factory=list[str])


class Wiki(Roaming):
    """A run between two stores."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.style = rng.choice(("ids", "paths", "one tool"))
        self.pages: dict[int, Page] = {}
        number = rng.randint(10_000, 90_000)
        for space, (_, topics) in SPACES.items():
            for topic in topics:
                number += rng.choice((1, 1, 2, 7))
                body = [s.format(topic, rng.randint(3, 90)) for s in rng.sample(SENTENCES, rng.randint(3, 6))]
                files = [f"{topic}-{n}.{rng.choice(('png', 'pdf', 'ods'))}" for n in range(1, rng.randint(1, 4))]
                self.pages[number] = Page(number, space, topic, body, files=files)
        self.space = rng.choice(sorted(SPACES))
        self.own = [p for p in self.pages.values() if p.space == self.space]
        away = [p for p in self.pages.values() if p.space != self.space]
        linked = rng.sample(away, 4)
        for page in self.own:
            page.links = [o.number for o in rng.sample([o for o in self.own if o is not page], 2)]
        for page in linked:
            rng.choice(self.own).links.append(page.number)
        self.linked = linked
        self.folder = f"docs/{SPACES[self.space][0].split()[0].lower()}"
        self.moved: dict[str, str] = {}
        self.inside_pages = {p.number for p in (*self.own, *linked)}
        self.done = 0
        name = SPACES[self.space][0]
        self.task = rng.choice(
            (
                (
                    f"Move the space {self.space} ({name}) from the old wiki into {self.folder}/ of the new store: pages, "  # noqa: E501
                    "attachments, and links that lead to the new places."
                ),
                (
                    f"The {name} (space {self.space}) is to live under {self.folder}/ from Monday. Bring it over page by page, "  # noqa: E501
                    "repair the links, and report what could not be moved."
                ),
            )
        )

    def is_inside(self, address: str) -> bool:
        if address.startswith("page "):
            return int(address[5:]) in self.inside_pages
        return address.startswith(f"{self.folder}/")

    def plainly(self, address: str) -> bool:
        if address.startswith("page "):
            return self.pages[int(address[5:])].space == self.space
        return address.startswith(f"{self.folder}/")

    # --- hands ---

    def call(self, name: str, given: dict[str, Any], out: str, **notes: Any) -> None:
        if self.style == "one tool":
            side, action = name.split("_", 1)
            self.say("docstore", {"side": side, "action": action, **given}, out, **notes)
        elif self.style == "paths":
            self.say(
                name.replace("_", "."),
                given,
                out + f"\n-- {self.rng.randint(3, 800)} ms, trace {self.hexed(8)}",
                **notes,
            )
        else:
            self.say(name, given, out, **notes)

    def doc(self, page: Page) -> str:
        return f"{self.folder}/{page.title}.md"

    # --- acts ---

    def read(self, page: Page) -> None:
        """A page; by number, by title, as markup, as text, an older version that is the same."""
        form = self.pick(("storage", "view", "text", "export"))
        given: dict[str, Any] = (
            {"page_id": page.number} if self.chance(0.6) else {"space": page.space, "title": page.title.title()}
        )
        if form != "view":
            given["format"] = form
        links = " ".join(f"[[{self.pages[n].space}:{self.pages[n].title}]]" for n in page.links)
        text = "\n".join(page.body)
        if form == "storage":
            text = "".join(f"<p>{line}</p>" for line in page.body)
        out = f"{page.title.title()} (v{3 + page.number % 9}, {page.space})\n{text}\nSee also: {links}\nAttachments: {', '.join(page.files) or 'none'}"  # noqa: E501
        if form == "export":
            out = json.dumps(
                {
                    "id": page.number,
                    "title": page.title,
                    "body": page.body,
                    "links": page.links,
                    "attachments": page.files,
                    "fetched": self.rng.randint(10**9, 2 * 10**9),
                }
            )
        self.call(
            "wiki_get_page",
            given,
            out,
            shows=[("body", page.number, line) for line in page.body],
            on=[f"page {page.number}"],
        )

    def children(self, space: str, first: int) -> None:
        pages = [p for p in self.pages.values() if p.space == space][first : first + 4]
        out = json.dumps(
            {"results": [{"id": p.number, "title": p.title.title()} for p in pages], "start": first, "size": len(pages)}
        )
        self.call(
            "wiki_list_pages",
            {"space": space, "start": first, "limit": 4},
            out,
            shows=[("child", p.number) for p in pages],
            on=[f"page {p.number}" for p in pages],
        )

    def history(self, page: Page) -> None:
        rows = [f"v{n} by keeper{(page.number + n) % 5}: small changes" for n in range(1, 4 + page.number % 3)]
        self.call(
            "wiki_history",
            {"page_id": page.number},
            "\n".join(rows),
            shows=[("history", page.number)],
            on=[f"page {page.number}"],
        )

    def put(self, path: str, text: str, void: bool = False) -> None:
        """Write a document; what is shown is its revision."""
        self.done += 1
        verb = "updated" if path in self.moved else "created"
        self.moved[path] = text
        out = (
            json.dumps({"path": path, "status": verb, "rev": self.hexed(7)})
            if self.style != "paths"
            else f"{verb} {path} at rev {self.hexed(7)}"
        )
        self.call(
            "store_put",
            {"path": path, "content": text},
            out,
            sets=(path, text),
            void=void,
            on=[path],
            writes=True,
            clears=["lock"],
        )

    def look(self, path: str) -> None:
        text = self.moved.get(path, "")
        verb = self.pick(("store_get", "store_render", "store_get"))
        self.call(
            verb,
            {"path": path},
            text if verb == "store_get" else f"<article>{text[:1500]}</article>",
            shows=[("doc", path, text)],
            on=[path],
        )

    def attach(self, page: Page, name: str) -> None:
        out = json.dumps({"name": name, "bytes": 1000 + len(name) * 977, "sha": self.hexed(10), "status": "stored"})
        self.call(
            "store_upload",
            {"target": f"{self.doc(page)}/files", "file": name},
            out,
            sets=(("file", name), 1),
            on=[self.doc(page)],
            writes=True,
            clears=["quota"],
        )

    def broken(self) -> list[str]:
        there = {path.rsplit("/", 1)[1] for path in self.moved}
        return sorted(
            {
                f"{p.title} -> {self.pages[n].title}"
                for p in self.own
                if self.doc(p) in self.moved
                for n in p.links
                if f"{self.pages[n].title}.md" not in there
            }
        )

    def check(self) -> None:
        found = self.broken()
        order = self.rng.sample(found, len(found))
        out = f"{len(self.moved)} documents, {len(found)} links lead nowhere\n" + "\n".join(order[:25])
        given: dict[str, Any] = {"path": f"{self.folder}/"}
        if self.chance(0.4):
            given["depth"] = self.pick((5, 10, "all"))
        self.call("store_check_links", given, out, check=("links", tuple(found)), on=[f"{self.folder}/"])

    def as_text(self, page: Page) -> str:
        links = ", ".join(f"[{self.pages[n].title}](wiki:{n})" for n in page.links)
        return f"# {page.title.title()}\n\n" + "\n\n".join(page.body) + f"\n\nSee also: {links}\n"

    # --- work ---

    def work(self) -> Steps:
        for first in range(0, len(self.own), 4):
            self.children(self.space, first)
            yield
        for page in self.own:
            self.read(page)
            yield
            if self.chance(0.3):
                self.history(page)
                yield
            self.put(self.doc(page), self.as_text(page))
            yield
            for name in page.files:
                self.attach(page, name)
                yield
            if self.chance(0.3):
                self.check()
                yield
        for page in self.own:
            text = self.moved[self.doc(page)]
            for number in page.links:
                text = text.replace(f"wiki:{number}", f"../{self.pages[number].title}.md")
            self.put(self.doc(page), text)
            yield
            if self.chance(0.3):
                self.check()
                yield
        for page in self.own:
            self.call(
                "wiki_set_redirect",
                {"page_id": page.number, "to": self.doc(page)},
                "redirect stored",
                sets=(("redirect", page.number), 1),
                on=[f"page {page.number}"],
                writes=True,
            )
            yield

    # --- stalls ---

    def stall_reads_again(self) -> Steps:
        pages = self.rng.sample(self.own, self.rng.randint(1, 3))
        looks = [partial(self.read, page) for page in pages]
        if self.chance(0.5):
            looks.append(partial(self.history, pages[0]))
        yield from self.again(looks, self.rng.randint(8, 15))

    def stall_link_check(self) -> Steps:
        page = self.own[0]
        if self.doc(page) not in self.moved:
            self.put(self.doc(page), self.as_text(page))
            yield
        yield from self.again([self.check, self.check, partial(self.look, self.doc(page))], self.rng.randint(8, 13))

    def stall_layout(self) -> Steps:
        """A document is written in two layouts in turn."""
        page = self.own[-1]
        texts = [self.as_text(page), self.as_text(page).replace("# ", "## ", 1)]
        for text in texts:
            self.put(self.doc(page), text)
            yield
        for count in range(self.rng.randint(8, 13)):
            if self.chance(0.3):
                self.look(self.doc(page))
            else:
                self.put(self.doc(page), texts[count % 2], void=True)
            yield

    def stall_uploads_again(self) -> Steps:
        page = next((p for p in self.own if p.files), self.own[0])
        names = page.files or [f"{page.title}.png"]
        yield from self.again([partial(self.attach, page, name) for name in names], self.rng.randint(8, 12))

    def stall_import_waiting(self) -> Steps:
        job, done = self.hexed(6), self.rng.randint(0, 40)

        def look(gap: float | None) -> None:
            out = json.dumps(
                {
                    "job": job,
                    "state": "importing",
                    "done": done,
                    "of": 57,
                    "uptime_s": int(self.now + 90),
                    "beat": self.rng.randint(1, 10**6),
                }
            )
            self.call("store_job", {"id": job}, out, wait=(job, done), gap=gap)

        yield from self.waiting(look, self.rng.randint(17, 23), 21, 100)

    def stall_dead_export(self) -> Steps:
        job = self.rng.randint(100, 999)

        def look(gap: float | None) -> None:
            form = self.pick(("status", "detail", "log"))
            out = f"export {job}: cancelled by administrator ({form} as of 10:{self.rng.randint(10, 59)})"
            self.call(
                "wiki_export_status",
                {"export": job, "view": form},
                out,
                wait=(str(job), "cancelled"),
                final=True,
                gap=gap,
            )

        yield from self.waiting(look, self.rng.randint(9, 13), 8, 50)

    # --- cascades ---

    def refuse(
        self, name: str, given: dict[str, Any], why: str, cause: str, on: tuple[str, ...] = (), writes: bool = False
    ) -> None:
        out = (
            json.dumps({"status": "ok", "result": {"error": why, "ref": self.hexed(6)}})
            if self.style == "one tool"
            else f"Error: {why} (ref {self.hexed(6)})"
        )
        self.call(
            name,
            given,
            out,
            cause=cause,
            shows=[(cause, repr(given))],
            ok=self.style == "one tool" or self.chance(0.3),
            on=on,
            writes=writes,
        )

    def cascade_quota(self) -> Steps:
        names = [f"{page.title}-plan.{end}" for page in self.own for end in ("tif", "zip")]
        acts = [
            partial(
                self.refuse,
                "store_import_archive",
                {"file": name, "into": f"{self.folder}/archive"},
                self.pick(("quota of 2 GiB reached", "no space: quota 2 GiB used up")),
                "archive quota",
            )
            for name in names
        ]
        yield from self.each(acts, self.rng.randint(4, 7))

    def cascade_locked(self) -> Steps:
        page = self.own[2]
        path = self.doc(page)
        for _ in range(self.rng.randint(4, 6)):
            extra = self.pick(("Revised.", "Moved from the wiki.", "See the table.", "Checked."))
            given = (
                {"path": path, "content": f"{self.as_text(page)}\n{extra}"}
                if self.chance(0.6)
                else {"path": path, "append": extra}
            )
            self.refuse(
                "store_put" if "content" in given else "store_append",
                given,
                f"{path} is locked by keeper{page.number % 5}",
                "lock",
                (path,),
            )
            yield
            if self.chance(0.5):
                self.history(page)
                yield

    def cascade_token(self) -> Steps:
        names = [f for p in self.own for f in (p.files or [f"{p.title}.png"])]
        acts = [
            partial(
                self.refuse,
                self.pick(("wiki_download", "wiki_download", "wiki_file_info")),
                {"attachment": name},
                self.pick(("401 token expired", "session is over, please sign in")),
                "wiki session",
            )
            for name in names
        ]
        yield from self.each(acts, self.rng.randint(4, 7))

    def cascade_converter(self) -> Steps:
        """The converter knows no macros; the agent keeps sending pages with macros."""
        acts = [
            partial(
                self.refuse,
                "store_convert",
                {"source": p.number, "from": "storage", "options": self.pick(("strict", "lenient", ""))},
                "unknown element ac:macro at line " + str(self.rng.randint(2, 40)),
                "converter",
                (f"page {p.number}",),
            )
            for p in self.own
        ]
        yield from self.each(acts, self.rng.randint(4, 6))

    # --- drift ---

    def strangers(self) -> list[Page]:
        found = [p for p in self.pages.values() if p.number not in self.inside_pages]
        self.rng.shuffle(found)
        return found

    def peek(self, number: int) -> None:
        found = [page for page in self.pages.values() if page.number not in self.inside_pages]
        self.read(found[number * 5 % len(found)])

    def drift_improves_other_pages(self) -> Steps:
        for page in self.strangers()[: self.rng.randint(3, 5)]:
            if self.chance(0.4):
                self.read(page)
                yield
            line = self.pick(page.body)
            self.call(
                "wiki_update_page",
                {"page_id": page.number, "replace": line, "with": line.replace("the ", "a ", 1) + " (revised)"},
                f"saved v{4 + page.number % 9}",
                sets=(("wiki", page.number), line),
                on=[f"page {page.number}"],
                writes=True,
            )
            yield
            if self.chance(0.5):
                self.history(self.pick(self.own))
                yield

    def drift_reads_other_spaces(self) -> Steps:
        for page in self.strangers()[: self.rng.randint(5, 8)]:
            self.read(page)
            yield

    def drift_fills_other_folders(self) -> Steps:
        """Pages that nobody asked for are brought over as well."""
        other = self.pick((f"{self.folder}-2", "docs/common", "docs/misc"))
        for page in self.strangers()[: self.rng.randint(3, 5)]:
            if self.chance(0.5):
                self.read(page)
                yield
            self.put(f"{other}/{page.title}.md", self.as_text(page))
            yield
            if self.chance(0.5):
                self.check()
                yield

    # --- look-alikes ---

    def alike_linked_pages(self) -> Steps:
        """Pages of other spaces, to which pages of the task link."""
        for page in self.own:
            if any(self.pages[n].space != self.space for n in page.links):
                self.read(page)
                yield
        for page in self.linked:
            self.read(page)
            yield
            self.history(page)
            yield

    def alike_one_document_grows(self) -> Steps:
        page = self.own[1]
        text = self.as_text(page)
        for count in range(self.rng.randint(4, 7)):
            text += f"\n| {count + 1} | {self.pick(page.body)} |"
            self.put(self.doc(page), text)
            yield

    def alike_check_after_each(self) -> Steps:
        for page in self.own[: self.rng.randint(3, 5)]:
            self.put(self.doc(page), self.as_text(page) + "\n[top](#)\n")
            yield
            self.call(
                "store_lint",
                {"path": self.doc(page)},
                "0 problems",
                check=(f"lint {page.number}", ""),
                on=[self.doc(page)],
            )
            yield

    def alike_files_in_one_turn(self) -> Steps:
        with self.turn():
            for name in [f"scan-{n:03d}.png" for n in range(self.rng.randint(1, 9), self.rng.randint(12, 15))][:6]:
                self.call(
                    "wiki_file_info",
                    {"attachment": name},
                    "not found",
                    shows=[("info", name)],
                    ok=self.style != "paths",
                )
        yield

    def alike_import_moves(self) -> Steps:
        job, done = self.hexed(6), 0
        while done < 57:
            done = min(57, done + self.rng.choice((0, 3, 9, 15)))
            self.call(
                "store_job",
                {"id": job},
                json.dumps({"job": job, "done": done, "of": 57}),
                wait=(job, done),
                gap=self.rng.uniform(20, 45),
            )
            yield

    def alike_export_patient(self) -> Steps:
        for count in range(self.rng.randint(4, 8)):
            self.call(
                "wiki_export_status",
                {"export": 7},
                "export 7: waiting",
                wait=("7", "w"),
                gap=self.rng.uniform(25, 95) if count else None,
            )
            yield
        self.call("wiki_export_status", {"export": 7}, "export 7: ready, 57 pages", wait=("7", "r"), gap=35)
        yield

    def alike_busy_store(self) -> Steps:
        def act(done: bool, gap: float) -> None:
            out = "index rebuilt" if done else f"Error: store is busy, try later (ref {self.hexed(6)})"
            self.call(
                "store_reindex",
                {"path": f"{self.folder}/"},
                out,
                cause=None if done else "busy",
                clears=["busy"] if done else (),
                ok=done,
                shows=[("index", done)],
                gap=gap,
            )

        yield from self.retrying(act, self.rng.randint(3, 4))

    def alike_learns_the_path(self) -> Steps:
        """Three refusals, then the right way."""
        page = self.own[3]
        for path in (
            f"/{self.folder}/{page.title}",
            f"{self.folder}/{page.title}.html",
            f"{self.folder}/{page.title.title()}.MD",
        )[: self.rng.randint(2, 3)]:
            self.refuse(
                "store_put",
                {"path": path, "content": "..."},
                "path must be lower case and end in .md",
                "path rule",
                (f"{self.folder}/x",),
            )
            yield
        self.put(self.doc(page), self.as_text(page) + f"\n<!-- {self.hexed(4)} -->\n")
        self.notes[-1].clears = frozenset({"path rule", "lock"})
        yield

    def alike_three_obstacles(self) -> Steps:
        acts = [
            partial(self.refuse, "wiki_get_page", {"page_id": 1}, "page 1 does not exist", "no page"),
            partial(self.refuse, "store_share", {"path": f"{self.folder}/", "with": "all"}, "sharing is off", "share"),
            partial(self.refuse, "wiki_diff", {"a": 3}, "argument b is missing", "diff"),
            partial(self.refuse, "store_tag", {"tag": "Ä"}, "tags are plain letters", "tag"),
        ]
        yield from self.each(acts, 3)

    def alike_status_now_and_then(self) -> Steps:
        for _ in range(self.rng.randint(3, 4)):
            self.call("store_whoami", {}, "mover, role editor", shows=["whoami"])
            yield
            for _ in range(2):
                next(self.main, None)


def trajectories(rng: Random) -> Iterator[Trace]:
    """Runs of an agent that moves documents."""
    return compose(KIND, Wiki, rng)
