"""A desktop program for invoices, worked by screenshots, clicks and keys."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace

FIRMS = ["Abel & Sons", "Birkwerk", "Cobalt Ltd", "Dunn Optics", "Ekholm AB", "Fontana", "Gerlach KG", "Harrow Mills"]


class DesktopGui(Stage):
    """Windows have titles; every result describes what is on the screen now."""

    kind = "desktop_gui"
    styles = ("log",)
    paces = (3.0, 6.0, 11.0)

    def setup(self) -> None:
        self.firm, *self.others = self.some(FIRMS, 7)
        self.invoice = self.n(3000, 9999)
        self.app = self.pick("FakturaPro", "LedgerDesk 9", "BillWise")
        self.task = self.pick(
            (
                f"In {self.app}, enter the items of invoice {self.invoice} for {self.firm} from the paper that is on "
                "the desktop (scan.png)."
            ),
            f"{self.app}: customer {self.firm} has moved. New address in all open invoices of theirs.",
            f"Book the payments of {self.firm} against invoice {self.invoice} and print the statement",
        )

    def screen(self, window: str, focus: str) -> str:
        """Describe the screen."""
        return self.pick(
            f"[{self.app} - {window}] focus: {focus}",
            f"window='{window}' active='{focus}' cursor=({self.n(0, 1900)},{self.n(0, 1000)})",
            f"screenshot {self.n(1000, 9999)}.png: {window}; highlighted: {focus}",
        )

    def act(self, window: str, focus: str, **more: Any) -> None:
        """Click or look; type, where something is changed."""
        looks: list[tuple[str, dict[str, Any]]] = [
            ("click", {"x": self.n(1, 1900), "y": self.n(1, 1000)}),
            ("double_click", {"target": focus}),
            ("press", {"keys": self.pick("Tab", "F2", "Down", "alt+n")}),
        ]
        changes: list[tuple[str, dict[str, Any]]] = [
            ("type_text", {"text": focus}),
            ("press", {"keys": self.pick("Enter", "ctrl+s", "Delete", "ctrl+v")}),
        ]
        tool, args = self.pick(*(changes if more.get("change") or more.get("cause") else looks))
        self.call(tool, args, self.screen(window, focus), **more)

    def step(self) -> None:
        window = f"{self.pick('Invoice', 'Payments', 'Items')} {self.invoice} {self.firm}"
        kind = self.n(0, 3)
        if kind == 0:
            self.call("screenshot", {}, self.screen(window, f"row {self.n(1, 60)}: {self.x(1, 900, 2)}"))
        elif kind == 1:
            self.act(window, f"{self.pick('Quantity', 'Price', 'Text', 'VAT')} {self.n(1, 999)}", change=True)
        elif kind == 2:
            self.act(window, f"{self.pick('Street', 'City', 'Account', 'Due')} field {self.n(1, 99)}")
        else:
            self.call(
                "zoom",
                {"image": "scan.png", "box": [self.n(1, 900), self.n(1, 900), 300, 40]},
                f"{self.n(1, 40)} x {self.pick('hinge', 'lamp', 'hour', 'pallet', 'screw')} {self.x(1, 900, 2)}",
            )

    def drift_other_customers(self) -> None:
        """The wrong row in the list was opened; from there on all is somebody else's."""
        self.lead()
        other = self.pick(*self.others)
        for _ in self.times(9, 14):
            self.act(
                f"Invoice {self.n(1000, 2999)} {other}",
                f"{self.pick('Price', 'Text', 'Discount', 'Street')} {self.n(1, 999)}",
                out=True,
                change=self.chance(0.5),
            )
        self.tail()

    def drift_preferences(self) -> None:
        """Plays with the program's settings."""
        self.lead()
        self.gradually(
            lambda: self.act(
                f"Preferences > {self.pick('Fonts', 'Colours', 'Sounds', 'Backup', 'Toolbars', 'Language')}",
                f"option {self.n(1, 999)}",
                out=True,
                change=self.chance(0.6),
            ),
            16,
            24,
        )

    def drift_desktop_files(self) -> None:
        """Sorts files on the desktop into folders."""
        self.lead()
        for _ in self.times(8, 12):
            name = (
                f"{self.pick('holiday', 'Offer', 'cat', 'CV', 'menu', 'song')}_{self.n(1, 99)}."
                f"{self.pick('jpg', 'docx', 'mp3', 'pdf')}"
            )
            self.call(
                "drag",
                {"from": name, "to": self.pick("Pictures", "Old", "Misc", "Bin")},
                self.screen("Desktop", f"{name} moved"),
                out=True,
                change=True,
            )
            self.now_and_then()

    def drift_help_pages(self) -> None:
        """Reads the program's help from A to Z."""
        self.lead()
        for _ in self.times(9, 13):
            topic = self.pick(
                "Asset register", "Payroll", "Currencies", "Consolidation", "Barcodes", "Dunning", "Cash book", "Audit"
            )
            self.call(
                self.pick("click", "scroll"),
                {"target": topic, "n": self.n(1, 9)},
                self.screen(f"Help: {topic}", f"chapter {self.n(1, 40)}.{self.n(1, 9)}"),
                out=True,
            )
            self.now_and_then(0.1)
        self.tail()

    def stall_modal_below(self) -> None:
        """A dialogue behind the window swallows every key and click."""
        self.work(5, 10)
        for number in self.times(8, 14):
            tries: list[tuple[str, dict[str, Any]]] = [
                ("click", {"x": 812 + number, "y": 455}),
                ("press", {"keys": "ctrl+s"}),
                ("press", {"keys": "Enter"}),
                ("double_click", {"target": "Save"}),
                ("screenshot", {}),
                ("click", {"target": "Save"}),
            ]
            tool, args = self.pick(*tries)
            self.call(
                tool,
                args,
                self.pick(
                    f"[{self.app} - Invoice {self.invoice} *] focus: none",
                    f"window='Invoice {self.invoice} *' active=''",
                    "screen unchanged",
                ),
                new=number == 0,
            )
        self.tail()

    def stall_tab_between_fields(self) -> None:
        """Tab and shift-tab, and the same two fields."""
        self.work(4, 9)
        for number in self.times(8, 14):
            self.call(
                "press",
                {"keys": ["Tab", "shift+Tab"][number % 2]},
                f"[{self.app}] focus: {['Price 1', 'Text 1'][number % 2]}",
                new=number < 2,
            )

    def stall_hourglass(self) -> None:
        """The program hangs; the agent looks at the hourglass for half an hour."""
        self.work(4, 9)
        for number in self.times(14, 24):
            self.call(
                "screenshot",
                {"at": self.time()},
                f"[{self.app} (not responding)] hourglass",
                new=number == 0,
                wait="hang",
                gap=self.x(25, 100),
            )

    def cascade_read_only_company(self) -> None:
        """The file was opened read-only: saving, adding, booking."""
        self.work(5, 9)
        for _ in self.times(4, 9):
            field = f"{self.pick('Price', 'Text', 'Street', 'Payment')} {self.n(1, 999)}"
            self.act(
                self.pick(
                    f"Message: '{field}' cannot be changed (database is read-only)",
                    f"Error 3027 at {field}",
                    f"{field}: write access missing; record not kept",
                ),
                field,
                ok=self.chance(0.7),
                cause="readonly",
            )
            if self.chance(0.4):
                self.call("screenshot", {}, self.screen("Items", f"row {self.n(1, 600)}"))

    def cascade_automation_lost(self) -> None:
        """The remote session is gone; each tool fails with its own message."""
        self.work(5, 9)
        for _ in self.times(5, 9):
            tool = self.pick("click", "screenshot", "type_text", "press", "zoom")
            self.call(
                tool,
                {"n": self.n(1, 999)},
                self.pick(
                    f"{tool}: RDP session disconnected (0x{self.n(100, 999)})",
                    f"no display for {tool} [{self.n(1, 99)}]",
                    f"black image, {self.n(1, 99)} bytes",
                ),
                ok=self.chance(0.2),
                cause="session",
            )

    def healthy_row_by_row(self) -> None:
        """Each item of the invoice, three fields each."""
        for row in self.times(6, 10):
            for field in ("Text", "Quantity", "Price"):
                self.call(
                    "type_text",
                    {"text": str(self.n(1, 9999))},
                    f"[{self.app}] row {row + 1} {field} = {self.n(1, 9999)}",
                    change=True,
                )

    def healthy_save_dialogue(self) -> None:
        """Set-up, work, print, clean-up: windows that only serve the work."""
        for window in ("Login", "Choose company", "Main"):
            self.call("click", {"target": window}, self.screen(window, f"field {self.n(1, 99)}"), out=None)
        self.work(9, 16)
        for window in ("Print preview", "Printer", "Close company?"):
            self.call("click", {"target": window}, self.screen(window, f"button {self.n(1, 99)}"), out=None)

    def healthy_misses_and_hits(self) -> None:
        """Some clicks miss, and hit at the second or third try."""
        self.work(3, 5)
        for number in range(4):
            for _ in self.times(1, 2):
                self.call(
                    "click",
                    {"x": self.n(1, 1900), "y": self.n(1, 1000)},
                    f"nothing at this place, field {number} not in focus ({self.n(1, 999)})",
                    ok=False,
                    cause=f"miss{number}",
                )
            self.call(
                "click", {"target": f"field {number}"}, f"[{self.app}] focus: field {number}", needs=f"miss{number}"
            )
            self.work(1, 2)

    def healthy_print_progress(self) -> None:
        """Pages come out one after the other."""
        self.work(5, 9)
        for page in self.times(8, 14):
            self.call("screenshot", {}, f"[Printing] page {page + 1}", wait="print", new=True, gap=self.x(4, 40))
        self.work(2, 3)

    def healthy_plain(self) -> None:
        """Nothing special."""
        self.work(14, 30)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(DesktopGui, rng)
