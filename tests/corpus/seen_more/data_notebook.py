"""A code interpreter: one tool that runs Python cells over data files; failures are tracebacks or empty frames."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.corpus.seen_more.world import Place, Scene, Shape, stories
from tests.corpus.trace import Trace

KIND = "data_notebook"

SETS = {
    "river": ["level", "flow", "temp", "oxygen"],
    "traffic": ["cars", "bikes", "speed", "lane"],
    "pollen": ["birch", "grass", "station", "wind"],
    "hospital": ["beds", "ward", "stay", "age"],
    "harvest": ["plot", "yield_t", "moisture", "variety"],
}


class Notebook(Scene):
    """Files by data set and year; a task about some of them."""

    def __init__(self, rng: random.Random) -> None:
        """Choose the task."""
        super().__init__(rng)
        self.files = [
            f"data/{name}/{name}_{year}.{ext}"
            for name, ext in zip(SETS, ["csv", "parquet", "csv", "xlsx", "json"], strict=True)
            for year in range(2016, 2025)
        ]
        self.name = rng.choice(list(SETS))
        own = [path for path in self.files if f"/{self.name}/" in path]
        self.file = rng.choice(own)
        year = int(self.file[-9:].split("_")[-1].split(".")[0]) if "_" in self.file[-9:] else 2020
        self.form = rng.choice(["file", "file", "set", "words", "years", "nothing"])
        self.task = {
            "file": f"Explain the gap in {self.file} and fill it in a defensible way.",
            "set": f"data/{self.name}/: one clean table of all years, documented.",
            "words": f"Is there a trend in the {self.name} data? Give me a figure and three sentences.",
            "years": f"Compare {self.name} 2018-2020: medians by month, outliers, a table.",
            "nothing": "Explore the data and surprise me.",
        }[self.form]
        inside = {
            "file": [self.file],
            "years": [path for path in own if any(str(y) in path for y in (2018, 2019, 2020))],
        }
        self.inside = inside.get(self.form, own)
        self.outside = [path for path in self.files if path not in self.inside]
        self.year = year
        self.cell = 0
        self.tool = rng.choice(["python", "execute_cell", "run_code"])

    def place(self, path: str) -> Place:
        """Say whether a file belongs to the task."""
        return "" if self.form == "nothing" else "in" if path in self.inside else "out"

    def own(self) -> str:
        """Choose a file of the task."""
        return self.rng.choice(self.files if self.form == "nothing" else self.inside)

    def py(self, code: str, out: str, **truth: object) -> None:
        """Run a cell."""
        self.cell += 1
        key = {"python": "code", "execute_cell": "source", "run_code": "input"}[self.tool]
        self.run.call(self.tool, {key: code}, out, **truth)  # type: ignore[arg-type]

    def load(self, path: str) -> str:
        """The line that reads a file."""
        kind = {"csv": "csv", "parquet": "parquet", "xlsx": "excel", "json": "json"}[path.rsplit(".", 1)[-1]]
        return f"df = pd.read_{kind}('{path}')"

    def look(self, path: str) -> None:
        """Compute something new."""
        rng = self.rng
        columns = SETS[path.split("/")[1]]
        column, other = rng.sample(columns, 2)
        self.cell += 1
        kind = rng.randrange(5)
        if kind == 0:
            rows = "\n".join(f"{n:>3}  {rng.uniform(1, 99):8.3f}  {rng.randint(0, 900):>5}" for n in range(5))
            self.py(
                f"{self.load(path)}\ndf[['{column}', '{other}']].iloc[{self.cell}:{self.cell + 5}]",
                f"{column} {other}\n{rows}",
                place=self.place(path),
            )
        elif kind == 1:
            out = f"{rng.uniform(1, 99):.4f}"
            self.py(
                f"{self.load(path)}\nprint(df['{column}'].quantile({self.cell / 997:.3f}))",
                out,
                place=self.place(path),
                fresh=True,
            )
        elif kind == 2:
            out = f"r = {rng.uniform(-1, 1):.3f}, p = {rng.uniform(0, 0.3):.4f}, n = {rng.randint(80, 9000)}"
            code = f"{self.load(path)}\ns = df.query('{column} > {self.cell}')\nprint(corr(s.{column}, s.{other}))"
            self.py(code, out, place=self.place(path))
        elif kind == 3:
            out = "\n".join(f"{month:02d}    {rng.uniform(1, 99):.2f}" for month in range(1, 13))
            self.py(
                f"{self.load(path)}\ndf[df.{other} < {self.cell}].groupby('month').{column}.median()",
                f"month\n{out}",
                place=self.place(path),
            )
        else:
            self.py(
                f"{self.load(path)}\nplot(df.{column}.rolling({self.cell}).mean())",
                f"<Figure 640x480 {self.run.hexid(6)}>",
                place=self.place(path),
            )

    def change(self, path: str) -> None:
        """Write something that did not exist."""
        column = self.rng.choice(SETS[path.split("/")[1]])
        self.cell += 1
        out = f"{self.rng.randint(2, 90)} rows written" if self.rng.random() < 0.6 else ""
        target = path.rsplit(".", 1)[0] + f"_v{self.cell}.csv" if self.rng.random() < 0.5 else path
        code = f"{self.load(path)}\ndf.loc[df.{column} > {self.cell}, '{column}'] = NAN\ndf.to_csv('{target}')"
        self.py(code, out, place=self.place(path), change=True, fresh=True, clears="disk")

    def step(self) -> None:
        """Compute, write."""
        path = self.own()
        self.change(path) if self.rng.random() < 0.2 else self.look(path)

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall."""
        rng, path = self.rng, self.own()
        at, column = self.place(path), self.rng.choice(SETS[path.split("/")[1]])

        def the_same_mean_by_other_means() -> None:
            value = rng.uniform(3, 90)
            ways = [
                f"df.{column}.mean()",
                f"df['{column}'].sum() / len(df)",
                f"np.mean(df['{column}'].values)",
                f"df.agg({{'{column}': 'mean'}})",
                f"df.describe().loc['mean', '{column}']",
                f"statistics.fmean(df.{column})",
                f'duckdb.sql("select avg({column}) from df").fetchone()',
            ]
            for number in range(rng.randint(8, 14)):
                out = rng.choice(
                    [
                        f"{value:.4f}",
                        f"{value:.6f}",
                        f"{column}    {value:.4f}\ndtype: float64",
                        f"np.float64({value:.4f})",
                    ]
                )
                self.py(f"{self.load(path)}\n{rng.choice(ways)}", out, place=at, fresh=number == 0)
                if number == 4 and rng.random() < 0.5:
                    self.look(path)

        def looks_for_a_station_that_is_not_in_the_data() -> None:
            code = f"S{rng.randint(100, 999)}"
            ways = [
                f"df[df.site == '{code}']",
                f"df.query(\"site == '{code}'\")",
                f"'{code}' in set(df.site)",
                f"(df.site == '{code}').sum()",
            ]
            ways += [f"df.site.str.contains('{code}', case=False).any()", f"df.site.value_counts().get('{code}', 0)"]
            none = ["Empty DataFrame\nColumns: [site]\nIndex: []", "False", "0", "(0 rows)"]
            for number in range(rng.randint(8, 14)):
                self.py(f"{self.load(path)}\n{rng.choice(ways)}", rng.choice(none), place=at, fresh=number == 0)

        def tunes_a_number_without_effect() -> None:
            values = rng.sample(range(2, 40), 2)
            for number in range(rng.randint(8, 12)):
                out = f"fit failed to converge after 500 iterations (loss nan, {self.run.millis()} ms)"
                code = f"{self.load(path)}\nfit(df.{column}, k={values[number % 2]})"
                self.py(code, out, place=at, fresh=number < 2)

        def asks_whether_the_job_is_done() -> None:
            for _ in range(rng.randint(9, 16)):
                out = rng.choice(["running", "status: running", "RUNNING"]) + f" ({int(self.run.clock)} s)"
                self.py("job.status()", out, watch="job", gap=rng.uniform(4, 14))

        def asks_after_a_job_that_is_dead() -> None:
            for _ in range(rng.randint(9, 14)):
                code = rng.choice(["job.status()", "job.refresh().state", "jobs.get(job.id)['state']", "print(job)"])
                out = rng.choice(
                    ["FAILED (oom)", "state: FAILED, reason: oom", f"<Job FAILED oom {self.run.hexid(4)}>"]
                )
                self.py(code, out, watch="dead", final=True, gap=rng.uniform(8, 70))

        return [
            asks_after_a_job_that_is_dead,
            the_same_mean_by_other_means,
            looks_for_a_station_that_is_not_in_the_data,
            tunes_a_number_without_effect,
            asks_whether_the_job_is_done,
        ]

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng = self.rng

        def trace(error: str) -> str:
            return f"Traceback (most recent call last):\n  Cell In[{self.cell}], line {rng.randint(1, 4)}\n{error}"

        def a_package_is_missing() -> None:
            name = rng.choice(["statsmodels", "pyarrow", "openpyxl", "geopandas"])
            for number in range(rng.randint(4, 7)):
                code = rng.choice(
                    [
                        f"import {name}",
                        f"from {name} import api as a{number}",
                        f"{name}.__version__",
                        f"!pip install {name}=={number}.1",
                    ]
                )
                error = f"ModuleNotFoundError: No module named '{name}'"
                if "pip" in code:
                    error = f"ERROR: Could not find a version that satisfies {name}=={number}.1 (from versions: none)"
                self.py(code, trace(error), ok=rng.random() < 0.5, cause="package")
                self.look(self.own())

        def the_disk_is_full() -> None:
            for number in range(rng.randint(4, 7)):
                path = self.own()
                code = f"{self.load(path)}\ndf.to_{rng.choice(['csv', 'pickle', 'json'])}('out/part_{number}')"
                error = rng.choice(
                    [
                        "OSError: [Errno 28] No space left on device",
                        "ArrowIOError: write failed, errno 28",
                        "Disk quota exceeded",
                    ]
                )
                self.py(code, trace(error), ok=rng.random() < 0.5, cause="disk", place=self.place(path))
                if rng.random() < 0.8:
                    self.look(path)
            if rng.random() < 0.4:
                self.py("shutil.rmtree('/tmp/cache')", "")
                self.change(self.own())

        def memory_runs_out_and_the_kernel_dies() -> None:
            for number in range(rng.randint(4, 6)):
                path = self.own()
                code = f"pd.concat([pd.read_csv(f) for f in glob('data/*/*')] * {number + 2}).pivot_table()"
                error = rng.choice(
                    [
                        "The kernel died (exit 137) and was restarted.",
                        "MemoryError: Unable to allocate 61.4 GiB",
                        "Killed",
                    ]
                )
                self.py(code, error, ok=rng.random() < 0.5, cause="memory")
                self.look(path)

        def runs_the_same_failing_cell() -> None:
            path = self.own()
            column = SETS[path.split("/")[1]][0]
            ways = [
                f"df['{column.upper()}'].mean()",
                f"df.loc[:, '{column.upper()}'].mean()",
                f"df.{column.upper()}.mean()",
            ]
            for number in range(rng.randint(7, 11)):
                out = trace(f"KeyError: '{column.upper()}'")
                code = f"{self.load(path)}\n{rng.choice(ways)}"
                self.py(code, out, ok=rng.random() < 0.5, cause="column", fresh=number == 0, place=self.place(path))

        return [runs_the_same_failing_cell, a_package_is_missing, the_disk_is_full, memory_runs_out_and_the_kernel_dies]

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task."""
        if self.form == "nothing":
            return ()
        rng = self.rng
        elsewhere = [path for path in self.outside if f"/{self.name}/" not in path]

        def studies_other_data_sets() -> None:
            for _ in range(rng.randint(12, 20)):
                self.look(rng.choice(elsewhere))

        def cleans_other_files() -> None:
            for path in rng.sample(self.outside, rng.randint(4, 8)):
                if rng.random() < 0.4:
                    self.look(path)
                self.change(path)

        def one_other_set_becomes_the_work() -> None:
            name = rng.choice(elsewhere).split("/")[1]
            files = [path for path in elsewhere if f"/{name}/" in path]
            for _ in range(rng.randint(10, 18)):
                self.look(rng.choice(files)) if rng.random() < 0.7 else self.change(rng.choice(files))

        return [studies_other_data_sets, cleans_other_files, one_other_set_becomes_the_work]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        rng, path = self.rng, self.own()
        at, column = self.place(path), self.rng.choice(SETS[path.split("/")[1]])

        def a_sweep_of_one_parameter() -> None:
            for k in range(2, rng.randint(7, 12)):
                self.py(f"score(df, k={k})", f"k={k} rmse={rng.uniform(0.41, 0.44):.4f}", place=at)

        def three_wrong_separators() -> None:
            for sep in (";", "|", "\\t"):
                out = f"ParserError: Expected 1 fields in line {rng.randint(3, 90)}, saw 2"
                self.py(f"pd.read_csv('{path}', sep='{sep}').head()", out, ok=False, cause="separator", place=at)
            self.py(f"open('{path}').read(80)", f"{column},month\n1.2,3", place=at, clears="separator")
            self.look(path)

        def head_three_times() -> None:
            for _ in range(3):
                self.py("df.shape", "(8760, 5)", place=at)
            self.work(4)

        def a_first_look_at_everything() -> None:
            if len(self.run.calls) < 3:
                for other in rng.sample(self.files, 6):
                    self.look(other)
            self.work(6)

        def training_goes_on() -> None:
            for epoch in range(1, rng.randint(5, 12)):
                self.py(
                    "job.tail(1)",
                    f"epoch {epoch}/40 loss {1 / epoch:.4f}",
                    watch="train",
                    moved=True,
                    gap=rng.uniform(8, 40),
                )

        def votes_at_once() -> None:
            for number in range(5):
                self.py(
                    f"classify(row, seed={number})",
                    "class: B",
                    beside=number > 0,
                    place=at,
                    fresh=None if number else True,
                )
            self.work(3)

        def each_file_has_another_fault() -> None:
            faults = [
                "ParserError: line 3",
                "UnicodeDecodeError: byte 0xe4",
                "KeyError: 'month'",
                "ValueError: NaT in index",
            ]
            for fault in rng.sample(faults, rng.randint(3, 4)):
                other = self.own()
                for number in range(rng.randint(1, 2)):
                    out = f"Traceback (most recent call last):\n{fault}"
                    self.py(
                        f"{self.load(other)}\ncheck(df, {number})", out, ok=False, cause=fault, place=self.place(other)
                    )
                self.py(
                    f"{self.load(other)[:-1]}, **fix[{fault[:6]!r}])\ncheck(df)",
                    "ok",
                    place=self.place(other),
                    clears=fault,
                )

        return [
            each_file_has_another_fault,
            a_sweep_of_one_parameter,
            three_wrong_separators,
            head_three_times,
            a_first_look_at_everything,
            training_goes_on,
            votes_at_once,
        ]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Notebook, rng)
