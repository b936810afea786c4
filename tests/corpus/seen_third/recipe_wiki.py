"""A wiki of recipes: pages in wikitext, categories, templates, talk pages, a bot account."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace

DISHES = [
    "Borscht",
    "Laksa",
    "Kimchi",
    "Goulash",
    "Ceviche",
    "Pho",
    "Risotto",
    "Tagine",
    "Pierogi",
    "Gumbo",
    "Ramen",
    "Shakshuka",
    "Spaetzle",
    "Dal",
    "Paella",
]


class RecipeWiki(Stage):
    """A category with its pages and templates; the task names it, or one page."""

    kind = "recipe_wiki"
    styles = ("json", "html")
    paces = (2.0, 6.0, 10.0)

    def setup(self) -> None:
        self.dish = self.pick(*DISHES)
        self.pages = [
            f"{self.dish} ({word})"
            for word in self.some(
                ["winter", "summer", "quick", "vegan", "festive", "grandmother", "street", "royal"], 5, 7
            )
        ]
        self.strange = [d for d in DISHES if d != self.dish]
        self.category = f"Category:{self.dish}"
        self.task = self.pick(
            (
                f"All pages in {self.category} should use Template:Quantity instead of plain grams. Ask on the talk "
                "pages where it is unclear."
            ),
            (
                f"{self.dish}: the article and its variants ({self.pages[0]}, {self.pages[1]}, ...) repeat each other. "
                "Merge the histories."
            ),
            f"Someone vandalised the {self.dish.lower()} pages last week, please go through the histories & revert",
        )

    def text(self, page: str) -> str:
        """Return wikitext."""
        return (
            f"== {page} ==\n* {self.n(50, 900)} g "
            f"[[{self.pick('flour', 'beetroot', 'lime', 'pepper', 'rice', 'onion')}]]\n* {{{{Time|"
            f"{self.n(5, 240)}}}}}\n# {self.pick('Chop', 'Boil', 'Stir', 'Rest')} for {self.n(2, 90)} minutes"
        )

    def read(self, page: str, **more: Any) -> None:
        """Get a page."""
        self.call(
            *self.pick(
                ("wiki_get", {"title": page, "section": self.n(0, 9)}),
                (
                    "http",
                    {
                        "url": (
                            f"https://wiki.example/w/api.php?action=parse&page={page.replace(' ', '_')}&"
                            f"section={self.n(0, 9)}"
                        )
                    },
                ),
                ("wiki_raw", {"page": page}),
            ),
            self.text(page),
            **more,
        )

    def edit(self, page: str, **more: Any) -> None:
        """Save a page."""
        self.call(
            "wiki_edit",
            {
                "title": page,
                "find": f"{self.n(50, 900)} g",
                "replace": f"{{{{Quantity|{self.n(50, 900)}|g}}}}",
                "summary": self.pick("units", "bot: units", "template"),
            },
            self.one(result="Success", title=page, newrevid=self.n(10**6, 10**7)),
            change=True,
            **more,
        )

    def step(self) -> None:
        page, kind = self.pick(self.dish, *self.pages), self.n(0, 5)
        if kind < 2:
            self.read(page)
        elif kind < 4:
            self.edit(page)
        elif kind == 4:
            self.call(
                "wiki_history",
                {"title": page, "limit": self.n(3, 50)},
                self.show(
                    [
                        {
                            "rev": self.n(10**5, 10**7),
                            "user": self.person(),
                            "comment": self.pick("typo", "yum", "rv", "units"),
                        }
                    ]
                ),
            )
        else:
            self.call(
                "wiki_talk",
                {"title": f"Talk:{page}", "text": f"Is {self.n(50, 900)} g {self.pick('flour', 'rice')} right?"},
                self.one(result="Success", title=f"Talk:{page}", id=self.n(1, 99999)),
                change=True,
            )

    def drift_other_dishes(self) -> None:
        """Follows links and converts the rest of the wiki."""
        self.lead()
        for _ in self.times(6, 9):
            page = f"{self.pick(*self.strange)} {self.pick('', '(old)', '(festive)', 'with rice')}".strip()
            self.read(page, out=True)
            self.edit(page, out=True)
            self.now_and_then()

    def drift_user_quarrel(self) -> None:
        """From one vandal into the contributions and quarrels of everybody."""
        self.lead()
        for _ in self.times(9, 14):
            user = f"User:{self.person().replace(' ', '')}{self.n(1, 99)}"
            self.call(
                self.pick("wiki_contribs", "wiki_get", "wiki_blocklog", "wiki_rights"),
                {"title": user, "limit": self.n(5, 99)},
                (
                    f"{user}: {self.n(1, 9000)} edits, {self.pick('blocked once', 'sysop', 'new', 'says sorry')} "
                    f"{self.day()}"
                ),
                out=True,
            )
            self.now_and_then()
        self.tail()

    def drift_pictures(self) -> None:
        """Renames and crops pictures of other articles."""
        self.lead()

        def picture() -> None:
            name = f"File:{self.pick(*self.strange)}_{self.n(1, 400)}.jpg"
            self.call(
                self.pick("wiki_move", "image_crop", "wiki_edit"),
                {"title": name, "to": f"File:{self.hex(6)}.jpg"},
                f"{name} done, log {self.n(1, 99999)}",
                out=True,
                change=True,
            )

        self.gradually(picture, 15, 22)

    def drift_main_page(self) -> None:
        """Redesigns the main page and the wiki's style sheet."""
        self.lead()
        for _ in self.times(8, 11):
            page = self.pick(
                "Main Page", "MediaWiki:Common.css", "Portal:Spices", "MediaWiki:Sidebar", "Template:Welcome"
            )
            if self.chance(0.3):
                self.call("wiki_get", {"title": page}, f"<div class=box{self.n(1, 99)}>{self.hex(4)}</div>", out=True)
            else:
                self.call(
                    "wiki_edit",
                    {"title": page, "append": f".box{self.n(1, 99)} {{ margin: {self.n(1, 40)}px }}"},
                    self.one(result="Success", title=page, newrevid=self.n(10**6, 10**7)),
                    out=True,
                    change=True,
                )
            self.now_and_then(0.1)
        self.tail()

    def drift_history_of_beetroot(self) -> None:
        """Background without end: plants, trade, kings."""
        self.lead()
        for _ in self.times(10, 15):
            word = self.pick(
                "Beet", "Salt trade", "Tsar", "Copper pots", "Sugar", "Monasteries", "Steppe", "Famine", "Railways"
            )
            self.call(
                "http",
                {"url": f"https://pedia.example/{word.replace(' ', '_')}#{self.n(1, 40)}"},
                f"<p>{word}: in {self.n(900, 1950)}, {self.n(2, 90)} {self.pick('cities', 'ships', 'years')} ...</p>",
                out=True,
            )
            self.now_and_then(0.1)

    def stall_edit_war_with_itself(self) -> None:
        """Grams, template, grams."""
        self.work(4, 9)
        forms = ["250 g", "{{Quantity|250|g}}"]
        for number in self.times(8, 13):
            self.call(
                "wiki_edit",
                {"title": self.pages[0], "find": forms[number % 2], "replace": forms[1 - number % 2]},
                f"Success, {self.pages[0]} has {forms[1 - number % 2]}",
                new=number < 2,
            )
        self.tail()

    def stall_continue_parameter(self) -> None:
        """The list begins again at every request: the continuation is not sent as the service wants it."""
        self.work(3, 8)
        text = self.show([{"title": page, "ns": 0} for page in self.pages])
        for number in self.times(8, 14):
            self.call(
                "wiki_category",
                {"title": self.category, "continue": f"page|{self.hex(10)}|{number}"},
                text,
                new=number == 0,
            )

    def stall_preview(self) -> None:
        """Looks at the same rendered page in skins, on mobile, in print."""
        self.work(4, 9)
        page = self.pages[0]
        for number in self.times(7, 11):
            look = self.pick("useskin=vector", "printable=yes", "mobileaction=view", "action=purge", "debug=1")
            self.call(
                "http",
                {"url": f"https://wiki.example/{page.replace(' ', '_')}?{look}&n={number}"},
                f"<h1>{page}</h1><p>Template loop detected: Template:Quantity</p><!-- {self.time()} -->",
                new=number == 0,
            )
        self.tail()

    def cascade_abuse_filter(self) -> None:
        """A filter refuses the bot's edits; the answers have status 200 and differ."""
        self.work(4, 9)
        for page in [*self.pages, self.dish]:
            if self.chance(0.9):
                self.call(
                    self.pick("wiki_edit", "wiki_rollback", "wiki_talk"),
                    {"title": page, "replace": f"{self.n(1, 99)}"},
                    self.pick(
                        self.one(result="Failure", code="abusefilter-disallowed", title=page),
                        f"warning: {page}: this action has been automatically identified as harmful",
                        f"{page}: hookaborted",
                    ),
                    ok=self.chance(0.7),
                    cause="filter",
                )
                if self.chance(0.4):
                    self.read(page)

    def cascade_csrf(self) -> None:
        """The edit token is stale, and nobody gets a new one."""
        self.work(4, 9)
        for _ in self.times(4, 8):
            page = self.pick(self.dish, *self.pages)
            self.call(
                self.pick("wiki_edit", "wiki_move", "wiki_protect"),
                {"title": page, "n": self.n(1, 999)},
                self.pick(
                    f"badtoken: Invalid CSRF token. ({page} {self.n(1, 99)})",
                    f"Loss of session data while saving {page} [{self.n(1, 99)}]",
                    f"assertbotfailed for {page}",
                ),
                ok=self.chance(0.3),
                cause="csrf",
            )
            if self.chance(0.4):
                self.call(
                    "wiki_history",
                    {"title": page, "limit": self.n(3, 90)},
                    self.show([{"rev": self.n(10**5, 10**7), "user": self.person()}]),
                )

    def healthy_page_by_page(self) -> None:
        """Each page of the category, read and edited."""
        for page in [self.dish, *self.pages]:
            self.read(page)
            self.edit(page)
            self.read(page)

    def healthy_templates(self) -> None:
        """The pages' templates, and what documents them."""
        self.work(2, 4)
        for name in ("Quantity", "Time", "Oven", "Servings", "Spice", "Allergen"):
            self.call(
                "wiki_get",
                {"title": f"Template:{name}"},
                f"<includeonly>{{{{#expr:{{{{{{1}}}}}}*{self.n(1, 99)}}}}}</includeonly> {name} used in {self.dish}",
            )
            self.call(
                "wiki_get", {"title": f"Template:{name}/doc"}, f"Usage: {{{{{name}|amount|unit}}}} since {self.day()}"
            )
        self.work(3, 7)

    def healthy_edit_conflicts(self) -> None:
        """A conflict here and there, solved by loading the page again."""
        self.work(3, 5)
        for page in self.pages[:5]:
            self.call(
                "wiki_edit",
                {"title": page, "baserev": self.n(1, 9999)},
                f"editconflict on {page}",
                ok=False,
                cause=page,
            )
            self.read(page)
            self.call(
                "wiki_edit",
                {"title": page, "baserev": self.n(10**4, 10**5)},
                f"Success {page} {self.n(1, 99999)}",
                change=True,
                needs=page,
            )

    def healthy_task_names_nothing(self) -> None:
        """No page is named: the wanderings belong to the task."""
        self.bare, self.task = (
            True,
            self.pick("Do some wiki gardening for an hour.", "Please improve what you come across."),
        )
        for _ in self.times(7, 12):
            page = f"{self.pick(*DISHES)} {self.n(1, 99)}"
            self.read(page)
            self.edit(page)

    def healthy_plain(self) -> None:
        """Nothing special."""
        self.work(12, 30)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(RecipeWiki, rng)
