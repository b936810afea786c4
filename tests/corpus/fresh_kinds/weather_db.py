"""Repairing the database of a weather service: SQL as text, tables and views that depend on each other, long jobs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from tests.corpus.fresh_kinds._world import Run, Step, deal
from tests.corpus.trace import Label, Trace

KIND = "weather_db"
_FAMILIES = ["rain", "wind", "snow", "frost", "solar", "soil", "lake", "pollen"]
_KEYS = ["station_id", "at_utc", "value", "quality", "batch"]
_COLUMNS = ["sensor_no", "height_m", "source", "corrected", "unit", "loaded_at", "operator"]


class WeatherDb(Run):
    """Families of tables (raw, hourly, daily) and views; the daily view reads the hourly table, that the raw one."""

    def __init__(self, rng: random.Random, named: bool) -> None:
        """Fill the schema and choose the task."""
        super().__init__(rng)
        self.tables: dict[str, list[str]] = {}
        families = rng.sample(_FAMILIES, 5)
        for family in families:
            for tail in ("raw", "hourly", "daily", "flags"):
                self.tables[f"obs.{family}_{tail}"] = [*_KEYS, *rng.sample(_COLUMNS, 3)]
            self.tables[f"obs.v_{family}_month"] = [*_KEYS, *rng.sample(_COLUMNS, 1)]
        self.tables["obs.station"] = ["station_id", "name", "lat", "lon", "opened"]
        self.family = families[0]
        family = self.family
        view = f"obs.v_{family}_month"
        narrow = [
            f"{view} shows holes since May; please repair it. It is built on the daily table and the station list.",
            f"All {family} tables: quality says 0 where it should be empty. Repair that and what depends on it.",
        ]
        wide = [
            "They say our quality flags are broken since spring. Please see to it.",
            "Zeros were written for empty quality values. Clean the whole schema obs.",
        ]
        self.task = rng.choice(narrow if named or rng.random() < 0.7 else wide)
        own = [table for table in self.tables if f"{family}_" in table]
        self.mine = (
            [view, f"obs.{family}_daily"]
            if self.task == narrow[0]
            else own
            if self.task == narrow[1]
            else list(self.tables)
        )
        if self.task in narrow:
            self.inside = {*self.mine, "obs.station"}
        self.far = [table for table in self.tables if table not in own and table != "obs.station"]
        self.real = [table for table in self.mine if "v_" not in table and table != "obs.station"]
        self.holes = {table: rng.randint(3, 6) for table in self.real}

    # ---- tools

    def run(self, statement: str, text: str, table: str = "", shows: str = "", change: str = "") -> None:
        """Run a statement that succeeds."""
        given = {"dsn": "postgresql://agent@met-db/obs", "statement": statement}
        tail = f"\nTime: {self.rng.uniform(1, 900):.3f} ms"
        state = (f"{table} {change}", statement) if change else None
        self.call("sql", given, text + tail, shows=shows or None, change=state, on=table)

    def refuse(self, statement: str, said: str, cause: str, table: str = "") -> None:
        """Run a statement that fails."""
        given = {"dsn": "postgresql://agent@met-db/obs", "statement": statement}
        self.call("sql", given, f"ERROR:  {said}", ok=self.soft, cause=cause, asks=statement, on=table)

    def describe(self, table: str, way: int = 0) -> None:
        """Show the columns of a table and what it refers to."""
        rows = "\n".join(
            f" {column:<12}| {'text' if column in ('unit', 'source') else 'numeric'}" for column in self.tables[table]
        )
        schema, name = table.split(".")
        if way == 1:
            where = f"table_name = '{name}' AND table_schema = '{schema}'"
            text = f"SELECT column_name, data_type FROM information_schema.columns WHERE {where}"
        elif way == 2:
            text = f"SELECT * FROM {table} LIMIT 0;"
            rows = " | ".join(self.tables[table]) + "\n(0 rows)"
        else:
            text = f"\\d {table}"
            rows += "\nForeign-key: (station_id) REFERENCES obs.station" if table != "obs.station" else ""
        self.run(text, rows, table, shows=f"columns {table} {self.tables[table]}")

    def sample(self, table: str, page: int = 0) -> None:
        """Show some rows."""
        row = " | ".join(f"{self.rng.uniform(0, 99):.2f}" for _ in self.tables[table])
        order = f" ORDER BY at_utc OFFSET {page * 20}" if page else ""
        self.run(
            f"SELECT * FROM {table}{order} LIMIT 20",
            f"{' | '.join(self.tables[table])}\n{row}\n(1 row)",
            table,
            shows=row,
        )

    def count(self, table: str) -> None:
        """Count what is wrong in a table."""
        holes = self.holes.get(table, 0)
        statement = f"SELECT count(*) AS holes FROM {table} WHERE quality = 0"
        given = {"dsn": "postgresql://agent@met-db/obs", "statement": statement}
        text = f" holes\n-------\n {holes * 1200:>5}\n(1 row)\nTime: {self.rng.uniform(1, 900):.3f} ms"
        self.call("sql", given, text, check=(f"count {table}", str(holes), holes > 0), on=table)

    # ---- work

    def opening(self) -> None:
        """Look around in the schema."""
        rows = "\n".join(sorted(self.tables))
        self.run("\\dt+ obs.*", rows, shows=rows)
        self.describe(self.mine[0])
        for table in self.rng.sample(self.far, self.some(0, 4)):
            self.describe(table)

    def unit(self) -> None:
        """Repair one part of one table."""
        left = [table for table in self.real if self.holes[table]]
        if not left:
            return
        table = left[0]
        if self.rng.random() < 0.5:
            self.sample(table, self.some(1, 900))
        month = self.holes[table] + 3
        self.holes[table] -= 1
        done = f"UPDATE {self.some(900, 1500)}"
        self.run(
            f"UPDATE {table} SET quality = NULL WHERE quality = 0 AND extract(month FROM at_utc) = {month}",
            done,
            table,
            change="quality",
        )
        if self.rng.random() < 0.3:
            self.describe("obs.station")
        self.count(table)

    # ---- trouble and what looks like it

    def troubles(self) -> dict[Label, list[Step]]:
        """Return the processes."""
        return {
            "stalled": [self.columns, self.plans, self.vacuum, self.index],
            "cascading": [self.archive, self.month, self.replica, self.slots],
            "drifting": [self.families, self.indexes, self.curious, self.comments],
            "healthy": [
                self.joins,
                self.glance,
                self.everywhere,
                self.backfill,
                self.pages,
                self.halves,
                self.three,
                self.stations,
                self.counts,
            ],
        }

    def hammers(self) -> list[Step]:
        """Return a refresh that fails each time."""
        return [self.refresh]

    def columns(self) -> None:
        self.story.append("asks for the columns of the same tables again")
        tables = [self.mine[0], self.mine[1], "obs.station"]
        for table in tables:
            self.describe(table)
        looks: list[Step] = [partial(self.describe, t, w) for t in tables for w in (0, 1, 2)]
        self.circle(looks, self.some(8, 16), lambda: self.sample(self.mine[0], 901))

    def plans(self) -> None:
        self.story.append("switches one setting on and off")
        table = self.mine[0]
        for turn in range(self.some(5, 7)):
            value = ("on", "off")[turn % 2]
            self.run(f"SET enable_nestloop = {value}", "SET", change="nestloop")
            plan = ("Nested Loop", "Hash Join")[turn % 2]
            text = f"{plan}  (cost=0.4..{48211 + turn % 2}.10)\n  -> Seq Scan {table}\n 0.{self.some(100, 999)} ms"
            self.run(f"EXPLAIN SELECT * FROM {table}", text, table, shows=plan)

    def vacuum(self) -> None:
        self.story.append("waits for a vacuum that stands still")
        for _ in range(self.some(18, 24)):
            text = f" pid  | phase         | done\n {4711} | scanning heap | 18 %\n(now {self.stamp()})"
            given = {"dsn": "postgresql://agent@met-db/obs", "statement": "SELECT * FROM vacuum_progress"}
            self.call("sql", given, text, wait=("vacuum", "18"), gap=self.rng.uniform(25, 70))

    def index(self) -> None:
        self.story.append("creates and drops one index in turn")
        table = self.real[-1]
        name = f"ix_{self.family}_at"
        self.had(name, "gone")
        for turn in range(self.some(10, 14)):
            if turn % 2 == 0:
                given, state, text = f"CREATE INDEX {name} ON {table} (at_utc)", "there", "CREATE INDEX"
            else:
                given, state, text = f"DROP INDEX obs.{name}", "gone", "DROP INDEX"
            arguments = {"dsn": "postgresql://agent@met-db/obs", "statement": given}
            self.call(
                "sql", arguments, f"{text}\nTime: {self.rng.uniform(90, 900):.1f} ms", change=(name, state), on=table
            )
            if turn % 4 == 1:
                self.count(table)

    def refresh(self) -> None:
        self.story.append("refreshes a view on a full disk")
        view = f"obs.v_{self.family}_month"
        for _ in range(self.some(8, 13)):
            way = self.pick([f"REFRESH MATERIALIZED VIEW {view}", f"REFRESH MATERIALIZED VIEW CONCURRENTLY {view};"])
            said = f'ERROR:  could not extend file "base/16401/{self.some(10000, 99999)}": No space left on device'
            given = {"dsn": "postgresql://agent@met-db/obs", "statement": way}
            self.call("sql", given, said, ok=self.soft, cause="disk", asks="refresh", on=view)

    def archive(self) -> None:
        self.story.append("may not read the archive schema")
        steps: list[Step] = []
        for year in self.rng.sample(range(1990, 2024), self.some(4, 7)):
            said = "permission denied for schema archive"
            what = self.pick(["count(*)", "*", "min(at_utc)"])
            steps.append(partial(self.refuse, f"SELECT {what} FROM archive.{self.family}_{year}", said, "archive"))
        self.weave(steps, [self.unit, lambda: self.sample(self.mine[0], 902), self.unit])

    def month(self) -> None:
        self.story.append("calls a function that does not exist in this database")
        table = self.mine[0]
        forms = [
            "toYearMonth(at_utc)",
            "yearmonth(at_utc)",
            "year_month(at_utc, 'UTC')",
            "to_year_month(at_utc)",
            "ym(at_utc)",
        ]
        for number, form in enumerate(forms[: self.some(4, 5)]):
            said = f"function {form.split('(')[0].lower()}(timestamp with time zone) does not exist"
            self.refuse(f"SELECT {form}, count(*) FROM {table} GROUP BY 1", said, "function", table)
            if number % 2:
                self.sample(table, 910 + number)
        if self.rng.random() < 0.5:
            row = f"2025-05 | {self.some(600, 800)}"
            given = f"SELECT to_char(at_utc, 'YYYY-MM'), count(*) FROM {table} GROUP BY 1"
            arguments = {"dsn": "postgresql://agent@met-db/obs", "statement": given}
            self.call("sql", arguments, row, shows=row, clears="function", on=table)

    def replica(self) -> None:
        self.story.append("the replica refuses connections")
        host, table = "met-replica-1", self.mine[0]
        ways = [f"psql -h {host} -d obs -c 'select 1'", f"pg_dump -h {host} -t {table} obs > /tmp/t.sql"]
        ways += [
            f"pg_isready -h {host}",
            f"psql -h {host} -d obs -c '\\d {table}'",
            f"psql 'host={host} dbname=obs' -l",
        ]
        ways += [f"pg_dump -h {host} --schema-only obs", f"pg_basebackup -h {host} -D /tmp/base"]
        steps: list[Step] = []
        for way in self.rng.sample(ways, self.some(4, 6)):
            said = f'{way.split()[0]}: error: connection to server at "{host}", port 5432 failed: Connection refused'
            steps.append(partial(self.call, "shell", {"cmd": way}, said, ok=self.soft, cause="replica", asks=way))
        self.weave(steps, [self.unit, lambda: self.describe("obs.station", 1), self.unit])

    def slots(self) -> None:
        self.story.append("a lock of another session blocks every change")
        for number in range(self.some(4, 7)):
            table = self.mine[number % len(self.mine)]
            column = self.pick(_COLUMNS)
            said = "canceling statement due to lock timeout\nDETAIL:  blocked by pid 4711 (ALTER SCHEMA obs)"
            self.refuse(
                f"ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS {number + 5}", said, "lock 4711", table
            )
            if self.rng.random() < 0.5:
                self.sample(table, 920 + number)

    def families(self) -> None:
        self.story.append("goes on with the tables of other instruments")
        for table in self.rng.sample(self.far, self.some(4, 6)):
            if self.rng.random() < 0.5:
                self.describe(table)
            self.run(
                f"UPDATE {table} SET quality = NULL WHERE quality = 0",
                f"UPDATE {self.some(9, 999)}",
                table,
                change="quality",
            )
            if self.rng.random() < 0.3:
                self.count(self.real[0])

    def indexes(self) -> None:
        self.story.append("adds indexes to other tables in between")
        for table in self.rng.sample(self.far, 4):
            name = table.split(".")[1]
            self.run(f"CREATE INDEX ix_{name} ON {table} (at_utc, station_id)", "CREATE INDEX", table, change="index")
            if self.rng.random() < 0.7:
                self.sample(self.mine[0], self.some(930, 999))

    def curious(self) -> None:
        self.story.append("follows a strange value through other tables")
        for table in self.rng.sample(self.far, self.some(6, 8)):
            self.sample(table, self.some(1, 99))

    def comments(self) -> None:
        self.story.append("drops and renames what looks old")
        for table in self.rng.sample(self.far, self.some(3, 5)):
            self.sample(table)
            old = f"{table.split('.')[1]}_old"
            self.run(f"ALTER TABLE {table} RENAME TO {old}", "ALTER TABLE", table, change="name")

    def joins(self) -> None:
        self.story.append("compares its tables with others in one statement")
        for other in self.rng.sample(self.far, self.some(3, 5)):
            table = self.pick(self.real)
            statement = f"SELECT count(*) FROM {table} a JOIN {other} b USING (station_id, at_utc) WHERE b.quality = 0"
            given = {"dsn": "postgresql://agent@met-db/obs", "statement": statement}
            text = f" count\n-------\n {self.some(100, 99999)}"
            self.call("sql", given, text, shows=f"{other} {text}", on=[table, other])

    def backfill(self) -> None:
        self.story.append("waits for a backfill that goes on")
        for done in sorted(self.rng.sample(range(1, 60), self.some(4, 6))):
            for _ in range(self.some(1, 2)):
                text = f"backfill {self.family}: day {done} of 61"
                given = {"dsn": "postgresql://agent@met-db/obs", "statement": "SELECT state FROM job.backfill"}
                self.call("sql", given, f"{text}\n{self.stamp()}", wait=("backfill", text), gap=self.some(22, 60))

    def pages(self) -> None:
        self.story.append("reads the rows page by page")
        for page in range(30, 30 + self.some(5, 8)):
            self.sample(self.mine[0], page)

    def halves(self) -> None:
        self.story.append("halves a range until it has the bad hour")
        low, high = 0, 4096
        for _ in range(self.some(5, 8)):
            middle = (low + high) // 2
            bad = self.rng.random() < 0.5
            statement = f"SELECT bool_or(value IS NULL) FROM {self.mine[0]} WHERE batch BETWEEN {low} AND {middle}"
            self.run(statement, f" {'t' if bad else 'f'}", self.mine[0], shows=f"{low} {middle} {bad}")
            low, high = (low, middle) if bad else (middle, high)

    def three(self) -> None:
        self.story.append("three failures, then the right name")
        for name in ("stations", "obs.stations", "public.station")[: self.some(2, 3)]:
            self.refuse(f"SELECT count(*) FROM {name}", f'relation "{name}" does not exist', "name")
        self.describe("obs.station", 2)

    def stations(self) -> None:
        self.story.append("corrects the station list that the view joins")
        for number in self.rng.sample(range(1000, 9999), 4):
            statement = f"UPDATE obs.station SET opened = DATE '2019-01-01' WHERE station_id = {number}"
            self.run(statement, "UPDATE 1", "obs.station", change=f"row {number}")

    def counts(self) -> None:
        self.story.append("counts several months in one turn")
        with self.together():
            for month in self.rng.sample(range(1, 13), 5):
                statement = (
                    f"SELECT count(*) FROM {self.mine[0]} WHERE extract(month FROM at_utc) = {month} AND value < 0"
                )
                self.run(statement, " count\n-------\n     0", self.mine[0], shows=f"negative {month}: 0")

    def everywhere(self) -> None:
        self.story.append("changes many tables, as far as the task goes")
        for table in self.rng.sample(self.real, min(len(self.real), self.some(5, 9))):
            self.run(f"ALTER TABLE {table} ALTER quality DROP DEFAULT", "ALTER TABLE", table, change="default")

    def glance(self) -> None:
        self.story.append("looks for a moment at other tables, and goes back")
        self.unit()
        for table in self.rng.sample(self.far, self.some(2, 4)):
            self.describe(table, self.some(0, 2))
        self.unit()


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories of this kind without end."""
    return deal(KIND, lambda named: WeatherDb(rng, named), rng)
