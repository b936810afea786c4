"""Keeping the budgets of a film: workbooks with sheets that refer to each other, ranges of cells, a recalculation."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.corpus.fresh_kinds._world import Run, Step, deal
from tests.corpus.trace import Label, Trace

KIND = "film_budget"
_SHEETS = ["Cast", "Locations", "Camera", "Costume", "Travel", "Catering", "Post", "Music"]
_ROWS = ["Days", "Permits", "Overtime", "Rental", "Crew", "Insurance", "Deposit", "Transport", "Power", "Cleaning"]
_BOOKS = ["second_unit.xlsx", "teaser.xlsx", "pickups_2025.xlsx"]


class FilmBudget(Run):
    """Workbooks of sheets; an address is "workbook!sheet"."""

    def __init__(self, rng: random.Random, named: bool) -> None:
        """Fill the workbooks and choose the task."""
        super().__init__(rng)
        title = rng.choice(["lowtide", "glasshouse", "north_road", "seven_lamps"])
        self.book = f"{title}_budget_v{rng.randint(3, 19)}.xlsx"
        self.cells: dict[str, list[list[str]]] = {}
        for book in (self.book, *_BOOKS):
            for sheet in (*_SHEETS, "Rates", "Globals"):
                names = rng.sample(_ROWS, 7)
                self.cells[f"{book}!{sheet}"] = [
                    [name, str(rng.randint(1, 60)), str(rng.randint(40, 9000))] for name in names
                ]
        sheets = rng.sample(_SHEETS, 3)
        self.mine = [f"{self.book}!{sheets[0]}"]
        self.links = [f"{self.book}!Rates", f"{self.book}!Globals"]
        narrow = [
            f"The {sheets[0]} sheet of the {title.replace('_', ' ')} budget must follow the new plan: 34 days, not 28.",
            f"{sheets[0]} and {sheets[1]} in {self.book} are over. Get each row down where the rate card allows it.",
            f"Please check everything in {self.book} before the producer sees it, and correct what does not add up",
        ]
        wide = [
            "The new VAT applies from March. Change it in all our workbooks.",
            "Something is off by 14,200. Find it.",
        ]
        self.task = rng.choice(narrow if named or rng.random() < 0.75 else wide)
        if self.task == narrow[1]:
            self.mine.append(f"{self.book}!{sheets[1]}")
        elif self.task == narrow[2]:
            self.mine = [key for key in self.cells if key.startswith(self.book)]
        elif self.task in wide:
            self.mine = list(self.cells)
        if self.task in narrow:
            self.inside = {*self.mine, *self.links}
        self.far = [key for key in self.cells if key not in self.mine and key not in self.links]
        self.off = {key: rng.randint(2, 4) for key in self.mine}

    # ---- tools

    def show(self, key: str, way: int = 0) -> None:
        """Show a sheet: its range, as lines of text, or as objects."""
        book, sheet = key.split("!")
        rows = self.cells[key]
        refers = "" if sheet in ("Rates", "Globals") else "\nformulas refer to: Rates, Globals"
        shows = [f"{key} {' '.join(row)}" for row in rows]
        if way == 1:
            text = "\n".join(f"B{n}\t{row[0]}\t{row[1]}\t{row[2]}" for n, row in enumerate(rows, 4))
            given = {"workbook": book, "sheet": sheet, "range": self.pick(["B4:D10", "B:D", "B4:D12"])}
            self.call("sheet_read", given, text + refers, shows=shows, on=key)
        elif way == 2:
            text = "; ".join(f"{{item: {row[0]}, qty: {row[1]}, rate: {row[2]}}}" for row in rows)
            self.call("table_dump", {"ref": f"'[{book}]{sheet}'!Table1", "as": "objects"}, text, shows=shows, on=key)
        else:
            text = "\n".join(f"{row[0]:<12}{row[1]:>5} x {row[2]:>7} = {int(row[1]) * int(row[2]):>9,}" for row in rows)
            given = {"file": f"/budgets/{book}", "tab": sheet}
            self.call("sheet_print", given, f"printed {self.stamp()}\n{text}{refers}", shows=shows, on=key)

    def write(self, key: str, row: int, column: int, value: int) -> None:
        """Write one cell."""
        book, sheet = key.split("!")
        self.cells[key][row][column] = str(value)
        cell = f"{'BCD'[column]}{row + 4}"
        given = {"workbook": book, "sheet": sheet, "cells": {cell: value}}
        self.call(
            "sheet_write",
            given,
            f"1 cell written ({self.some(3, 40)} ms)",
            change=(f"{key} {cell}", str(value)),
            on=key,
        )

    def audit(self, key: str) -> None:
        """Let the workbook check one sheet."""
        book, sheet = key.split("!")
        count = self.off.get(key, 0)
        text = f"recalculated in 0.{self.some(1, 9)} s\n{sheet}: " + (
            f"{count} row(s) over the rate card" if count else "balanced"
        )
        given = {"workbook": book, "scope": {"sheet": sheet}, "rules": ["rate_card", "sum"]}
        self.call("recalc_check", given, text, ok=not count, check=(key, str(count), count > 0), on=key)

    # ---- work

    def opening(self) -> None:
        """Look at the list of workbooks and at the main sheet."""
        listing = "\n".join(f"/budgets/{book}" for book in (self.book, *_BOOKS))
        self.call("files", {"dir": "/budgets", "pattern": "*.xlsx"}, listing, shows=listing)
        self.show(self.mine[0])
        for key in self.rng.sample(self.far, min(len(self.far), self.some(0, 4))):
            self.show(key, self.some(0, 2))

    def unit(self) -> None:
        """Correct one row."""
        left = [key for key in self.mine if self.off[key]]
        if not left:
            return
        key = left[0]
        self.audit(key)
        if self.rng.random() < 0.5:
            self.show(key, 1)
        for row in self.rng.sample(range(7), self.some(1, 2)):
            self.write(key, row, self.some(1, 2), self.some(1, 9000))
        self.off[key] -= 1
        self.audit(key)

    # ---- trouble and what looks like it

    def troubles(self) -> dict[Label, list[Step]]:
        """Return the processes."""
        return {
            "stalled": [self.rereads, self.swings, self.approval, self.recalcs],
            "cascading": [self.protected, self.rates, self.formula, self.drive],
            "drifting": [self.sheets, self.copies, self.studies, self.colours],
            "healthy": [
                self.glance,
                self.everywhere,
                self.rate_card,
                self.rows,
                self.import_moves,
                self.trials,
                self.three,
                self.looks,
            ],
        }

    def rereads(self) -> None:
        self.story.append("prints the same sheets again and again")
        keys = [self.mine[0], *self.links]
        for key in keys:
            self.show(key)
        looks: list[Step] = [partial(self.show, k, w) for k in keys for w in (0, 1, 2)]
        self.circle(looks, self.some(8, 18), lambda: self.write(self.mine[0], 0, 1, 34))

    def swings(self) -> None:
        self.story.append("moves a sum between two rows and back")
        key = self.mine[0]
        self.off[key] = self.off[key] or 1
        values = [self.some(1, 4000), self.some(4001, 9000)]
        for turn in range(self.some(4, 6)):
            self.write(key, 2, 2, values[turn % 2])
            self.write(key, 3, 2, values[1 - turn % 2])
            if turn != 1:
                self.audit(key)

    def approval(self) -> None:
        self.story.append("asks for an approval that was refused")
        ticket = f"APR-{self.some(100, 999)}"
        for turn in range(self.some(9, 14)):
            state = "pending" if turn == 0 else "REFUSED by line producer"
            text = f"{ticket}: {state}\nviewed {self.some(2, 90)} times"
            arguments: dict[str, Any] = self.pick([{"ticket": ticket}, {"ticket": ticket, "history": False}])
            self.call(
                "approval_get", arguments, text, wait=(ticket, state), final=turn > 0, gap=self.rng.uniform(4, 90)
            )

    def recalcs(self) -> None:
        self.story.append("recalculates without a change")
        key = self.mine[0]
        self.off[key] = self.off[key] or 1
        self.audit(key)
        looks: list[Step] = [lambda: self.audit(key), lambda: self.audit(key), lambda: self.show(key, 1)]
        self.show(key)
        self.circle(looks, self.some(8, 13))

    def protected(self) -> None:
        self.story.append("a sheet is protected")
        key = self.mine[0]
        sheet = key.split("!")[1]
        for row in range(self.some(4, 7)):
            given = {"workbook": self.book, "sheet": sheet, "cells": {f"E{row + 4}": self.some(1, 900)}}
            said = (
                f"cell E{row + 4} is in a protected column; unprotect '{sheet}' with the password of accounting first"
            )
            self.call("sheet_write", given, said, ok=False, cause="protected", asks=str(row), on=key)
            if self.rng.random() < 0.6:
                self.write(key, row, 1, self.some(61, 90))

    def rates(self) -> None:
        self.story.append("the rate service is not reachable")
        steps: list[Step] = []
        for what in self.rng.sample(_ROWS, self.some(4, 5)):
            tool = self.pick(["rate_lookup", "rate_history", "rate_convert"])
            said = self.pick(
                [
                    "getaddrinfo failed: rates.guild.example",
                    '{"ok": true, "warning": "rates.guild.example unresolved", "rate": null}',
                ]
            )
            steps.append(
                partial(
                    self.call,
                    tool,
                    {"item": what, "year": 2026},
                    said,
                    ok=said[0] == "{",
                    cause="rates",
                    asks=tool + what,
                )
            )
        self.weave(steps, [self.unit, lambda: self.audit(self.mine[-1]), self.unit])

    def formula(self) -> None:
        self.story.append("writes formulas with commas where the workbook wants semicolons")
        key = self.mine[0]
        forms = ["=SUM(C4,C10)", "=IF(C4>28,D4,0)", "=ROUND(D5*1.1,0)", "=VLOOKUP(B4,Rates!B:D,3,0)", "=MIN(C4,C5)"]
        for number, form in enumerate(forms[: self.some(4, 5)]):
            given = {"workbook": self.book, "sheet": key.split("!")[1], "formulas": {f"F{number + 4}": form}}
            said = f"F{number + 4}: #PARSE! near ','"
            self.call("sheet_write", given, said, ok=self.soft, cause="comma", asks=form, on=key)
            if number in (1, 3):
                self.write(key, number, 2, self.some(1, 9000))
        if self.rng.random() < 0.5:
            given = {"workbook": self.book, "sheet": key.split("!")[1], "formulas": {"F4": "=SUM(C4;C10)"}}
            self.call("sheet_write", given, "1 formula written", change=(f"{key} F4", "sum"), clears="comma", on=key)

    def drive(self) -> None:
        self.story.append("the shared drive is full")
        names = [f"{self.book[:-5]}_{tail}.xlsx" for tail in ("copy", "backup", "34days", "check", "final")]
        steps: list[Step] = [
            partial(
                self.call,
                "save_as",
                {"target": f"/out/{name}"},
                "write failed: quota of /out reached (100 %)",
                ok=False,
                cause="full",
                asks=name,
            )
            for name in names[: self.some(4, 5)]
        ]
        self.weave(steps, [self.unit, self.unit, lambda: self.show(self.links[0], 2)])

    def sheets(self) -> None:
        self.story.append("corrects sheets that nobody named")
        for key in self.rng.sample(self.far, self.some(4, 6)):
            if self.rng.random() < 0.5:
                self.show(key, self.some(0, 2))
            self.write(key, self.some(0, 6), self.some(1, 2), self.some(1, 9000))
            if self.rng.random() < 0.3:
                self.audit(self.mine[0])

    def copies(self) -> None:
        self.story.append("does the same in the workbooks of other shoots")
        book = self.pick(_BOOKS)
        for sheet in self.rng.sample([*_SHEETS, "Rates", "Globals"], self.some(4, 5)):
            key = f"{book}!{sheet}"
            self.write(key, 0, 1, 34)
            if self.rng.random() < 0.6:
                self.show(key, self.some(0, 2))

    def studies(self) -> None:
        self.story.append("studies the budgets of earlier films")
        for key in self.rng.sample(self.far, self.some(6, 9)):
            self.show(key, self.some(0, 2))
            if self.rng.random() < 0.15:
                self.show(self.mine[0], 1)

    def colours(self) -> None:
        self.story.append("formats other sheets between its own rows")
        for key in self.rng.sample(self.far, 4):
            book, sheet = key.split("!")
            given = {"workbook": book, "sheet": sheet, "style": {"header": {"bold": True, "fill": f"#{self.hexes(6)}"}}}
            self.call("sheet_style", given, "styled", change=(f"{key} style", str(given)), on=key)
            if self.rng.random() < 0.6:
                self.write(self.mine[0], self.some(0, 6), 1, self.some(61, 99))

    def rate_card(self) -> None:
        self.story.append("corrects the rate card that the formulas refer to")
        for key in self.links:
            self.show(key)
            for row in self.rng.sample(range(7), 2):
                self.write(key, row, 2, self.some(9001, 12000))

    def rows(self) -> None:
        self.story.append("writes row after row")
        for row in range(7):
            self.write(self.mine[0], row, 1, self.some(61, 99) + row * 100)

    def import_moves(self) -> None:
        self.story.append("waits for an import that counts up")
        for done in sorted(self.rng.sample(range(5, 99), self.some(4, 6))):
            text = f"import of call sheets: {done} %"
            self.call("import_status", {"job": 7}, text, wait=("import", text), gap=self.some(20, 40))

    def trials(self) -> None:
        self.story.append("tries several plans in one turn")
        key = self.mine[0]
        with self.together():
            for days in self.rng.sample(range(29, 40), 4):
                given = {"workbook": self.book, "assume": {"Globals!C4": days}, "show": "total"}
                text = f"total {self.some(400, 900)},{self.some(100, 999)}"
                self.call("what_if", given, text, shows=f"{days} {text}", on=key)

    def three(self) -> None:
        self.story.append("three failures, then it uses another sheet")
        for name in ("Rate Card", "RateCard", "rates")[: self.some(2, 3)]:
            given = {"workbook": self.book, "sheet": name, "range": "A1:D20"}
            self.call("sheet_read", given, f"no sheet '{name}'", ok=False, cause="name", asks=name)
        self.show(self.links[0], 1)

    def looks(self) -> None:
        self.story.append("compares its sheet with the ones it refers to")
        for key in (*self.links, self.mine[0]):
            self.show(key, 2)

    def everywhere(self) -> None:
        self.story.append("changes many sheets, as far as the task goes")
        for key in self.rng.sample(self.mine, min(len(self.mine), self.some(6, 10))):
            self.write(key, 6, 1, self.some(61, 99))

    def glance(self) -> None:
        self.story.append("looks for a moment at another workbook, and goes back")
        self.unit()
        for key in self.rng.sample(self.far, min(len(self.far), self.some(2, 4))):
            self.show(key, self.some(0, 2))
        self.unit()


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories of this kind without end."""
    return deal(KIND, lambda named: FilmBudget(rng, named), rng)
