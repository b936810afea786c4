"""Research on the web: searches, pages, and notes on what was found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from tests.corpus.seen_kinds._world1 import Desk, Steps, compose
from tests.corpus.trace import Trace

KIND = "research on the web"

THINGS = {
    "bridge": (("length", "m", 90, 2400), ("opening year", "", 1840, 2024), ("cost", "million", 2, 900), ("spans", "", 1, 14)),  # noqa: E501
    "lighthouse": (("height", "m", 9, 70), ("opening year", "", 1780, 1990), ("range", "nautical miles", 6, 28), ("steps", "", 40, 400)),  # noqa: E501
    "reservoir": (("volume", "million cubic metres", 3, 900), ("opening year", "", 1890, 2015), ("depth", "m", 12, 180), ("cost", "million", 4, 700)),  # noqa: E501
    "library": (("volumes", "thousand", 40, 9000), ("opening year", "", 1650, 2019), ("seats", "", 60, 1900), ("branches", "", 1, 40)),  # noqa: E501
    "cable car": (("length", "m", 300, 5200), ("opening year", "", 1908, 2022), ("cabins", "", 2, 90), ("passengers per hour", "", 120, 3600)),  # noqa: E501
}  # fmt: skip
PLACES = (
    "Arden Bay",
    "Kelmoor",
    "Vistrup",
    "Ostrava Gate",
    "Lindholt",
    "Marrow Point",
    "Tessin Hill",
    "Bruma",
    "Hallin",
    "Sorrel",
)
SITES = (
    "encyclo.example",
    "harbour-news.example",
    "archive.example",
    "city.example",
    "buildings.example",
    "travelnotes.example",
)
FILLING = (
    "Visitors come mostly in summer.",
    "The name goes back to a field nearby.",
    "A plaque was put up by the council.",
    "There had been plans for it for decades.",
    "It is listed as a monument.",
    "Local schools visit once a year.",
)


@dataclass
class Site:
    """A page on the web."""

    url: str
    title: str
    lines: list[str]
    about: str
    tells: dict[str, int] = field(default_factory=dict[str, int])


class Research(Desk):
    """A run on a small web."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.style = rng.choice(("tools", "browser", "words"))
        self.thing = rng.choice(sorted(THINGS))
        self.names = [f"{place} {self.thing.title()}" for place in rng.sample(PLACES, rng.randint(3, 5))]
        self.values = {(n, a): rng.randint(low, high) for n in self.names for a, _, low, high in THINGS[self.thing]}
        self.sites: dict[str, Site] = {}
        for name in self.names:
            for host in rng.sample(SITES, 4):
                self._page(name, host)
        wanted = [a for a, *_ in THINGS[self.thing]][: rng.randint(2, 4)]
        self.wanted = wanted
        self.task = rng.choice(
            (
                f"For a comparison I need {', '.join(wanted)} of {', '.join(self.names)}, each from two sources. Keep notes.",  # noqa: E501
                f"Write a short table: {', '.join(self.names)}; columns {', '.join(wanted)}. Name the sources, and say where they disagree.",  # noqa: E501
            )
        )

    def _page(self, name: str, host: str) -> None:
        slug = name.lower().replace(" ", "-")
        path = {
            "archive.example": f"doc/{self.rng.randint(1000, 9999)}/{slug}.pdf",
            "harbour-news.example": f"2029/{self.rng.randint(1, 12):02d}/{slug}",
        }.get(host, slug)
        lines: list[str] = [name]
        tells: dict[str, int] = {}
        for attribute, unit, *_ in THINGS[self.thing]:
            if self.chance(0.7):
                off = self.rng.choice((0, 0, 0, 1, -3))
                lines.append(
                    f"Its {attribute} is given as {self.values[name, attribute] + off}{' ' + unit if unit else ''}."
                )
                tells[attribute] = self.values[name, attribute] + off
            lines += self.rng.sample(FILLING, 2)
        lines = list(dict.fromkeys(lines))
        url = f"https://{host}/{path}"
        self.sites[url] = Site(url, f"{name} – {host.split('.')[0]}", lines, name, tells)

    def is_inside(self, address: str) -> bool:
        return True

    # --- hands ---

    def call(self, name: str, given: dict[str, Any], out: str, **notes: Any) -> None:
        tool = name
        if self.style == "browser":
            tool = {"search": "browser_search", "fetch": "browser_goto", "note": "scratchpad"}.get(
                name, f"browser_{name}"
            )
        elif self.style == "words":
            tool = {"search": "WebSearch", "fetch": "WebFetch", "note": "Notes"}.get(name, name.title())
        self.say(tool, given, out, **notes)

    # --- acts ---

    def search(self, name: str, attribute: str = "", page: int = 0) -> None:
        """A search; the same question has many wordings, and the engine gives the same pages."""
        words = self.pick(
            (
                f"{name} {attribute}",
                f"{attribute} of {name}",
                f'"{name}" {attribute}',
                f"{name.lower()} {attribute} facts",
                f"what is the {attribute or 'story'} of {name}",
            )
        )
        words = " ".join(words.split())
        found = self.about(name)[page * 2 : page * 2 + 2]
        given: dict[str, Any] = {"query": words}
        if page:
            given["page"] = page + 1
        if self.chance(0.25):
            given["max_results"] = self.pick((2, 3, 5))
        if self.style == "tools":
            out = json.dumps(
                {
                    "results": [{"url": s.url, "title": s.title, "snippet": s.lines[1][:60]} for s in found],
                    "took": round(self.rng.uniform(0.1, 2), 2),
                    "id": self.hexed(8),
                }
            )
        else:
            out = f"About {self.rng.randint(20, 900)} results ({self.rng.uniform(0.1, 0.9):.2f} s)\n" + "\n".join(
                f"{n}. {s.title}\n   {s.url}\n   {s.lines[1][:60]}" for n, s in enumerate(found, 1 + 2 * page)
            )
        facts: list[tuple[str, ...]] = [("result", s.url) for s in found] or [("no result", name, str(page))]
        self.call("search", given, out, shows=facts)

    def nothing(self, topic: str, words: str) -> None:
        """A search that finds nothing."""
        out = json.dumps({"results": [], "id": self.hexed(8)}) if self.style == "tools" else f"No results for {words}."
        self.call("search", {"query": words}, out, shows=[("nothing", topic)])

    def fetch(self, site: Site, first: int = 0, last: int | None = None) -> None:
        """A page or a part of it, at its address or at one of the addresses under which it is known as well."""
        part = site.lines[first:last]
        url = self.pick(
            (site.url, site.url, site.url + "?print=1", site.url.replace("https://", "https://m."), site.url + "#top")
        )
        given: dict[str, Any] = {"url": url}
        if first or last:
            given |= {"from_line": first, "lines": len(part)}
        if self.style == "words":
            given["prompt"] = self.pick(("main facts", "numbers", f"facts about {site.about}", "summary"))
        out = "\n".join(part)
        if self.style == "tools":
            out = json.dumps({"status": 200, "url": url, "text": out, "fetched_at": self.rng.randint(10**9, 2 * 10**9)})
        elif self.style == "browser":
            out = f"[{site.title}]\n{out}\n(loaded in {self.rng.randint(90, 4000)} ms)"
        self.call("fetch", given, out, shows=[("read", site.url, line) for line in part])

    def note(self, name: str, attribute: str, text: str, void: bool = False) -> None:
        self.call(
            "note",
            {"key": f"{name} / {attribute}", "text": text},
            self.pick(("noted", "ok", "saved")),
            sets=((name, attribute), text),
            void=void,
        )

    def about(self, name: str) -> list[Site]:
        return [site for site in self.sites.values() if site.about == name]

    # --- work ---

    def work(self) -> Steps:
        for name in self.names:
            self.search(name)
            yield
            if self.chance(0.7):
                self.search(name, "", 1)
                yield
            for site in self.about(name):
                if self.chance(0.4):
                    half = len(site.lines) // 2
                    self.fetch(site, 0, half)
                    yield
                    self.fetch(site, half)
                else:
                    self.fetch(site)
                yield
                for attribute in self.wanted:
                    if attribute in site.tells and self.chance(0.4):
                        self.note(name, attribute, f"{site.tells[attribute]} ({site.url.split('/')[2]})")
                        yield
        for attribute in self.wanted:
            self.call(
                "table",
                {"column": attribute, "rows": [self.values[n, attribute] for n in self.names]},
                f"column {attribute}: {len(self.names)} rows",
                sets=("table", attribute),
            )
            yield
        for name in self.names:
            self.call(
                "cite",
                {"item": name, "urls": [s.url for s in self.about(name)][:2]},
                "2 sources stored",
                sets=("cite", name),
            )
            yield

    # --- stalls ---

    def stall_search_in_other_words(self) -> Steps:
        name, attribute = self.pick(self.names), self.pick(self.wanted)
        for _ in range(self.rng.randint(9, 15)):
            self.search(name, attribute)
            yield

    def stall_pages_again(self) -> Steps:
        sites = self.rng.sample(self.about(self.pick(self.names)), self.rng.randint(1, 3))
        looks = [partial(self.fetch, site) for site in sites]
        looks += [partial(self.fetch, site, 0, self.rng.randint(2, 4)) for site in sites if self.chance(0.6)]
        yield from self.again(looks, self.rng.randint(8, 14))

    def stall_nothing_to_find(self) -> Steps:
        """No page knows who designed it; the agent asks on."""
        name = self.pick(self.names)
        words = (
            "architect",
            "designer",
            "designed by",
            "who designed",
            "architect name",
            "designer biography",
            "architectural firm of",
        )
        for _ in range(self.rng.randint(9, 14)):
            word = self.pick(words)
            self.nothing(f"architect {name}", self.pick((f"{name} {word}", f"{word} {name}", f'{word} "{name}"')))
            yield

    def stall_note_to_and_fro(self) -> Steps:
        name, attribute = self.pick(self.names), self.wanted[0]
        value = self.values[name, attribute]
        texts = [f"{value}, two sources", f"{value + 1}, one source"]
        site = self.about(name)[0]
        self.fetch(site)
        yield
        for text in texts:
            self.note(name, attribute, text)
            yield
        for count in range(self.rng.randint(8, 12)):
            if self.chance(0.3):
                self.fetch(site)
            else:
                self.note(name, attribute, texts[count % 2], void=True)
            yield

    def stall_copy_waiting(self) -> Steps:
        number = self.hexed(7)

        def look(gap: float | None) -> None:
            out = json.dumps(
                {"job": number, "state": "in line", "place": 214, "asked": round(self.now), "nonce": self.hexed(4)}
            )
            self.call("archive_job", {"id": number}, out, wait=(number, 214), gap=gap)

        yield from self.waiting(look, self.rng.randint(17, 22), 22, 100)

    def stall_removed_page(self) -> Steps:
        """A copy that was lost for good."""
        number = self.rng.randint(10_000, 99_999)

        def look(gap: float | None) -> None:
            out = f"copy {number}: failed for good (robots), log {self.hexed(5)}, seen {self.rng.randint(2, 99)} s ago"
            self.call(
                "archive_job",
                {"id": number, self.pick(("verbose", "view")): self.pick((1, 2))},
                out,
                wait=(str(number), "failed"),
                final=True,
                gap=gap,
            )

        yield from self.waiting(look, self.rng.randint(9, 13), 5, 60)

    # --- cascades ---

    def refuse(self, name: str, given: dict[str, Any], why: str, cause: str) -> None:
        out = (
            json.dumps({"status": self.rng.choice((200, 200, 500)), "error": why, "id": self.hexed(8)})
            if self.style == "tools"
            else f"Error: {why}"
        )
        self.call(name, given, out, cause=cause, shows=[(cause, repr(given))], ok=self.chance(0.4))

    def cascade_site_down(self) -> Steps:
        acts = [
            partial(
                self.refuse,
                "fetch",
                {"url": f"https://stats.example/{self.thing.replace(' ', '-')}s/{n}"},
                self.pick(("stats.example: connection timed out", "could not connect to stats.example:443")),
                "stats host",
            )
            for n in ("index", "2029", "2028", "by-country", "largest", "oldest", "data.csv")
        ]
        yield from self.each(acts, self.rng.randint(4, 7))

    def cascade_paywall(self) -> Steps:
        acts = [
            partial(
                self.refuse,
                "fetch",
                {"url": f"https://journal.example/article/{self.rng.randint(100, 999)}-{name.split()[0].lower()}"},
                "HTTP 402: subscription needed for journal.example",
                "paywall",
            )
            for name in self.names * 2
        ]
        yield from self.each(acts, self.rng.randint(4, 7))

    def cascade_reader(self) -> Steps:
        """The tool for scans is not installed."""
        acts = [
            partial(
                self.refuse,
                "read_scan",
                {"file": f"scan-{n}.tif", "pages": self.pick(("1", "1-3", "all"))},
                "command 'ocr-core' not found",
                "ocr",
            )
            for n in range(12, 19)
        ]
        yield from self.each(acts, self.rng.randint(4, 6))

    def cascade_images(self) -> Steps:
        acts = [
            partial(
                self.refuse,
                "image_search",
                {"q": f"{name} {word}"},
                "monthly quota of image searches used up",
                "image quota",
            )
            for name in self.names
            for word in ("plan", "1920", "aerial")
        ]
        yield from self.each(acts, self.rng.randint(4, 7))

    def cascade_wrong_argument(self) -> Steps:
        """The register wants numbers of its own; the agent gives names."""
        acts = [
            partial(self.refuse, "register_lookup", {"key": key}, "key: expected pattern R-00000", "register key")
            for key in (*self.names, *(n.upper() for n in self.names), self.names[0].split()[0])
        ]
        yield from self.each(acts, self.rng.randint(4, 6))

    # --- look-alikes ---

    def alike_result_pages(self) -> Steps:
        name = self.pick(self.names)
        sites = [f"https://{self.pick(SITES)}/list/{n}" for n in range(1, self.rng.randint(6, 10))]
        for number, url in enumerate(sites, 1):
            out = json.dumps(
                {"results": [{"url": url, "title": f"List of {self.thing}s ({number})"}], "id": self.hexed(8)}
            )
            self.call(
                "search", {"query": f"list {self.thing}s near {name}", "page": number}, out, shows=[("list", url)]
            )
            yield

    def alike_names_without_hits(self) -> Steps:
        for place in self.rng.sample([p for p in PLACES if not any(p in n for n in self.names)], 4):
            self.nothing(place, f"{place} {self.thing}")
            yield

    def alike_five_say_the_same(self) -> Steps:
        """Five registers are asked at once, and all know the same year."""
        name = self.names[0]
        with self.turn():
            for number in range(1, 6):
                out = f"{name}: opened {self.values[name, 'opening year']}"
                self.call("register", {"region": number, "name": name}, out, shows=[("register", number)])
        yield

    def alike_gone_pages(self) -> Steps:
        """Addresses of different sites that are no longer there."""
        for host in self.rng.sample(SITES, 3):
            self.refuse(
                "fetch",
                {"url": f"https://{host}/old/{self.rng.randint(1, 99)}"},
                self.pick(("404 not found", "410 gone", "redirects without end")),
                f"gone {host}",
            )
            yield

    def alike_copy_comes(self) -> Steps:
        for _ in range(self.rng.randint(4, 8)):
            self.call("archive_job", {"id": "c1"}, "copying", wait=("c1", "copying"), gap=self.rng.uniform(25, 100))
            yield
        self.call("archive_job", {"id": "c1"}, "copied, 14 pages", wait=("c1", "copied"), gap=60)
        yield

    def alike_line_moves(self) -> Steps:
        place = self.rng.randint(12, 40)
        while place > 0:
            place = max(0, place - self.rng.choice((0, 2, 5, 9)))
            self.call(
                "archive_job",
                {"id": "c2"},
                json.dumps({"place": place}),
                wait=("c2", place),
                gap=self.rng.uniform(20, 50),
            )
            yield

    def alike_slow_engine(self) -> Steps:
        name = self.pick(self.names)

        def act(done: bool, gap: float) -> None:
            out = f"translated page about {name}" if done else f"Error: too many requests ({self.hexed(5)})"
            self.call(
                "translate",
                {"about": name},
                out,
                cause=None if done else "busy",
                clears=["busy"] if done else (),
                ok=done,
                shows=[("translated", name, done)],
                gap=gap,
            )

        yield from self.retrying(act, self.rng.randint(3, 4))

    def alike_page_in_parts(self) -> Steps:
        text = [
            f"{year}: {self.pick(FILLING)} ({self.rng.randint(100, 999)})"
            for year in range(1900, 1900 + self.rng.randint(24, 48))
        ]
        for first in range(0, len(text), 6):
            self.call(
                "fetch",
                {"url": "https://archive.example/chronicle", "from_line": first, "lines": 6},
                "\n".join(text[first : first + 6]),
                shows=[("chronicle", first)],
            )
            yield

    def alike_learns_the_register(self) -> Steps:
        """Three refusals, and then a key that is accepted."""
        for key in ("r10", "R10", "R-10")[: self.rng.randint(2, 3)]:
            self.refuse("monument_lookup", {"key": key}, "key: expected five digits", "monument key")
            yield
        self.call(
            "monument_lookup",
            {"key": f"{self.rng.randint(10000, 99999)}"},
            f"{self.names[0]}: listed since 1988",
            shows=["monument"],
            clears=["monument key"],
        )
        yield

    def alike_table_shown_now_and_then(self) -> Steps:
        for _ in range(self.rng.randint(3, 4)):
            self.call("show_sources", {}, "rules: two sources each, no forums", shows=["rules"])
            yield
            for _ in range(2):
                next(self.main, None)

    def alike_note_after_note(self) -> Steps:
        name = self.pick(self.names)
        text = "Remarks:"
        for line in self.rng.sample(FILLING, self.rng.randint(4, 6)):
            text += f" {line}"
            self.note(name, "remarks", text)
            yield


def trajectories(rng: Random) -> Iterator[Trace]:
    """Runs of an agent that looks things up."""
    return compose(KIND, Research, rng, drift=False)
