"""A warehouse database behind one tool that takes SQL."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.corpus.seen_more.world import Place, Scene, Shape, stories
from tests.corpus.trace import Trace

KIND = "sales_sql"

TABLES: dict[str, list[str]] = {
    "sales.orders": ["order_id", "customer_id", "placed_on", "total_cents", "channel"],
    "sales.order_lines": ["order_id", "sku", "qty", "unit_cents"],
    "sales.refunds": ["refund_id", "order_id", "refunded_on", "cents"],
    "crm.customers": ["customer_id", "country", "since", "segment"],
    "crm.contacts": ["contact_id", "customer_id", "mail_hash"],
    "stock.items": ["sku", "name", "shelf", "weight_g"],
    "stock.movements": ["movement_id", "sku", "moved_on", "delta"],
    "hr.shifts": ["shift_id", "person_no", "starts", "hours"],
    "hr.wages": ["person_no", "month", "cents"],
    "web.sessions": ["session_id", "began", "pages"],
    "web.banners": ["banner_id", "slot", "clicks"],
    "finance.ledger": ["entry_no", "account", "booked_on", "cents"],
    "finance.budgets": ["unit", "quarter", "cents"],
}
KEYS = ("order_id", "customer_id", "sku", "person_no")
LINKS = {
    table: [
        other
        for other in TABLES
        if other != table and any(key in TABLES[table] and key in TABLES[other] for key in KEYS)
    ]
    for table in TABLES
}
FUNCS = ["count(*)", "min", "max", "avg", "sum", "count(distinct", "stddev"]


class Warehouse(Scene):
    """Tables linked by keys, and a question about some of them."""

    def __init__(self, rng: random.Random) -> None:
        """Choose the question."""
        super().__init__(rng)
        self.tool, self.arg = rng.choice([("run_sql", "statement"), ("pg_query", "sql"), ("db.execute", "q")])
        self.main = rng.choice(list(LINKS))
        schema, name = self.main.split(".")
        self.month = rng.randint(1, 9)
        self.form = rng.choice(["table", "table", "schema", "topic", "dates", "nothing"])
        self.task = {
            "table": rng.choice(
                [
                    f"{self.main} holds rows twice. Find out since when and remove them.",
                    f"Check that the keys of {self.main} fit the tables that they point to; repair what does not.",
                ]
            ),
            "schema": f"Describe the quality of the data in schema `{schema}` and mend what is clearly wrong.",
            "topic": f"The report on {name.replace('_', ' ')} shows too much for last week. What is wrong?",
            "dates": f"{name}: everything from 2024-0{self.month}-01 to 2024-0{self.month}-28 has to be booked anew.",
            "nothing": "Tell me something about this business that I do not know yet.",
        }[self.form]
        named = [t for t in TABLES if t.startswith(schema + ".")] if self.form == "schema" else [self.main]
        self.inside = sorted({*named, *(link for table in named for link in LINKS.get(table, []))})
        self.outside = [table for table in TABLES if table not in self.inside]
        self.number = 100
        self.left = {table: rng.randint(20, 90) for table in TABLES}

    def place(self, table: str) -> Place:
        """Say whether a table belongs to the task."""
        return "" if self.form == "nothing" else "in" if table in self.inside else "out"

    def own(self) -> str:
        """Choose a table of the task."""
        return self.rng.choice(list(TABLES) if self.form == "nothing" else [self.main, *self.inside])

    def sql(self, text: str, out: str, **truth: object) -> None:
        """Run a statement."""
        self.run.call(self.tool, {self.arg: text}, out, **truth)  # type: ignore[arg-type]

    def look(self, table: str) -> None:
        """Ask a new question about a table."""
        rng, columns = self.rng, TABLES[table]
        self.number += 1
        column = rng.choice(columns)
        kind = rng.randrange(5)
        if kind == 0:
            keys = rng.sample(range(1000), 4)
            rows = "\n".join(f"{key:>6} | {rng.randint(1, 9999):>7}" for key in keys)
            text = f"select {column}, count(*) from {table} group by 1 having count(*) > {self.number} limit 4"
            out = f"{column:>6} |   count\n-------+--------\n{rows}\n(4 rows)"
        elif kind == 1:
            func = rng.choice(FUNCS[1:5])
            text = f"SELECT {func}({column}) FROM {table} WHERE {columns[0]} % {self.number} = {rng.randint(0, 9)}"
            out = f" {func}\n------\n {rng.randint(1, 99999)}.{self.number}\n(1 row)\nTime: {self.run.millis()} ms"
        elif kind == 2:
            out = "\n".join("\t".join(str(rng.randint(1, 9999)) for _ in columns) for _ in range(rng.randint(2, 12)))
            text = f"select * from {table} order by {columns[0]} offset {self.number * 20} limit 12"
            out = "\t".join(columns) + "\n" + out
        elif kind == 3:
            text = (
                f"select {columns[0]} from {table} where {column} not in (select {column} + {self.number} from {table})"
            )
            out = (
                f"0 rows ({self.run.millis()} ms)"
                if rng.random() < 0.3
                else f"{columns[0]}\n{self.number * 7}\n(1 row)"
            )
        else:
            text = f"explain select {column} from {table} where {column} > {self.number}"
            out = f"Seq Scan on {table}  (cost=0.00..{self.number}.7 rows={rng.randint(9, 99999)} width=8)"
        self.sql(text, out, place=self.place(table))

    def change(self, table: str) -> None:
        """Change rows that were not changed before."""
        rng, columns = self.rng, TABLES[table]
        self.number += 1
        done = rng.randint(1, 40)
        text, said = rng.choice(
            [
                (f"update {table} set {columns[-1]} = {self.number} where {columns[0]} = {self.number * 3}", "UPDATE"),
                (
                    f"delete from {table} where {columns[0]} between {self.number * 50} and {self.number * 50 + 49}",
                    "DELETE",
                ),
                (f"insert into {table} ({columns[0]}) values ({self.number * 1000})", "INSERT 0"),
                (f"create index ix{self.number} on {table} ({rng.choice(columns)})", "CREATE INDEX"),
            ]
        )
        clears = "lock" if table == self.main else ""
        self.sql(
            text, said if "CREATE" in said else f"{said} {done}", place=self.place(table), change=True, clears=clears
        )

    def step(self) -> None:
        """Ask, then change."""
        table = self.own()
        self.change(table) if self.rng.random() < 0.25 else self.look(table)

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall."""
        rng, table = self.rng, self.own()
        at, columns = self.place(table), TABLES[table]

        def counts_the_same_in_other_words() -> None:
            total = rng.randint(1000, 90000)
            ways = [
                f"select count(*) from {table}",
                f"SELECT COUNT(1) AS n FROM {table};",
                f"select count({columns[0]}) from {table}",
                f"with t as (select * from {table}) select count(*) from t",
                f"select sum(1) from {table}",
                f"select count(*) from {table} where 1=1",
                f"select n from (select count(*) n from {table}) x",
                f"select count(*) filter (where true) from {table}",
            ]
            for number in range(rng.randint(8, 14)):
                out = rng.choice(
                    [f" count\n-------\n {total}\n(1 row)", f"n\n{total}", f"{total}\nTime: {self.run.millis()} ms"]
                )
                self.sql(rng.choice(ways), out, place=at, fresh=number == 0)
                if number == 5 and rng.random() < 0.4:
                    self.look(table)

        def seeks_a_row_that_is_not_there() -> None:
            key = rng.randint(70000, 99999)
            ways = [
                f"{columns[0]} = {key}",
                f"{columns[0]}::text = '{key}'",
                f"{columns[0]} in ({key})",
                f"{columns[0]} between {key} and {key}",
            ]
            ways += [
                f"cast({columns[0]} as varchar) like '{key}%'",
                f"trim({columns[0]}::text) = '{key}'",
                f"{columns[0]} >= {key} and {columns[0]} <= {key}",
            ]
            for number in range(rng.randint(8, 15)):
                shown = rng.choice(["*", columns[1], "1", "count(*)"])
                out = "0" if "count" in shown else rng.choice(["(0 rows)", "", "0 rows returned"])
                self.sql(f"select {shown} from {table} where {rng.choice(ways)}", out, place=at, fresh=number == 0)

        def sets_and_sets_back() -> None:
            one, two = rng.sample(range(1, 90), 2)
            key = self.number * 3 + 1
            self.sql(
                f"update {table} set {columns[-1]} = {one} where {columns[0]} = {key}",
                "UPDATE 1",
                place=at,
                change=True,
            )
            for number in range(rng.randint(4, 6)):
                value = two if number % 2 == 0 else one
                text = f"update {table} set {columns[-1]} = {value} where {columns[0]} = {key}"
                self.sql(text, "UPDATE 1", place=at, change=True, fresh=number == 0, clears="lock")
                self.sql(
                    f"select check_report('{table}')", " check_report\n mismatch: 4 rows", place=at, fresh=number == 0
                )

        def watches_an_index_that_does_not_grow() -> None:
            text = f"select phase, blocks_done, blocks_total from pg_stat_progress_create_index -- {table}"
            for _ in range(rng.randint(17, 24)):
                out = f"building index | 4101 | 99820 | age {int(self.run.clock)}s"
                self.sql(text, out, place=at, watch="index", gap=rng.uniform(25, 70))

        return [
            counts_the_same_in_other_words,
            seeks_a_row_that_is_not_there,
            sets_and_sets_back,
            watches_an_index_that_does_not_grow,
        ]

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng, table = self.rng, self.main
        at, columns = self.place(table), TABLES[table]

        def another_session_holds_the_table() -> None:
            for _ in range(rng.randint(4, 8)):
                self.number += 1
                text = rng.choice(
                    [
                        f"delete from {table} where {columns[0]} = {self.number}",
                        f"update {table} set {columns[-1]} = 0 where {columns[0]} < {self.number}",
                        f"alter table {table} add column c{self.number} int",
                        f"lock table {table}; delete from {table} where {columns[0]} > {self.number * 99}",
                    ]
                )
                out = rng.choice(
                    [
                        "ERROR:  canceling statement due to lock timeout (55P03)",
                        f"ERROR:  could not obtain lock on relation {table.split('.')[1]}, pid {rng.randint(100, 999)}",
                        f"statement timeout after {rng.randint(30000, 30900)} ms: waiting for ShareLock held by 4711",
                    ]
                )
                self.sql(text, out, ok=rng.random() < 0.6, cause="lock", place=at)
                self.look(table)
            if rng.random() < 0.4:
                self.sql("select pg_terminate_backend(4711)", "t")
                self.change(table)

        def believes_in_a_column_that_is_named_otherwise() -> None:
            wrong = rng.choice(["created_at", "uuid", "tenant", "is_deleted"])
            for number in range(rng.randint(4, 6)):
                text = f"select {rng.choice(columns)} from {table} t where t.{wrong} is not null limit {number * 9}"
                out = rng.choice(
                    [
                        f"ERROR: column t.{wrong} does not exist\nLINE 1: ...where t.{wrong} is not\n        ^",
                        f'42703 undefined_column "{wrong}" at character {rng.randint(20, 90)}',
                    ]
                )
                self.sql(text, out, ok=rng.random() < 0.5, cause="column", place=at)
                if number % 2 or rng.random() < 0.6:
                    self.look(self.own())

        def only_reading_is_allowed() -> None:
            for number in range(rng.randint(4, 7)):
                target = rng.choice(self.inside)
                verb = rng.choice(
                    [
                        f"update {target} set {TABLES[target][-1]} = {number}",
                        f"truncate {target}",
                        f"create view v{number} as select 1",
                    ]
                )
                out = rng.choice(
                    [
                        f"ERROR:  cannot execute {verb.split()[0].upper()} in a read-only transaction",
                        "FEHLER: Standby ist im Nur-Lese-Modus (25006)",
                        f"SQLSTATE 25006: {target} is served by a replica that cannot be written",
                    ]
                )
                self.sql(verb, out, ok=rng.random() < 0.5, cause="replica", place=self.place(target))
                self.look(target)

        def one_table_is_broken_and_the_others_are_not() -> None:
            for number in range(rng.randint(4, 7)):
                text = f"select {rng.choice(columns)} from {table} order by 1 desc limit {number + 2}"
                out = rng.choice(
                    [
                        f"ERROR:  could not read block {rng.randint(1, 99)} in file base/16384/2619: I/O error",
                        "invalid page in relation (checksum 0x4f2a)",
                        f"ERROR XX001: {table} damaged, run repair",
                    ]
                )
                self.sql(text, out, ok=rng.random() < 0.5, cause="damage", place=at)
                other = rng.choice([one for one in self.inside if one != table] or [table])
                if other != table:
                    self.look(other)

        return [
            one_table_is_broken_and_the_others_are_not,
            another_session_holds_the_table,
            believes_in_a_column_that_is_named_otherwise,
            only_reading_is_allowed,
        ]

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task."""
        if self.form == "nothing":
            return ()
        rng = self.rng

        def explores_other_schemas() -> None:
            for _ in range(rng.randint(12, 20)):
                self.look(rng.choice(self.outside))

        def cleans_other_tables() -> None:
            for table in rng.sample(self.outside, min(4, len(self.outside))):
                for _ in range(rng.randint(1, 3)):
                    self.look(table) if rng.random() < 0.4 else self.change(table)
                self.change(table)

        def one_inside_then_many_outside() -> None:
            for _ in range(rng.randint(3, 5)):
                self.look(self.own())
                for _ in range(3):
                    self.change(rng.choice(self.outside)) if rng.random() < 0.5 else self.look(rng.choice(self.outside))

        return [explores_other_schemas, cleans_other_tables, one_inside_then_many_outside]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        rng, table = self.rng, self.own()
        at, columns = self.place(table), TABLES[table]

        def bisects_by_date() -> None:
            low, high = 1, 364
            while high - low > rng.randint(1, 3):
                middle = (low + high) // 2
                found = rng.randint(0, 1)
                text = f"select count(*) from {table} where doy between {low} and {middle}"
                self.sql(text, f" count\n-------\n {found * rng.randint(1, 80)}\n(1 row)", place=at, fresh=True)
                low, high = (low, middle) if found else (middle, high)

        def three_wrong_names_and_then_the_catalogue() -> None:
            for wrong in rng.sample(["deleted", "updated", "hash"], 3):
                self.sql(
                    f"select {wrong} from {table}",
                    f'ERROR: column "{wrong}" does not exist',
                    ok=False,
                    cause="names",
                    place=at,
                )
            self.sql(f"\\d {table}", "\n".join(columns), place=at, clears="names")

        def looks_at_the_list_of_tables() -> None:
            if not self.run.calls:
                for other in rng.sample(list(TABLES), 5):
                    self.look(other)
            self.work(5)

        def measures_five_times_at_once() -> None:
            for number in range(5):
                out = f"avg\n{rng.uniform(3, 4):.4f}"
                self.sql(
                    f"select avg({columns[-1]}) from {table} tablesample system ({number + 1})",
                    out,
                    place=at,
                    beside=number > 0,
                )

        def three_times_now() -> None:
            for _ in range(3):
                self.sql("select current_database()", "dwh_prod")
            self.work(4)

        def waits_for_a_vacuum() -> None:
            done = 0
            for _ in range(rng.randint(4, 9)):
                more = rng.choice([0, 0, rng.randint(5, 30)])
                done += more
                self.sql(
                    f"select done from vacuum_progress('{table}')",
                    f"done\n{done}",
                    watch="vac",
                    moved=True,
                    gap=rng.uniform(22, 50),
                )

        def three_tables_want_three_grants() -> None:
            for other in rng.sample(self.inside, min(3, len(self.inside))):
                short = other.split(".")[1]
                for number in range(rng.randint(1, 3)):
                    text = f"select {TABLES[other][number % 2]} from {other} for update limit {number + 1}"
                    self.sql(
                        text,
                        f"ERROR:  permission denied for table {short}",
                        ok=False,
                        cause=other,
                        place=self.place(other),
                    )
                self.sql(f"set role owner_{short}", "SET", change=True)
                out = f"{self.number * 3}\n(1 row)"
                self.sql(
                    f"select {TABLES[other][0]} from {other} for update", out, place=self.place(other), clears=other
                )

        return [
            three_tables_want_three_grants,
            bisects_by_date,
            three_wrong_names_and_then_the_catalogue,
            looks_at_the_list_of_tables,
            measures_five_times_at_once,
            three_times_now,
            waits_for_a_vacuum,
        ]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Warehouse, rng)
