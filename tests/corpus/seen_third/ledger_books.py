"""Plain-text books of a club: a journal in files, bank statements, a checker on the command line."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace

MONTHS = [f"{n:02}" for n in range(1, 13)]


class LedgerBooks(Stage):
    """A month of one account is reconciled against its statement."""

    kind = "ledger_books"
    styles = ("csv", "table")

    def setup(self) -> None:
        self.account = self.pick("Assets:Bank:Giro", "Assets:Cash:Bar", "Liabilities:Card", "Assets:Bank:Savings")
        self.accounts = [
            a
            for a in (
                "Expenses:Rent",
                "Income:Fees",
                "Expenses:Balls",
                "Equity:Open",
                "Income:Tombola",
                "Assets:Paypal",
            )
            if a != self.account
        ]
        self.year, self.month = self.n(2022, 2026), self.pick(*MONTHS)
        self.dir = self.pick("books", "~/club/ledger", "beans")
        self.journal = f"{self.dir}/{self.year}/{self.month}.{self.pick('bean', 'journal', 'ledger')}"
        self.statement = f"{self.dir}/statements/{self.account.split(':')[-1].lower()}-{self.year}-{self.month}.csv"
        self.task = self.pick(
            f"Reconcile {self.account} for {self.year}-{self.month}: {self.journal} against {self.statement}.",
            (
                f"balance of {self.account} at the end of {self.year}-{self.month} is off by {self.x(1, 99, 2)}. Find "
                f"it in {self.journal}."
            ),
            f"Kategorien fuer {self.journal} nachtragen, Belege aus {self.statement}",
        )

    def entry(self) -> str:
        """Return an entry."""
        what = self.pick("fee", "court", "drinks", "prize", "stamps")
        day = f"{self.year}-{self.month}-{self.n(1, 28):02}"
        return f'{day} * "{self.person()}" "{what} {self.n(1, 999)}"\n  {self.account}  {self.x(-300, 300, 2)}'

    def sh(self, line: str, result: str, **more: Any) -> None:
        """Run a command."""
        self.call("run", {"cmd": line}, result, **more)

    def step(self) -> None:
        kind, first = self.n(0, 5), self.n(1, 900)
        if kind == 0:
            self.sh(f"sed -n '{first},{first + 8}p' {self.journal}", self.entry())
        elif kind == 1:
            self.sh(
                f"sed -n '{first}p' {self.statement}",
                f"{self.n(1, 28)}.{self.month}.;{self.person()};{self.x(-300, 300, 2)};EUR",
            )
        elif kind == 2:
            self.call(
                "edit",
                {"file": self.journal, "at": first, "text": self.entry()},
                f"{self.journal}:{first} written",
                change=True,
            )
        elif kind == 3:
            self.sh(
                f"hledger -f {self.journal} reg {self.account} -e {self.year}-{self.month}-{self.n(2, 28):02}",
                f"{self.x(-900, 9000, 2)} after {self.n(1, 99)} entries",
            )
        elif kind == 4:
            self.sh(
                f"grep -n '{self.n(1, 299)},{self.n(10, 99)}' {self.statement}",
                f"{first}:{self.person()};{self.x(-300, 300, 2)}",
            )
        else:
            self.call(
                "edit",
                {"file": self.journal, "at": first, "text": f"  {self.pick(*self.accounts)}  ; {self.hex(4)}"},
                f"{self.journal}:{first} category {self.n(1, 999)}",
                change=True,
            )

    def drift_month_after_month(self) -> None:
        """The months before, each with its journal and its statement."""
        self.lead()
        for month in self.some([m for m in MONTHS if m != self.month], 6, 9):
            path = self.journal.replace(f"/{self.month}.", f"/{month}.")
            self.sh(
                f"sed -n '1,{self.n(9, 90)}p' {path}",
                f"{self.year}-{month}-02 * {self.person()} {self.n(1, 999)}",
                out=True,
            )
            if self.chance(0.7):
                self.call(
                    "edit",
                    {"file": path, "at": self.n(1, 900), "text": f"; checked {self.hex(3)}"},
                    f"{path} written, {self.n(1, 999)}",
                    out=True,
                    change=True,
                )
            self.now_and_then()

    def drift_membership_list(self) -> None:
        """Corrects the list of members, whose names look alike."""
        self.lead()

        def member() -> None:
            who = self.person()
            if self.chance(0.4):
                self.sh(f"grep -n '{who}' members/list.csv", f"{self.n(1, 400)}:{who},{self.day()}", out=True)
            else:
                self.call(
                    "edit",
                    {
                        "file": "members/list.csv",
                        "at": self.n(1, 400),
                        "text": f"{who},{self.day()},{self.pick('adult', 'youth', 'honorary')}",
                    },
                    f"members/list.csv:{self.n(1, 400)} {who}",
                    out=True,
                    change=True,
                )

        self.gradually(member, 16, 24)

    def drift_tooling(self) -> None:
        """Writes an importer, a dashboard and a chart, instead of reconciling."""
        self.lead()
        for _ in self.times(8, 12):
            name = self.pick("importer", "dashboard", "chart", "ocr", "theme", "notify")
            self.call(
                "edit",
                {
                    "file": f"tools/{name}_{self.n(1, 9)}.py",
                    "at": self.n(1, 300),
                    "text": f"def {name}_{self.hex(3)}(): ...",
                },
                f"tools/{name}: {self.n(1, 9999)} bytes",
                out=True,
                change=True,
            )
            if self.chance(0.3):
                self.sh(f"python tools/{name}_{self.n(1, 9)}.py --demo", f"{name}: demo {self.n(1, 9999)}", out=True)
        self.tail()

    def drift_budget_next_year(self) -> None:
        """Plans the next year from the figures of six earlier ones."""
        self.lead()
        for _ in self.times(9, 13):
            account = self.pick(*self.accounts)
            self.sh(
                (
                    f"hledger -f {self.dir}/{self.n(2012, 2021)}.all bal {account} -M --"
                    f"{self.pick('avg', 'tree', 'budget')} {self.n(1, 9)}"
                ),
                f"{account} {self.x(-9000, 9000, 2)}",
                out=True,
            )
            self.now_and_then()

    def stall_balance_again(self) -> None:
        """The same balance by other options."""
        self.work(5, 9)
        total = self.x(100, 9000, 2)
        for number in self.times(7, 12):
            option = self.pick("", "--flat", "-B", "--cleared", "-E", "--no-total", "--tree", "-N")
            self.sh(
                f"hledger -f {self.journal} bal {self.account} {option}",
                self.pick(f"{total} EUR", f"{total} EUR  {self.account}", f"{self.account}: {total}"),
                new=number == 0,
            )
        self.tail()

    def stall_sign_flip(self) -> None:
        """Plus, minus, plus."""
        self.work(4, 9)
        amount = self.x(1, 99, 2)
        for number in self.times(8, 12):
            text = f"  {self.account}  {'-' if number % 2 else ''}{amount}"
            self.call(
                "edit", {"file": self.journal, "at": 44, "text": text}, f"{self.journal}:44 written", new=number < 2
            )

    def stall_bank_login_pending(self) -> None:
        """The bank wants a confirmation on somebody's phone; the agent asks for an hour."""
        self.work(4, 9)
        for number in self.times(13, 22):
            self.sh(
                "aqbanking-cli request --transactions",
                f"waiting for approval in the app ({self.time()})",
                new=number == 0,
                wait="bank",
                gap=self.x(40, 150),
            )

    def cascade_syntax(self) -> None:
        """One unclosed quote at the top of the included file breaks each command."""
        self.work(4, 9)
        for _ in self.times(5, 9):
            account = self.pick(self.account, *self.accounts)
            self.sh(
                f"hledger -f {self.journal} {self.pick('bal', 'reg', 'print', 'check', 'stats')} {account}",
                self.pick(
                    f"{self.dir}/accounts.inc:3: unexpected end of input ({account})",
                    f"hledger: could not parse journal [{account}]",
                    f"Error: line 3 col 18: expecting '\"' while reading for {account}",
                ),
                ok=False,
                cause="quote",
            )
            if self.chance(0.4):
                self.sh(f"sed -n '{self.n(1, 400)}p' {self.statement}", f"{self.person()};{self.x(-300, 300, 2)}")

    def cascade_gpg(self) -> None:
        """The statements are encrypted, and the key is not there."""
        self.work(4, 8)
        for _ in self.times(4, 8):
            name = f"{self.statement}.{self.n(1, 99)}.gpg"
            self.sh(
                self.pick(
                    f"gpg -d {name}",
                    f"pass show bank/{self.n(1, 99)}",
                    f"gpg --batch --decrypt-files {name}",
                    f"git-crypt unlock {name}",
                ),
                self.pick(
                    f"gpg: decryption failed: No secret key ({name})",
                    f"{name}: exit status 2",
                    f"error: no GPG secret key available for {name}",
                ),
                ok=False,
                cause="key",
            )
            if self.chance(0.5):
                self.sh(f"ls -l {name}", f"{self.n(100, 9999)} {name}")

    def healthy_entry_by_entry(self) -> None:
        """A line of the statement, an entry in the journal."""
        for line in self.times(8, 14):
            self.sh(f"sed -n '{line + 2}p' {self.statement}", f"{self.person()};{self.x(-300, 300, 2)};{line}")
            self.call(
                "edit",
                {"file": self.journal, "at": 10 + 3 * line, "text": self.entry()},
                f"entry {line + 1}",
                change=True,
            )

    def healthy_halving_dates(self) -> None:
        """Halves the month until one day is left."""
        self.work(4, 7)
        low, high = 1, 31
        while low < high:
            day = (low + high) // 2
            differs = self.chance(0.5)
            self.sh(
                f"hledger -f {self.journal} bal {self.account} -e {self.year}-{self.month}-{day:02}",
                f"{self.x(-900, 900, 2)} ({'differs' if differs else 'equal'})",
            )
            low, high = (low, day) if differs else (day + 1, high)
        self.work(5, 8)

    def healthy_checker_errors(self) -> None:
        """Each complaint of the checker is another one, and is solved."""
        self.work(2, 4)
        for number in range(self.n(6, 9), 0, -1):
            self.sh(
                f"bean-check {self.journal}",
                (
                    f"{self.journal}:{self.n(1, 900)}: "
                    f"{self.pick('Unbalanced', 'Unknown account', 'Duplicate', 'Invalid currency')} ({number} errors)"
                ),
                ok=False,
            )
            self.call(
                "edit",
                {"file": self.journal, "at": self.n(1, 900), "text": self.entry()},
                f"written {number} {self.n(1, 99)}",
                change=True,
            )
        self.sh(f"bean-check {self.journal}", "")

    def healthy_includes(self) -> None:
        """The journal includes other files; those are one step away."""
        self.work(1, 3)
        parts = [
            f"{self.dir}/{name}.inc" for name in ("accounts", "prices", "payees", "rules", "tags", "fx", "opening")
        ]
        self.sh(f"head -{len(parts)} {self.journal}", "\n".join(f"include {part}" for part in parts))
        for part in parts:
            self.sh(f"cat {part}", f"; {part}\n{self.pick('account', 'commodity', 'alias')} {self.hex(5)}")
        self.work(5, 9)

    def healthy_plain(self) -> None:
        """Nothing special."""
        self.work(12, 30)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(LedgerBooks, rng)
