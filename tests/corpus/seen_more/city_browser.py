"""A browser agent in the portals of a city; pages are HTML or text, in several languages."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.corpus.seen_more.world import Place, Scene, Shape, stories
from tests.corpus.trace import Trace

KIND = "city_browser"

AREAS = {
    "waste": ["bulky", "calendar", "bins", "glass", "appeal"],
    "parking": ["permit", "zones", "fines", "guests", "appeal"],
    "trees": ["felling", "register", "watering", "damage"],
    "schools": ["enrol", "meals", "transport", "districts"],
    "housing": ["register", "certificate", "subsidy", "move"],
    "culture": ["halls", "grants", "library", "music"],
}
TEXTS = ["Antrag", "solicitud", "demande", "form", "notice", "Gebuehr", "plazo", "delai", "opening hours", "fee"]
SITE = "https://service.city.example"


class Portal(Scene):
    """Pages in areas; a task that names an address, an area, a case number, or nothing."""

    def __init__(self, rng: random.Random) -> None:
        """Choose the task."""
        super().__init__(rng)
        self.area = rng.choice(list(AREAS))
        self.sub = rng.choice(AREAS[self.area])
        self.case = rng.randint(1000, 9000)
        self.form = rng.choice(["url", "area", "words", "case", "case", "nothing"])
        self.task = {
            "url": f"Fill in the form at {SITE}/{self.area}/{self.sub}/ for the household in the profile.",
            "area": f"Everything under {SITE}/{self.area}/ shall be checked for broken pages and old fees.",
            "words": f"I want to know what the city wants from me for {self.area} ({self.sub}) and have it handed in.",
            "case": f"Case {self.case}: hand in the missing papers and see that it is accepted.",
            "nothing": "Mira si hay algo nuevo en el portal que me interese.",
        }[self.form]
        self.number = 0
        self.ref = 10

    def home(self) -> str:
        """The address that the work is about."""
        if self.form == "case":
            return f"{SITE}/cases/{self.case}"
        if self.form in ("area", "nothing"):
            area = self.area if self.form == "area" else self.rng.choice(list(AREAS))
            return f"{SITE}/{area}/{self.rng.choice(AREAS[area])}"
        return f"{SITE}/{self.area}/{self.sub}"

    def other(self) -> str:
        """An address that has nothing to do with the task."""
        if self.form == "case" and self.rng.random() < 0.6:
            return f"{SITE}/cases/{self.case + self.rng.randint(1, 9)}"
        area = self.rng.choice([area for area in AREAS if area != self.area])
        return f"{SITE}/{area}/{self.rng.choice(AREAS[area])}"

    def place(self, inside: bool) -> Place:
        """Say how a page belongs to the task."""
        return "" if self.form == "nothing" else "in" if inside else "out"

    def page(self, base: str) -> str:
        """Write a page that was not seen before."""
        rng = self.rng
        self.number += 1
        rows = "\n".join(
            f"<li><a ref=e{self.ref + n} href='{base}/{rng.choice(TEXTS)}-{rng.randint(1, 999)}'>"
            f"{rng.choice(TEXTS)} {rng.randint(2, 90)} EUR</a></li>"
            for n in range(rng.randint(2, 9))
        )
        self.ref += 10
        name = base.rsplit("/", 2)[-2:]
        return f"<title>{' '.join(name)} - page {self.number}</title>\n<ul>\n{rows}\n</ul>\n<!-- {self.run.time()} -->"

    def visit(self, base: str, inside: bool) -> None:
        """Open a new page below this address."""
        self.number += 1
        url = f"{base}/{self.rng.choice(TEXTS).replace(' ', '-')}-{self.number}"
        self.run.call("browser_goto", {"url": url}, self.page(base), place=self.place(inside), clears="site")

    def fill(self, base: str, inside: bool) -> None:
        """Fill in a field, or send a form, that was not touched before."""
        self.number += 1
        rng, at = self.rng, self.place(inside)
        if rng.random() < 0.6:
            args = {"page": f"{base}/form", "field": f"f{self.number}", "value": f"{rng.choice(TEXTS)} {self.number}"}
            self.run.call("browser_type", args, f"[e{self.number}] value set", place=at, change=True)
        else:
            args = {"page": f"{base}/form", "ref": f"e{self.number}", "label": rng.choice(["Next", "Weiter", "Enviar"])}
            said = f"Schritt {self.number} gespeichert. Ref. {self.run.hexid(6)}"
            self.run.call("browser_click", args, said, place=at, change=True, clears="login")

    def step(self) -> None:
        """Read, or fill in."""
        self.visit(self.home(), True) if self.rng.random() < 0.6 else self.fill(self.home(), True)

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall."""
        rng, base = self.rng, self.home()
        at = self.place(True)

        def presses_a_button_that_does_nothing() -> None:
            said = [
                "Page unchanged.",
                "(no navigation, no change of the document)",
                "Click dispatched; DOM diff: 0 nodes",
            ]
            ways = [("browser_click", "text=Send"), ("browser_click", "#submit"), ("browser_press", "Enter")]
            ways += [
                ("browser_click", "button[type=submit]"),
                ("browser_eval", "form.submit()"),
                ("browser_click", "xy=611,402"),
            ]
            for number in range(rng.randint(8, 15)):
                tool, what = rng.choice(ways)
                self.run.call(
                    tool, {"page": f"{base}/form", "target": what}, rng.choice(said), fresh=number == 0, place=at
                )
                if number == 4 and rng.random() < 0.4:
                    self.visit(base, True)

        def searches_the_portal_in_six_languages() -> None:
            words = [
                "exemption",
                "Befreiung",
                "exencion",
                "exoneration",
                "waiver",
                "fee waiver",
                "Gebuehrenbefreiung",
                "exempt",
            ]
            nothing = [
                "0 Treffer",
                "Sin resultados",
                "Aucun resultat",
                "No results for your search",
                "<p class='none'></p>",
            ]
            for number in range(rng.randint(8, 14)):
                word = rng.choice(words)
                url = rng.choice(
                    [f"{SITE}/search?q={word}", f"{SITE}/suche?text={word}&seite=1", f"{SITE}/buscar/{word}"]
                )
                self.run.call("browser_goto", {"url": url}, rng.choice(nothing), fresh=number == 0)

        def reloads_the_decision() -> None:
            state = rng.choice(["In Bearbeitung", "en tramite", "received"])
            for _ in range(rng.randint(17, 26)):
                said = f"<h1>{state}</h1><p>Stand: {self.run.time()}</p>"
                self.run.call(
                    "browser_goto", {"url": f"{base}/status"}, said, watch="case", place=at, gap=rng.uniform(22, 80)
                )

        def looks_at_one_page_in_all_ways() -> None:
            fee = rng.randint(20, 90)
            ways = [
                ("browser_snapshot", f"- heading 'Fees'\n- text '{fee} EUR' [ref=e{{n}}]"),
                ("browser_text", f"Fees\n{fee} EUR"),
                ("browser_html", f"<h1>Fees</h1><td id=x{{n}}>{fee} EUR</td>"),
                ("browser_scroll", f"... {fee} EUR (bottom of page)"),
                ("browser_find", f"1 match: '{fee} EUR'"),
            ]
            for number in range(rng.randint(8, 14)):
                tool, said = rng.choice(ways)
                text = said.replace("{n}", str(number)).replace("{{", "").replace("}}", "")
                self.run.call(tool, {"page": f"{base}/fees"}, text, fresh=number == 0, place=at)

        return [
            presses_a_button_that_does_nothing,
            searches_the_portal_in_six_languages,
            reloads_the_decision,
            looks_at_one_page_in_all_ways,
        ]

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng, base = self.rng, self.home()

        def the_session_has_ended() -> None:
            for _ in range(rng.randint(4, 8)):
                self.number += 1
                said = rng.choice(
                    [
                        "<title>Anmeldung</title><p>Ihre Sitzung ist abgelaufen. Bitte melden Sie sich an.</p>",
                        "Su sesion ha caducado. Inicie sesion de nuevo.",
                        '<meta http-equiv=refresh content="0;url=/login"><b>401</b>',
                        "Saved: no. Reason: not signed in",
                    ]
                )
                args = {
                    "page": f"{base}/form",
                    "ref": f"e{self.number}",
                    "label": rng.choice(["Save", "Next", "Upload"]),
                }
                self.run.call(
                    "browser_click", args, said, ok=rng.random() < 0.85, cause="login", place=self.place(True)
                )
                self.visit(base, True)
            if rng.random() < 0.3:
                self.run.call("browser_type", {"page": f"{SITE}/login", "field": "pin", "value": "****"}, "Willkommen")
                self.fill(base, True)

        def the_site_is_being_mended() -> None:
            for _ in range(rng.randint(4, 8)):
                self.number += 1
                said = rng.choice(
                    [
                        "<html><h1>503</h1>Wartungsarbeiten bis auf Weiteres</html>",
                        "net::ERR_CONNECTION_REFUSED",
                        "<html><body>Service Temporarily Unavailable - proxy2</body></html>",
                        "Navigation timeout of 30000 ms exceeded",
                    ]
                )
                url = f"{base}/{rng.choice(TEXTS).replace(' ', '-')}-{self.number}"
                self.run.call(
                    "browser_goto", {"url": url}, said, ok=rng.random() < 0.6, cause="site", place=self.place(True)
                )
                if rng.random() < 0.7:
                    self.run.call("notes_append", {"text": f"{url} to be visited later"}, f"{self.number} notes")

        def the_upload_is_too_large() -> None:
            for _ in range(rng.randint(4, 6)):
                self.number += 1
                args = {"page": f"{base}/form", "file": f"/srv/agent/scan-{self.number % 3}.pdf", "slot": self.number}
                said = rng.choice(
                    ["Datei zu gross (max. 2 MB)", "Error: 413 Request Entity Too Large", "El archivo supera 2 MB"]
                )
                self.run.call(
                    "browser_upload", args, said, ok=rng.random() < 0.7, cause="upload", place=self.place(True)
                )
                self.step()

        def tries_the_login_in_vain() -> None:
            for number in range(rng.randint(7, 12)):
                said = rng.choice(
                    ["PIN falsch. Konto gesperrt.", "<p class=err>Konto gesperrt (PIN)</p>", "cuenta bloqueada"]
                )
                args = {"page": f"{SITE}/login", "field": "pin", "value": "****"}
                self.run.call("browser_type", args, said, ok=rng.random() < 0.8, cause="pin", fresh=number == 0)

        def waits_longer_and_longer_in_vain() -> None:
            gap = rng.uniform(4, 8)
            for _ in range(rng.randint(6, 8)):
                said = rng.choice(["<h1>502</h1>", "<h1>502 Bad Gateway</h1>proxy2", "net::ERR_EMPTY_RESPONSE"])
                args = {"page": f"{base}/form", "ref": "send", "label": "Send"}
                self.run.call("browser_click", args, said, cause="send", place=self.place(True), gap=gap)
                gap *= rng.uniform(1.3, 1.8)
                self.run.call("notes_append", {"text": f"tried at {self.run.time()}"}, f"{self.number} notes")
                self.number += 1

        return [
            waits_longer_and_longer_in_vain,
            tries_the_login_in_vain,
            the_session_has_ended,
            the_site_is_being_mended,
            the_upload_is_too_large,
        ]

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task."""
        if self.form == "nothing":
            return ()
        rng = self.rng

        def clicks_through_other_offices() -> None:
            for _ in range(rng.randint(12, 20)):
                self.visit(self.other(), False)
                if rng.random() < 0.1:
                    self.step()

        def hands_in_other_forms() -> None:
            for _ in range(rng.randint(2, 4)):
                base = self.other()
                self.visit(base, False)
                for _ in range(rng.randint(2, 3)):
                    self.fill(base, False)

        def settles_the_neighbouring_cases() -> None:
            for number in range(1, rng.randint(5, 8)):
                base = f"{SITE}/cases/{self.case + number}"
                self.visit(base, False)
                self.fill(base, False)
                if rng.random() < 0.3:
                    self.step()

        return [clicks_through_other_offices, hands_in_other_forms, settles_the_neighbouring_cases]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        rng, base = self.rng, self.home()
        at = self.place(True)

        def pages_of_a_list() -> None:
            for number in range(1, rng.randint(5, 9)):
                self.run.call("browser_goto", {"url": f"{base}?page={number}"}, self.page(base), place=at)

        def the_site_comes_back() -> None:
            gap = 4.0
            for _ in range(rng.randint(2, 4)):
                self.run.call("browser_goto", {"url": f"{base}/"}, "<h1>503</h1>", cause="site", place=at, gap=gap)
                gap *= 2.1
            self.run.call("browser_goto", {"url": f"{base}/"}, self.page(base), clears="site", place=at, gap=gap)

        def waits_in_the_queue() -> None:
            left = rng.randint(30, 60)
            while left > 0:
                more = rng.choice([0, 4, 11])
                left -= more
                said = f"Sie sind Nummer {max(left, 0)} in der Warteschlange ({self.run.time()})"
                self.run.call(
                    "browser_snapshot",
                    {"page": f"{base}/queue"},
                    said,
                    watch="queue",
                    moved=more > 0,
                    gap=rng.uniform(21, 60),
                )

        def takes_three_pictures() -> None:
            for _ in range(3):
                self.run.call("browser_screenshot", {}, "[image 1280x800]")
            self.work(4)

        def looks_around_the_portal_first() -> None:
            if len(self.run.calls) < 2:
                for _ in range(6):
                    self.visit(self.other(), False)
            self.work(6)

        def asks_at_another_office_on_the_way() -> None:
            for _ in range(rng.randint(2, 4)):
                self.visit(self.other(), False)
            for _ in range(5):
                self.step()

        def ticks_many_boxes() -> None:
            for number in range(rng.randint(6, 10)):
                args = {"page": f"{base}/form", "ref": f"e7{number}"}
                self.run.call("browser_check", args, "checked", place=at, change=True)

        def the_form_wants_one_thing_after_the_other() -> None:
            for field in rng.sample(["IBAN", "birthday", "floor", "tax no.", "signature", "phone"], rng.randint(4, 6)):
                said = rng.choice([f"Bitte ausfuellen: {field}", f"<b>Error</b>: field '{field}' is required"])
                self.run.call("browser_click", {"page": f"{base}/form", "ref": "send"}, said, cause=field, place=at)
                args = {"page": f"{base}/form", "field": field, "value": f"value {self.number}"}
                self.run.call("browser_type", args, "set", place=at, change=True, clears=field)
            self.run.call(
                "browser_click", {"page": f"{base}/form", "ref": "send"}, "Vielen Dank!", place=at, change=True
            )

        return [
            the_form_wants_one_thing_after_the_other,
            pages_of_a_list,
            the_site_comes_back,
            waits_in_the_queue,
            takes_three_pictures,
            looks_around_the_portal_first,
            asks_at_another_office_on_the_way,
            ticks_many_boxes,
        ]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Portal, rng)
