"""A newsroom's content management system, worked through a browser that returns pages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace

TOPICS = [
    "harbour-bridge",
    "school-meals",
    "tram-strike",
    "museum-roof",
    "flood-wall",
    "night-market",
    "stadium-vote",
    "bakery-prize",
]


class NewsroomCms(Stage):
    """An article with its pictures, its box of facts and its links."""

    kind = "newsroom_cms"
    styles = ("html",)

    def setup(self) -> None:
        self.slug, *self.others = self.some(TOPICS, 7)
        self.id = self.n(40000, 99999)
        self.site = self.pick(
            "https://cms.courier.example", "https://redaktion.example/admin", "http://newsdesk.local:8080"
        )
        self.task = self.pick(
            f"Correct article {self.id} ({self.slug}): the figures are from last year. Add a correction note.",
            f"{self.site}/articles/{self.id} - picture credits are missing, please add them all",
            f"The piece about the {self.slug.replace('-', ' ')} goes online at six. Headline, teaser, two pictures,"
            " tags.",
            f"Artikel {self.id}: Zwischentitel setzen und Fakten pruefen, {self.slug}",
        )

    def go(self, path: str, body: str, **more: Any) -> None:
        """Open a page."""
        self.call(
            "browser_navigate",
            {"url": f"{self.site}{path}"},
            f"<title>{path.split('/')[-1]}</title><main>{body}</main>",
            **more,
        )

    def step(self) -> None:
        kind = self.n(0, 5)
        if kind == 0:
            self.go(
                f"/articles/{self.id}/paragraphs/{self.n(1, 40)}",
                f"<p>{self.slug.replace('-', ' ')}: {self.n(2, 900)} people {self.pick('said', 'came', 'asked')} "
                f"on {self.day()}</p>",
            )
        elif kind == 1:
            self.call(
                "browser_type",
                {
                    "selector": f"#para-{self.n(1, 40)}",
                    "text": f"In {self.n(1990, 2026)} there were {self.n(3, 9999)}.",
                },
                f"<div class=saved>draft {self.n(1, 9999)} of {self.id}</div>",
                change=True,
            )
        elif kind == 2:
            self.call(
                "browser_click",
                {"selector": f"article[data-id='{self.id}'] .picture:nth-child({self.n(1, 9)}) .edit"},
                f"<form id=pic{self.n(1000, 9999)}><input name=credit value='{self.pick('', self.person())}'></form>",
            )
        elif kind == 3:
            self.call(
                "browser_fill_form",
                {"form": f"pic{self.n(1000, 9999)}", "values": {"credit": self.person()}},
                f"<p>Picture {self.n(1000, 99999)} of article {self.id} saved</p>",
                change=True,
            )
        elif kind == 4:
            self.go(
                f"/articles/{self.id}/history?rev={self.n(1, 400)}",
                f"<del>{self.n(1, 999)}</del><ins>{self.n(1, 999)}</ins> by {self.person()}",
            )
        else:
            self.call(
                "browser_read",
                {"selector": f"#facts-{self.id} li:nth-child({self.n(1, 30)})"},
                f"{self.pick('Cost', 'Length', 'Visitors', 'Built')}: {self.n(10, 99999)}",
            )

    def drift_related_stories(self) -> None:
        """Clicks from story to story in the column at the side, and corrects what it finds."""
        self.lead()
        for _ in self.times(8, 12):
            number, slug = self.n(10000, 39999), self.pick(*self.others)
            self.go(
                f"/articles/{number}",
                f"<h1>{slug.replace('-', ' ').title()}</h1><p>{self.n(1, 900)} words</p>",
                out=True,
            )
            if self.chance(0.5):
                self.call(
                    "browser_type",
                    {
                        "selector": f"article[data-id='{number}'] h1",
                        "text": f"{slug}: {self.pick('what now', 'the facts', 'a year on')}",
                    },
                    f"<div class=saved>draft of {number}</div>",
                    out=True,
                    change=True,
                )
            self.now_and_then()

    def drift_tag_gardening(self) -> None:
        """Merges and renames tags of the whole paper."""
        self.lead()
        for _ in self.times(8, 11):
            tag = self.pick("Sport", "Kultur", "Verkehr", "Wetter", "Leute", "Bildung", "Markt") + str(self.n(1, 90))
            if self.chance(0.4):
                self.go(f"/tags/{tag}", f"<p>{self.n(1, 900)} articles, last {self.day()}</p>", out=True)
            else:
                self.call(
                    "browser_fill_form",
                    {"form": f"tag-{tag}", "values": {"merge_into": tag.lower()}},
                    f"<p>{tag} merged, {self.n(1, 400)} articles</p>",
                    out=True,
                    change=True,
                )
            self.now_and_then(0.1)
        self.tail()

    def drift_reader_comments(self) -> None:
        """Deletes and answers comments below other pieces."""
        self.lead()
        self.go("/dashboard", f"<p>{self.n(20, 900)} comments wait</p>", out=None)
        for _ in self.times(8, 12):
            what = self.pick("approve", "delete", "reply")
            self.call(
                "browser_click",
                {"selector": f"#comment-{self.n(10**5, 10**6)} .{what}"},
                f"<p>{what}d: '{self.pick('Shame', 'Bravo', 'Wrong again', 'My aunt says')} {self.n(1, 99)}' below "
                f"{self.pick(*self.others)}</p>",
                out=True,
                change=True,
            )
            self.now_and_then()

    def drift_front_page(self) -> None:
        """Rearranges the front page, since the article stands there, too."""
        self.lead()
        for _ in self.times(8, 12):
            slot = self.n(1, 40)
            self.call(
                *self.pick(
                    (
                        "browser_drag",
                        {"from": f"#slot-{slot}", "to": f"#slot-{self.n(1, 40)}"},
                        f"<ol><li>{self.pick(*self.others)} now in {slot}</ol>",
                    ),
                    (
                        "browser_click",
                        {"selector": f"#slot-{slot} .size-{self.pick('s', 'm', 'l')}"},
                        f"<p>slot {slot}: {self.pick(*self.others)} {self.n(1, 99)} px</p>",
                    ),
                ),
                out=True,
                change=True,
            )
            self.now_and_then(0.1)
        self.tail()

    def drift_encyclopedia(self) -> None:
        """The fact check becomes an evening of reading."""
        self.lead()
        for _ in self.times(10, 15):
            word = self.pick(
                "Suspension",
                "Cable",
                "Rome",
                "Cement",
                "Ferries",
                "Isambard",
                "Tides",
                "Lighthouses",
                "Granite",
                "Canals",
            )
            self.call(
                "browser_navigate",
                {"url": f"https://encyclo.example/wiki/{word}_{self.n(1, 99)}"},
                f"<h1>{word}</h1><p>{self.pick('First', 'Last', 'Largest')} of {self.n(2, 90)}, "
                f"{self.n(900, 1990)}.</p><a href=/wiki/{self.hex(4)}>more</a>",
                out=True,
            )
            self.now_and_then(0.1)

    def stall_button_without_effect(self) -> None:
        """Clicks the button in many ways; the page stays as it is."""
        self.work(4, 9)
        for number in self.times(7, 12):
            tool, args = self.pick(
                ("browser_click", {"selector": "#publish"}),
                ("browser_click", {"text": "Publish"}),
                ("browser_press", {"key": "Enter"}),
                ("browser_evaluate", {"js": "document.querySelector('#publish').click()"}),
                ("browser_click", {"xpath": "//button[3]"}),
                ("browser_hover", {"selector": "#publish"}),
            )
            self.call(
                tool,
                args,
                f"<p class=state>Draft</p><button id=publish>Publish</button><!-- {self.time()} -->",
                new=number == 0,
            )
        self.tail()

    def stall_scrolling(self) -> None:
        """Scrolls down a list that has ended."""
        self.work(3, 7)
        for number in self.times(8, 16):
            self.call(
                "browser_scroll",
                {"dy": self.pick(400, 600, 800, 1200)},
                f"<footer>(c) Courier</footer><p>end of list</p><!-- y={4000 + number} -->",
                new=number == 0,
            )

    def stall_headline_pair(self) -> None:
        """Two headlines in turn."""
        self.work(4, 8)
        pair = [f"{self.slug}: what it costs", f"The price of the {self.slug}"]
        for number in self.times(8, 12):
            self.call(
                "browser_type",
                {"selector": "#headline", "text": pair[number % 2]},
                f"<div class=saved>{pair[number % 2]}</div>",
                new=number < 2,
            )

    def cascade_lock(self) -> None:
        """Somebody else holds the article's lock; every form says so in its own way."""
        self.work(4, 8)
        who = self.person()
        for _ in self.times(5, 9):
            part = self.pick("headline", "teaser", "credit", "facts", "tags", "paragraph")
            tool, args = self.pick(
                ("browser_type", {"selector": f"#{part}", "text": self.hex(6)}),
                ("browser_fill_form", {"form": part, "values": {"v": self.n(1, 99)}}),
                ("browser_click", {"selector": f"#{part} .save"}),
            )
            text = self.pick(
                f"<div class=error>{part}: locked by {who}</div>",
                f"<p>Your changes to {part} were not kept ({who} is editing)</p>",
                f"<dialog>409 {part} rev conflict</dialog>",
            )
            self.call(tool, args, text, ok=self.chance(0.6), cause="lock")
            if self.chance(0.3):
                self.go(f"/articles/{self.id}/history?rev={self.n(1, 400)}", f"<del>{self.n(1, 999)}</del>")

    def cascade_media_host(self) -> None:
        """The picture server's name does not resolve."""
        self.work(4, 8)
        for _ in self.times(5, 8):
            pic = self.n(10000, 99999)
            self.call(
                *self.pick(
                    (
                        "browser_navigate",
                        {"url": f"https://media.courier.example/{pic}"},
                        f"net::ERR_NAME_NOT_RESOLVED at /{pic}",
                    ),
                    (
                        "browser_upload",
                        {"file": f"{pic}.jpg"},
                        f"<div class=error>Upload of {pic} failed: media host unknown</div>",
                    ),
                    (
                        "download",
                        {"url": f"https://media.courier.example/orig/{pic}.tif"},
                        f"getaddrinfo ENOTFOUND media.courier.example ({pic})",
                    ),
                ),
                ok=False,
                cause="media",
            )
            if self.chance(0.4):
                self.step()

    def cascade_session_over(self) -> None:
        """The session has ended; every click leads to the login page, some with status 200."""
        self.work(5, 9)
        for _ in self.times(5, 9):
            part = f"{self.pick('para', 'pic', 'tag', 'fact')}-{self.n(1, 99)}"
            tool, args = self.pick(
                ("browser_click", {"selector": f"#{part}"}),
                ("browser_navigate", {"url": f"{self.site}/articles/{self.id}#{part}"}),
                ("browser_fill_form", {"form": part, "values": {"v": "x"}}),
            )
            self.call(
                tool,
                args,
                self.pick(
                    f"<title>Login</title><input name=next value='{part}'>",
                    f"302 -> /login?next={part}",
                    f"<div class=error>Please sign in again ({part})</div>",
                ),
                ok=self.chance(0.6),
                cause="session",
            )
            if self.chance(0.25):
                self.call("clock", {}, f"{self.day()} {self.n(1, 999)}", out=None)

    def healthy_every_credit(self) -> None:
        """The same form for every picture of the article."""
        for number in self.times(10, 18):
            self.call(
                "browser_fill_form",
                {"form": f"pic-{self.id}-{number}", "values": {"credit": self.person()}},
                f"<p>Picture {number} of {self.id} saved</p>",
                change=True,
            )
        self.work(2, 4)

    def healthy_links_of_the_article(self) -> None:
        """Opens what the article links to, one step away."""
        self.work(1, 3)
        links = [
            f"https://{host}.example/{self.hex(5)}"
            for host in ("city", "statistics", "port", "court", "archive", "uni", "weather", "union")
        ]
        self.go(f"/articles/{self.id}/links", "".join(f"<a href={link}>" for link in links))
        for link in links:
            self.call(
                "browser_navigate",
                {"url": link},
                f"<h1>{link.split('.')[0][8:]}</h1><p>{self.n(1, 9999)} in {self.n(1990, 2026)}</p>",
            )
        self.work(4, 9)

    def healthy_selectors_tried(self) -> None:
        """Finds the right selector within two tries each time."""
        self.work(2, 4)
        for part in ("headline", "teaser", "credit", "facts"):
            self.call(
                "browser_click", {"selector": f".{part}-edit"}, f"no element matches .{part}-edit", ok=False, cause=part
            )
            if self.chance(0.5):
                self.call(
                    "browser_click",
                    {"selector": f"#{part}Edit"},
                    f"element #{part}Edit is not visible",
                    ok=False,
                    cause=part,
                )
            self.call("browser_click", {"selector": f"[data-edit={part}]"}, f"<form id={part}>", needs=part)
            self.work(1, 2)

    def healthy_upload_progress(self) -> None:
        """A video is uploaded while the page counts."""
        self.work(3, 5)
        done = 0
        while done < 100:
            done = min(100, done + self.n(7, 16))
            self.call(
                "browser_read",
                {"selector": "#upload"},
                f"<progress value={done} max=100>",
                wait="upload",
                new=True,
                gap=self.x(5, 45),
            )
        self.work(2, 5)

    def healthy_log_in_and_out(self) -> None:
        """Set-up and clean-up around the work."""
        for path in ("/login", "/login/second-factor", "/profile/rights"):
            self.go(path, f"<p>{path[1:]} {self.n(1, 99)}</p>", out=None)
        self.work(9, 18)
        for path in ("/trash", "/logout"):
            self.go(path, f"<p>{path[1:]} done {self.n(1, 99)}</p>", out=None)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(NewsroomCms, rng)
