"""Data analysis: questions in SQL against a real small database, and cells of a notebook that hold what was found."""

from __future__ import annotations

import json
import sqlite3
import weakref
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

from tests.corpus.seen_kinds._world1 import Roaming, Steps, compose
from tests.corpus.trace import Trace

KIND = "analysis in SQL and notebooks"

TABLES = {
    "orders": ("order_id", "placed", "region", "channel", "amount", "customer_id"),
    "refunds": ("refund_id", "order_id", "placed", "region", "reason", "amount"),
    "visits": ("visit_id", "placed", "region", "channel", "seconds", "customer_id"),
    "deliveries": ("delivery_id", "order_id", "placed", "region", "carrier", "hours"),
    "tickets": ("ticket_id", "placed", "region", "channel", "hours", "customer_id"),
}
LINKED = {
    "orders": ["customers"],
    "refunds": ["orders"],
    "visits": ["customers"],
    "deliveries": ["orders"],
    "tickets": ["customers"],
}
OTHERS = {
    "hr.shifts": ("shift_id", "region", "hours"),
    "ads.spend": ("day", "region", "amount"),
    "finance.budget": ("month", "region", "amount"),
    "lab.trials": ("trial_id", "channel", "hours"),
    "hr.salaries": ("person_id", "region", "amount"),
    "ads.clicks": ("day", "channel", "seconds"),
    "finance.accounts": ("account", "region", "amount"),
}
REGIONS = ("north", "south", "east", "west", "islands")
CHANNELS = ("web", "app", "phone", "store")
REASONS = ("damaged", "late", "wrong size", "changed mind")


class Analysis(Roaming):
    """One question about one or two tables."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.style = rng.choice(("json", "psql", "csv"))
        self.db = sqlite3.connect(":memory:")
        weakref.finalize(self, self.db.close)
        self.main_table, self.second = rng.sample(sorted(TABLES), 2)
        self.month = rng.randint(2, 9)
        self.region = rng.choice(REGIONS)
        self.measure = next(c for c in TABLES[self.main_table] if c in ("amount", "hours", "seconds"))
        near = {*LINKED[self.main_table], *LINKED[self.second], self.main_table, self.second}
        for table in sorted(near & TABLES.keys()):
            self._fill(table)
        self.book = f"{rng.choice(('reports', 'studies', 'notebooks'))}/{self.main_table}_{self.region}.ipynb"
        self.cells: list[str] = []
        self.inside = {
            *(name for t in (self.main_table, self.second) for name in (t, *LINKED[t])),
            self.book,
            "calendar",
        }
        self.task = rng.choice(
            (
                (
                    f"Why did {self.measure} of {self.main_table} change in {self.region} in month {self.month}? Compare with "  # noqa: E501
                    f"{self.second}. Write what you find into {self.book}."
                ),
                (
                    f"Make {self.book}: how {self.main_table} and {self.second} developed by region and channel in 2030, with "  # noqa: E501
                    f"the odd month in {self.region} explained."
                ),
            )
        )
        self.server = rng.choice(("warehouse", "dwh-ro", "pg://analytics"))

    def _fill(self, table: str) -> None:
        columns, rng = TABLES[table], self.rng
        self.db.execute(f"create table {table} ({', '.join(columns)})")
        rows: list[tuple[Any, ...]] = []
        for number in range(240):
            month, region = rng.randint(1, 12), rng.choice(REGIONS)
            odd = 3 if (month, region) == (self.month, self.region) else 1
            values: dict[str, Any] = {
                "placed": f"2030-{month:02d}-{rng.randint(1, 28):02d}",
                "region": region,
                "channel": rng.choice(CHANNELS),
                "reason": rng.choice(REASONS),
                "carrier": rng.choice(("Q-post", "van", "bike")),
                "amount": round(rng.uniform(5, 400) * odd, 2),
                "hours": round(rng.uniform(1, 90) * odd, 1),
                "seconds": rng.randint(3, 900) * odd,
                "customer_id": rng.randint(1, 60),
                "order_id": number if table == "orders" else rng.randint(0, 239),
            }
            rows.append(tuple(values.get(c, number) for c in columns))
        self.db.executemany(f"insert into {table} values ({', '.join('?' * len(columns))})", rows)

    def is_inside(self, address: str) -> bool:
        return address in self.inside

    # --- hands ---

    def shown(self, names: list[str], rows: list[tuple[Any, ...]]) -> str:
        took = self.rng.uniform(3, 900)
        if self.style == "json":
            return json.dumps(
                {"columns": names, "rows": rows, "row_count": len(rows), "job": self.hexed(12), "ms": round(took)}
            )
        if self.style == "csv":
            return "\n".join([",".join(names), *(",".join(str(v) for v in row) for row in rows)])
        head = " | ".join(names)
        told = "\n".join(" | ".join(str(v) for v in row) for row in rows)
        return f" {head}\n{'-' * len(head)}\n{told}\n({len(rows)} rows)\nTime: {took:.3f} ms"

    def sql(self, text: str, out: str, **notes: Any) -> None:
        if self.style == "json":
            self.say("query", {"server": self.server, "statement": text}, out, **notes)
        elif self.style == "psql":
            self.say("psql", {"command": f"{text};"}, out, **notes)
        else:
            self.say("run_sql", text, out, **notes)

    # --- acts ---

    def ask(self, table: str, by: str, what: str, where: str = "", on_book: bool = False) -> None:
        """A question; its spelling, order and rounding differ each time it is asked."""
        measure = next(c for c in TABLES[table] if c in ("amount", "hours", "seconds"))
        made = {
            "count": "count(*)",
            "sum": f"round(sum({measure}), 1)",
            "avg": f"round(avg({measure}), 2)",
            "max": f"max({measure})",
        }[what]
        key = {"month": "substr(placed, 6, 2)"}.get(by, by)
        ruled = f" where {where}" if where else ""
        order = self.pick(("1", "2 desc", "2", "1 desc"))
        alias = by if key == by else f"{key} as {by}"
        plain = f"select {alias}, {made} as {self.pick(('n', 'value', 'v', what))} from {table}{ruled} group by 1 order by {order}"  # noqa: E501
        cursor = self.db.execute(plain)
        rows = cursor.fetchall()
        names = [str(column[0]) for column in cursor.description]
        wrapped = f"with t as (select * from {table}{ruled}) select {key} {by}, {made} v from t group by {key} order by {order}"  # noqa: E501
        text = self.pick(
            (
                plain,
                plain.upper() if not where else plain,
                wrapped,
                plain.replace(" order", "\norder").replace(" from", "\nfrom"),
            )
        )
        facts = [(table, by, what, where, *row) for row in rows] or [(table, by, what, where)]
        self.sql(text, self.shown(names, rows[:40]), shows=facts, on=[table])

    def columns(self, table: str) -> None:
        names = TABLES.get(table) or OTHERS.get(table) or (f"{table}_id", "name", "since")
        rows: list[tuple[Any, ...]] = [
            (name, "text" if name in ("region", "channel", "reason", "carrier", "name", "placed") else "numeric")
            for name in names
        ]
        if self.chance(0.5):
            self.say(
                "describe_table",
                {"server": self.server, "table": table},
                self.shown(["column", "type"], rows),
                shows=[("cols", table)],
                on=[table],
            )
            return
        text = f"select column_name, data_type from information_schema.columns where table_name = '{table}'"
        self.sql(text, self.shown(["column_name", "data_type"], rows), shows=[("cols", table)], on=[table])

    def sample(self, table: str, first: int) -> None:
        cursor = self.db.execute(f"select * from {table} limit 5 offset ?", (first,))
        rows = cursor.fetchall()
        text = f"select * from {table} limit 5 offset {first}"
        self.sql(
            text,
            self.shown(list(TABLES[table]), rows),
            shows=[(table, first + i) for i in range(len(rows))],
            on=[table],
        )

    def foreign(self, table: str) -> None:
        names = OTHERS[table]
        rows: list[tuple[Any, ...]] = [tuple(self.rng.randint(1, 900) for _ in names) for _ in range(4)]
        text = self.pick(
            (f"select * from {table} limit 4", f"select {', '.join(names)} from {table} order by 1 limit 4")
        )
        self.sql(text, self.shown(list(names), rows), shows=[("look", table)], on=[table])

    def cell(self, source: str, out: str, index: int | None = None, void: bool = False, **notes: Any) -> None:
        if index is None:
            index = len(self.cells)
            self.cells.append(source)
        self.cells[index] = source
        body = json.dumps(
            {
                "cell": index,
                "execution_count": self.rng.randint(1, 90),
                "outputs": [out],
                "wall_s": round(self.rng.uniform(0.1, 6), 2),
            }
        )
        self.say(
            "notebook.run",
            {"uri": self.book, "cell": index, "source": source},
            body,
            sets=((self.book, index), source),
            void=void,
            on=[self.book],
            writes=True,
            **notes,
        )

    # --- work ---

    def work(self) -> Steps:
        tables = (self.main_table, self.second)
        if self.chance(0.6):
            names: list[tuple[Any, ...]] = [(name,) for name in (*TABLES, *OTHERS)]
            self.sql(
                "select table_name from information_schema.tables", self.shown(["table_name"], names), shows=["tables"]
            )
            yield
        for table in tables:
            self.columns(table)
            yield
            self.sample(table, 0)
            yield
        for table in tables:
            groups = [
                c
                for c in ("month", "region", *TABLES[table])
                if c in ("month", "region", "channel", "reason", "carrier")
            ]
            for by in dict.fromkeys(groups):
                for what in self.rng.sample(("count", "sum", "avg", "max"), 2):
                    self.ask(table, by, what)
                    yield
                if self.chance(0.5):
                    self.cell(f"plot(sql('{table} by {by}'), kind='bar')", f"<figure {table} {by}>")
                    yield
            within = f"region = '{self.region}' and placed like '2030-{self.month:02d}%'"
            for by in dict.fromkeys(groups[2:]):
                self.ask(table, by, "sum", within)
                yield
        for region in REGIONS:
            self.ask(self.main_table, "month", "avg", f"region = '{region}'")
            yield
        self.cell(f"md('## {self.main_table} in {self.region}: month {self.month} stands out')", "rendered")
        yield

    # --- stalls ---

    def stall_same_question(self) -> Steps:
        table = self.main_table
        looks = [
            partial(self.ask, table, "region", "sum"),
            partial(self.ask, table, "month", "count"),
            partial(self.ask, table, "region", "avg"),
        ][: self.rng.randint(1, 3)]
        yield from self.again(looks, self.rng.randint(8, 15))

    def stall_schema(self) -> Steps:
        looks = [
            partial(self.columns, self.main_table),
            partial(self.columns, self.second),
            partial(self.sample, self.second, 0),
        ]
        yield from self.again(looks, self.rng.randint(7, 13))

    def stall_cell_to_and_fro(self) -> Steps:
        """A figure is drawn in two ways in turn; neither shows what the agent expects."""
        kinds = ["bar", "line"]
        index = len(self.cells)
        self.cells.append("")
        out = f"<figure {self.main_table}> Warning: {self.rng.randint(2, 9)} points without a region"
        for kind in kinds:
            self.cell(f"plot({self.main_table}, kind='{kind}')", out, index, shows=["figure"])
            yield
        for count in range(self.rng.randint(7, 13)):
            if self.chance(0.25):
                self.ask(self.main_table, "region", "count")
            else:
                self.cell(f"plot({self.main_table}, kind='{kinds[count % 2]}')", out, index, void=True)
            yield

    def stall_export_waiting(self) -> Steps:
        job, share = self.hexed(8), self.rng.randint(3, 80)

        def look(gap: float | None) -> None:
            out = json.dumps(
                {
                    "job": job,
                    "state": "RUNNING",
                    "percent": share,
                    "polled_at": round(self.now + 7),
                    "heartbeat": self.hexed(6),
                }
            )
            self.say("export_status", {"job_id": job}, out, wait=("export", share), gap=gap)

        yield from self.waiting(look, self.rng.randint(17, 22), 25, 100)

    def stall_no_rows(self) -> Steps:
        """Nothing is known of a region that does not exist; the agent asks in many ways."""
        name = self.pick(("overseas", "centre", "abroad"))
        texts = (
            f"select count(*) from {self.main_table} where region = '{name}'",
            f"select * from {self.main_table} where region = '{name}' limit 10",
            f"select 1 from {self.main_table} where lower(region) = '{name}' limit 1",
            f"select distinct region from {self.main_table} where region = '{name}'",
            f"select count(1) from {self.main_table} where trim(region) in ('{name}')",
        )
        for count in range(self.rng.randint(8, 13)):
            text = self.pick(texts)
            cursor = self.db.execute(text)
            out = self.shown([str(column[0]) for column in cursor.description], cursor.fetchall())
            text += f" -- try {count}" if self.chance(0.2) else ""
            self.sql(text, out, shows=[("none", name)], on=[self.main_table])
            yield

    # --- cascades ---

    def fail(self, text: str, out: str, cause: str, about: str, on: tuple[str, ...] = (), tool: str = "") -> None:
        ok = self.style == "json" and self.chance(0.6)
        out = (
            json.dumps({"status": "error", "message": out, "job": self.hexed(12)})
            if self.style == "json"
            else f"ERROR:  {out}"
        )
        if tool:
            self.say(tool, {"args": text}, out, cause=cause, shows=[(cause, about)], ok=ok, on=on)
        else:
            self.sql(text, out, cause=cause, shows=[(cause, about)], ok=ok, on=on)

    def cascade_wrong_column(self) -> Steps:
        """The column is `placed`; the agent believes in another name and never looks."""
        wrong = self.pick(("created_at", "order_date", "ts"))
        acts = [
            partial(self.fail, f"select {made} from {self.main_table} where {wrong} {rule}", f'column "{wrong}" does not exist', "column", made + rule, (self.main_table,))  # noqa: E501
            for made, rule in (
                ("count(*)", ">= '2030-03-01'"), ("sum(1)", "between '2030-01-01' and '2030-02-01'"), (f"min({self.measure})", "is not null"),  # noqa: E501
                ("region", "< '2030-06-01' group by 1"), (f"avg({self.measure})", "like '2030-05%'"), ("channel, count(*)", "> now() - interval '1 year' group by 1"),  # noqa: E501
            )
        ]  # fmt: skip
        yield from self.each(acts, self.rng.randint(4, 6))

    def cascade_no_right(self) -> Steps:
        acts = [
            partial(self.fail, text, f"permission denied for schema {schema}", "right", text)
            for schema in ("scratch",)
            for text in (
                "create table scratch.t1 as select 1", f"create table scratch.{self.main_table}_m as select * from {self.main_table}",  # noqa: E501
                "create view scratch.v as select 1", "create temp table if not exists scratch.x (a int)",
                f"insert into scratch.notes select count(*) from {self.second}", f"create materialized view scratch.mv_{self.region} as select 1",  # noqa: E501
            )
        ]  # fmt: skip
        yield from self.each(acts, self.rng.randint(4, 6))

    def cascade_kernel(self) -> Steps:
        """The kernel lacks a package; each cell imports it."""
        cells = (
            "trend(df)",
            "seasonal(df, 12)",
            "decompose(df.amount)",
            "fit(df).summary()",
            "forecast(df, 3)",
            "outliers(df)",
        )
        acts = [
            partial(
                self.fail,
                f"from tseries import {c.split('(')[0]}; {c}",
                "ModuleNotFoundError: No module named 'tseries'",
                "tseries",
                c,
                (self.book,),
                "notebook.execute",
            )
            for c in cells
        ]
        yield from self.each(acts, self.rng.randint(4, 6))

    def cascade_share_expired(self) -> Steps:
        acts = [
            partial(
                self.fail,
                f"s3://reports/{name}",
                "ExpiredToken: the session has expired",
                "share",
                name,
                (),
                self.pick(("upload", "list_files", "download")),
            )
            for name in ("orders.csv", "north.parquet", "2030/", "fig1.png", "readme.md", "table.html")
        ]
        yield from self.each(acts, self.rng.randint(4, 6))

    # --- drift ---

    def peek(self, number: int) -> None:
        self.foreign(sorted(OTHERS)[number % len(OTHERS)])

    def drift_other_schemas(self) -> Steps:
        names = self.rng.sample(sorted(OTHERS), 6)
        for name in names:
            if self.chance(0.4):
                self.columns(name)
                yield
            self.foreign(name)
            yield

    def drift_changes_other_books(self) -> Steps:
        folder = self.book.split("/")[0]
        others = [f"{folder}/{t}_{r}.ipynb" for t in TABLES for r in REGIONS]
        for book in self.rng.sample([b for b in others if b != self.book], self.rng.randint(3, 5)):
            if self.chance(0.4):
                self.say(
                    "notebook.read",
                    {"uri": book},
                    json.dumps({"cells": self.rng.randint(3, 20), "title": book}),
                    shows=[book],
                    on=[book],
                )
                yield
            self.say(
                "notebook.run",
                {"uri": book, "cell": 0, "source": "set_style('wide')"},
                json.dumps({"cell": 0, "outputs": []}),
                sets=(book, "wide"),
                on=[book],
                writes=True,
            )
            yield
            if self.chance(0.6):
                self.ask(
                    self.pick((self.main_table, self.second)), self.pick(("region", "month")), self.pick(("max", "avg"))
                )
                yield

    def drift_rewrites_other_tables(self) -> Steps:
        for name in self.rng.sample(sorted(OTHERS), self.rng.randint(3, 5)):
            last = OTHERS[name][-1]
            text, out = self.pick(
                (
                    (f"update {name} set {last} = 0 where {last} is null", f"UPDATE {self.rng.randint(1, 90)}"),
                    (f"create index on {name} ({OTHERS[name][1]})", "CREATE INDEX"),
                    (f"alter table {name} add column checked int", "ALTER TABLE"),
                )
            )
            self.sql(text, out, sets=(name, text), on=[name], writes=True)
            yield
            if self.chance(0.5):
                self.sample(self.main_table, self.rng.randint(5, 200))
                yield

    # --- look-alikes ---

    def alike_pages(self) -> Steps:
        table = self.pick((self.main_table, self.second))
        for page in range(self.rng.randint(5, 10)):
            self.sample(table, 5 + page * 5)
            yield

    def alike_linked_tables(self) -> Steps:
        for table in (*LINKED[self.main_table], *LINKED[self.second]):
            self.columns(table)
            yield
            if table in TABLES:
                self.sample(table, 0)
                yield
                self.sample(table, 5)
                yield
                continue
            for first in (0, 5):
                rows: list[tuple[Any, ...]] = [
                    (n, f"{table}-{self.rng.randint(100, 999)}") for n in range(first, first + 5)
                ]
                self.sql(
                    f"select * from {table} limit 5 offset {first}",
                    self.shown(["id", "name"], rows),
                    shows=[(table, "rows", first)],
                    on=[table],
                )
                yield

    def alike_months(self) -> Steps:
        """Month after month, with numbers that hardly differ."""
        what = self.pick(("count", "avg"))
        for month in range(1, self.rng.randint(7, 12)):
            self.ask(self.main_table, "region", what, f"placed like '2030-{month:02d}%'")
            yield

    def alike_export_moves(self) -> Steps:
        job, share = self.hexed(8), 0
        while share < 100:
            share = min(100, share + self.rng.choice((0, 7, 12, 25)))
            out = json.dumps({"job": job, "state": "RUNNING" if share < 100 else "DONE", "percent": share})
            self.say("export_status", {"job_id": job}, out, wait=(f"export {job}", share), gap=self.rng.uniform(21, 40))
            yield

    def alike_queue_patient(self) -> Steps:
        for count in range(self.rng.randint(4, 8)):
            self.say(
                "export_status",
                {"job_id": "nightly"},
                '{"state": "QUEUED"}',
                wait=("nightly", "q"),
                gap=self.rng.uniform(30, 90) if count else None,
            )
            yield
        self.say(
            "export_status", {"job_id": "nightly"}, '{"state": "DONE", "rows": 240}', wait=("nightly", "d"), gap=33
        )
        yield

    def alike_learns_the_dialect(self) -> Steps:
        """Three mistakes of one kind, and then the right spelling."""
        for made in ("date_trunc('month', placed)", "date_trunc(placed, month)", "trunc(placed, 'MM')")[
            : self.rng.randint(2, 3)
        ]:
            self.fail(
                f"select {made}, count(*) from {self.main_table} group by 1",
                "function does not exist: date_trunc/trunc(text)",
                "dialect",
                made,
                (self.main_table,),
            )
            yield
        self.ask(self.main_table, "month", self.pick(("count", "sum", "max")), f"region <> '{self.region}'")
        self.notes[-1].clears = frozenset({"dialect"})
        yield

    def alike_three_obstacles(self) -> Steps:
        acts = [
            partial(self.fail, f"select * form {self.main_table}", "syntax error at or near 'form'", "typo", "1"),
            partial(self.fail, "select * from customer", "relation customer does not exist", "relation", "1"),
            partial(self.fail, "select 1 / 0", "division by zero", "zero", "1"),
            partial(self.fail, "set role writer", "role writer does not exist", "role", "1"),
        ]
        yield from self.each(acts, 3)

    def alike_busy(self) -> Steps:
        def act(done: bool, gap: float) -> None:
            out = "refreshed 240 rows" if done else f"too many connections, ticket {self.hexed(5)}"
            self.say(
                "refresh",
                {"view": "monthly"},
                out,
                cause=None if done else "busy",
                clears=["busy"] if done else (),
                ok=done,
                shows=[("refresh", done)],
                gap=gap,
            )

        yield from self.retrying(act, self.rng.randint(3, 4))

    def alike_checks_while_writing(self) -> Steps:
        """The notebook is checked after each new cell; it says the same when all is well."""
        for text in self.rng.sample(["mean", "median", "share", "table", "legend", "source"], self.rng.randint(3, 5)):
            self.cell(f"show({self.main_table}, '{text}')", f"<{text}>")
            yield
            self.say("notebook.validate", {"uri": self.book}, "ok: no errors", check=("validate", ""), on=[self.book])
            yield


def trajectories(rng: Random) -> Iterator[Trace]:
    """Runs of an agent that answers questions from tables."""
    return compose(KIND, Analysis, rng)
