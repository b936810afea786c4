"""A small firm's tax return in a workbook: sheets, cells, formulas, and receipts that cells refer to."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace

SHEETS = ["VAT", "Travel", "Wages", "Rent", "Assets", "Meals", "Phone", "Loans", "Stock", "Cars"]


class TaxWorkbook(Stage):
    """One sheet is to be finished; it refers to the rates and to its own receipts."""

    kind = "tax_workbook"
    styles = ("csv", "table", "json")

    def setup(self) -> None:
        self.sheet, *self.others = self.some(SHEETS, 7)
        self.book = self.pick("Return2025.xlsx", "steuer_2025.ods", "FY25-final-v3.xlsx")
        self.rows = self.n(30, 400)
        self.task = self.pick(
            (
                f"{self.book}, sheet {self.sheet}: the total does not match the bank. Find the wrong rows and correct "
                "them."
            ),
            f"Fill column F of '{self.sheet}' in {self.book} from the receipts. Leave the other sheets as they are.",
            (
                f"In {self.book} check {self.sheet}!A2:H{self.rows} against receipts/{self.sheet.lower()}/, mark "
                "doubts in column H"
            ),
        )

    def get(self, area: str, result: str, **more: Any) -> None:
        """Read cells."""
        self.call("sheet_get", {"file": self.book, "range": area}, result, **more)

    def put(self, area: str, value: Any, **more: Any) -> None:
        """Write a cell."""
        self.call(
            "sheet_set", {"file": self.book, "range": area, "value": value}, f"{area} = {value}", change=True, **more
        )

    def line(self, sheet: str) -> tuple[str, str]:
        """Return a range and what stands there."""
        row = self.n(2, 400)
        return f"{sheet}!A{row}:H{row + 1}", self.show(
            [
                {
                    "r": row,
                    "date": self.day(),
                    "for": self.pick("ticket", "lunch", "paper", "fuel", "screws", "fee"),
                    "eur": self.x(1, 900, 2),
                }
            ]
        )

    def step(self) -> None:
        kind = self.n(0, 4)
        if kind < 2:
            self.get(*self.line(self.sheet))
        elif kind == 2:
            self.put(
                f"{self.sheet}!{self.pick('D', 'F', 'H')}{self.n(2, 400)}",
                self.pick(self.x(1, 900, 2), f"=E{self.n(2, 400)}*Rates!B{self.n(2, 9)}"),
            )
        elif kind == 3:
            name = f"receipts/{self.sheet.lower()}/{self.day()}-{self.n(1, 99)}.pdf"
            self.call(
                "read_pdf",
                {"path": name},
                (
                    f"{self.pick('Receipt', 'Rechnung', 'Facture')} {self.n(1000, 99999)}\nTotal {self.x(1, 900, 2)} "
                    f"EUR, VAT {self.pick(7, 10, 19, 20)} %"
                ),
            )
        else:
            self.call(
                "sheet_formula",
                {"file": self.book, "cell": f"{self.sheet}!F{self.n(2, 400)}"},
                f"=ROUND(E{self.n(2, 400)}*Rates!$B${self.n(2, 9)},2)",
            )

    def drift_sheet_by_sheet(self) -> None:
        """The other sheets of the same workbook: the right file, another question."""
        self.lead()
        for sheet in self.others:
            for _ in self.times(1, 3):
                self.get(*self.line(sheet), out=True)
            if self.chance(0.6):
                self.put(f"{sheet}!{self.pick('D', 'F')}{self.n(2, 400)}", self.x(1, 900, 2), out=True)
            self.now_and_then()

    def drift_make_it_pretty(self) -> None:
        """Colours, widths and charts on the cover and the summary."""
        self.lead()
        for _ in self.times(8, 13):
            sheet = self.pick("Cover", "Summary", "Charts", "Index")
            changes: list[tuple[str, dict[str, Any]]] = [
                ("sheet_format", {"fill": f"#{self.hex(6)}"}),
                ("sheet_width", {"px": self.n(40, 400)}),
                ("chart_insert", {"type": self.pick("pie", "bar", "line")}),
                ("sheet_rename", {"to": f"{sheet} {self.n(2, 99)}"}),
            ]
            tool, what = self.pick(*changes)
            self.call(
                tool,
                {"file": self.book, "range": f"{sheet}!{self.pick(*'ABCDEFG')}{self.n(1, 60)}", **what},
                f"{sheet}: {tool} done ({self.n(1, 9999)} cells)",
                out=True,
                change=True,
            )
            self.now_and_then(0.1)
        self.tail()

    def drift_last_years(self) -> None:
        """Opens returns of earlier years, one by one, and begins to correct them."""
        self.lead()
        for _ in self.times(8, 12):
            book = f"archive/Return{self.n(2009, 2023)}.xlsx"
            cell = f"{self.pick(*self.others)}!{self.pick(*'ABCDEF')}{self.n(2, 300)}"
            if self.chance(0.7):
                self.call(
                    "sheet_get", {"file": book, "range": cell}, f"{cell} {self.x(1, 9000, 2)} ({book[14:18]})", out=True
                )
            else:
                self.call(
                    "sheet_set",
                    {"file": book, "range": cell, "value": self.x(1, 900, 2)},
                    f"{book} {cell} set",
                    out=True,
                    change=True,
                )
            self.now_and_then()

    def drift_tax_law(self) -> None:
        """Reads sections of law about things that the sheet does not have."""
        self.lead()
        for _ in self.times(9, 14):
            law, section = (
                self.pick("Inheritance", "Customs", "Land", "Church", "Beer", "Gambling", "Ship tonnage"),
                self.n(1, 180),
            )
            self.call(
                "law_text",
                {"act": f"{law} Tax Act", "section": section},
                (
                    f"Section {section}. {law} tax is due within {self.n(2, 90)} {self.pick('days', 'weeks')} unless "
                    f"({self.n(1, 9)}) applies."
                ),
                out=True,
            )
            self.now_and_then()
        self.tail()

    def stall_recalculate(self) -> None:
        """Recalculates in many ways and looks at the same wrong total."""
        self.work(5, 9)
        total = self.x(1000, 90000, 2)
        for number in self.times(8, 13):
            tool, args, text = self.pick(
                ("sheet_recalc", {"file": self.book, "hard": number % 2 == 0}, f"F{self.rows} = {total}"),
                ("sheet_get", {"file": self.book, "range": f"{self.sheet}!F{self.rows}"}, f"{total}"),
                ("run_python", {"code": f"wb['{self.sheet}']['F{self.rows}'].value"}, f"{total}"),
                ("sheet_sum", {"file": self.book, "range": f"{self.sheet}!F2:F{self.rows - 1}"}, f"sum {total}"),
            )
            self.call(tool, args, text, new=number == 0)
        self.tail()

    def stall_two_formulas(self) -> None:
        """Writes one formula, then the other, then the first."""
        self.work(4, 9)
        cell, pair = f"{self.sheet}!F{self.n(2, 90)}", ["=E2*Rates!B2", "=ROUND(E2*0.19,2)"]
        for number in self.times(9, 14):
            if number % 3 == 2:
                self.get(cell, f"{cell} #REF!", new=number == 2)
            else:
                self.call(
                    "sheet_set",
                    {"file": self.book, "range": cell, "value": pair[number % 2]},
                    f"{cell} = #REF!",
                    new=number < 2,
                )

    def stall_overlapping_ranges(self) -> None:
        """Reads the same ten rows in ranges that overlap."""
        self.work(4, 8)
        rows = [{"r": n, "eur": self.x(1, 900, 2)} for n in range(20, 30)]
        self.get(f"{self.sheet}!A20:H29", self.show(rows))
        for _ in self.times(7, 11):
            low, high = self.n(0, 4), self.n(6, 9)
            self.get(f"{self.sheet}!A{20 + low}:H{20 + high}", self.show(rows[low : high + 1]), new=False)

    def cascade_file_locked(self) -> None:
        """The workbook is open elsewhere; saving fails whatever was set."""
        self.work(5, 9)
        for _ in self.times(5, 9):
            cell = f"{self.sheet}!{self.pick('D', 'F', 'H')}{self.n(2, 400)}"
            text = self.pick(
                f"PermissionError: [Errno 13] {self.book} ({cell})",
                f"{cell} not saved: file is in use by 'Buchhaltung'",
                self.one(cell=cell, saved=False, lock="~$Return"),
            )
            self.call(
                self.pick("sheet_set", "sheet_append", "run_python"),
                {"file": self.book, "range": cell, "value": self.x(1, 90, 2)},
                text,
                ok=self.chance(0.4),
                cause="lock",
            )
            if self.chance(0.4):
                self.get(*self.line(self.sheet))

    def cascade_ocr(self) -> None:
        """Text recognition is not installed: each receipt fails in a way of its own."""
        self.work(3, 8)
        for _ in self.times(4, 8):
            name = f"receipts/{self.sheet.lower()}/scan{self.n(1, 999):03}.jpg"
            text = self.pick(
                f"TesseractNotFoundError: {name}",
                f"ocr: [Errno 2] No such file or directory: 'tesseract' ({name})",
                f"{name}: empty text layer, ocr backend unavailable",
            )
            self.call(
                self.pick("read_pdf", "ocr_image", "run_python"), {"path": name}, text, ok=self.chance(0.3), cause="ocr"
            )
            if self.chance(0.3):
                self.get(*self.line(self.sheet))

    def cascade_locale(self) -> None:
        """Decimal points where the program wants commas: one wrong assumption, each cell another message."""
        self.work(4, 9)
        for _ in self.times(4, 8):
            cell = f"{self.sheet}!F{self.n(2, 400)}"
            self.call(
                "sheet_set",
                {"file": self.book, "range": cell, "value": f"=ROUND({self.x(1, 99, 2)};2)"},
                self.pick(
                    f"{cell}: Err:508",
                    f"parse error in formula at {cell} (character {self.n(2, 9)})",
                    f"{cell} kept as text",
                ),
                ok=self.chance(0.5),
                cause="locale",
            )
            if self.chance(0.4):
                self.get(*self.line(self.sheet))

    def healthy_column_filled(self) -> None:
        """Cell after cell of one column."""
        for row in range(2, self.n(18, 30)):
            self.put(f"{self.sheet}!F{row}", self.x(1, 900, 2))
        self.work(1, 4)

    def healthy_halving(self) -> None:
        """Looks for the wrong row by sums of halves."""
        self.work(1, 3)
        low, high = 2, self.rows + 300
        while high - low > 1:
            middle = (low + high) // 2
            self.call(
                "sheet_sum", {"file": self.book, "range": f"{self.sheet}!F{low}:F{middle}"}, f"{self.x(1, 99999, 2)}"
            )
            low, high = self.pick((low, middle), (middle, high))
        self.work(4, 8)

    def healthy_referred_sheet(self) -> None:
        """The sheet's formulas refer to rates and accounts; those cells are read, too."""
        self.work(2, 5)
        for row in self.some(range(2, 30), 7, 10):
            self.call("sheet_formula", {"file": self.book, "cell": f"{self.sheet}!F{row}"}, f"=E{row}*Rates!$B${row}")
            self.get(f"Rates!B{row}", f"{self.x(0, 1, 3)} since {self.day()}")
        self.work(2, 5)

    def healthy_type_errors_solved(self) -> None:
        """Errors of cells differ, and are gone after one or two tries."""
        self.work(3, 5)
        for error in ("#NAME?", "#VALUE!", "#DIV/0!", "#N/A"):
            cell = f"{self.sheet}!F{self.n(2, 300)}"
            self.call(
                "sheet_set",
                {"file": self.book, "range": cell, "value": f"=XROUND({self.n(1, 9)})"},
                f"{cell} {error}",
                ok=False,
                cause=error,
            )
            self.call(
                "sheet_set",
                {"file": self.book, "range": cell, "value": f"=ROUND(E{self.n(2, 90)},2)"},
                f"{cell} {self.x(1, 90, 2)}",
                change=True,
                needs=error,
            )
            self.work(1, 2)

    def healthy_plain(self) -> None:
        """Nothing special."""
        self.work(12, 30)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(TaxWorkbook, rng)
