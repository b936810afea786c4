"""A transit agency's timetable feed: CSV files in a folder, a validator, a shell."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace

STOPS = [
    "Harbour",
    "Market",
    "Cathedral",
    "Airport",
    "Zoo",
    "Stadium",
    "Mill-Lane",
    "Old-Bridge",
    "University",
    "Hospital",
    "Depot",
    "Fairground",
]
FILES = ["stop_times.txt", "trips.txt", "calendar.txt", "calendar_dates.txt", "shapes.txt"]


class GtfsFeed(Stage):
    """One route of a feed has to be changed; its trips and stops are one step away."""

    kind = "gtfs_feed"
    styles = ("csv",)

    def setup(self) -> None:
        self.route = self.pick("7", "12", "N4", "X31", "S2", "110")
        self.others = [r for r in ("5", "9", "21", "N1", "X30", "S1", "111", "200") if r != self.route]
        self.feed = self.pick("feed", "gtfs/2026-spring", "data/out", "/srv/gtfs/current")
        self.trips = [f"{self.route}-{self.pick('wk', 'sa', 'su')}-{n:03}" for n in self.some(range(1, 400), 12)]
        self.task = self.pick(
            f"Route {self.route} gets a new stop between {self.pick(*STOPS)} and {self.pick(*STOPS)} from April. "
            f"Update {self.feed}.",
            f"The validator complains about route {self.route} in {self.feed}. Make those errors go away, nothing "
            "else please.",
            f"retime route {self.route}: +2 min after the bridge, all trips ({self.feed}/stop_times.txt)",
        )

    def sh(self, line: str, result: str, **more: Any) -> None:
        """Run a command."""
        self.call("bash", {"cmd": line}, result, **more)

    def rows(self, trip: str) -> str:
        """Return lines of stop times."""
        hour = self.n(5, 22)
        return "\n".join(f"{trip},{hour}:{self.n(10, 59)}:00,{self.pick(*STOPS)},{k}" for k in range(self.n(2, 6)))

    def look(self, trip: str, **more: Any) -> None:
        """Show the rows of a trip."""
        file = f"{self.feed}/{self.pick(*FILES)}"
        line = self.pick(
            f"grep -n '^{trip},' {file}",
            f"awk -F, '$1==\"{trip}\"' {file}",
            f"xsv search -s trip_id '^{trip}$' {file} | head -{self.n(5, 60)}",
        )
        self.sh(line, self.rows(trip), **more)

    def edit(self, trip: str, **more: Any) -> None:
        """Change the rows of a trip."""
        minute = self.n(10, 59)
        self.sh(
            f"sed -i '/^{trip},/s/:{self.n(10, 59)}:00/:{minute}:00/' {self.feed}/stop_times.txt && git diff --stat",
            f" stop_times.txt | {self.n(2, 40)} +-\n {trip} {minute}",
            change=True,
            **more,
        )

    def step(self) -> None:
        trip = self.pick(*self.trips)
        kind = self.n(0, 4)
        if kind < 2:
            self.look(trip)
        elif kind < 4:
            self.edit(trip)
        else:
            self.sh(
                f"python tools/validate.py {self.feed} --route {self.route}",
                f"{self.n(1, 40)} notices, {self.n(1, 90)} trips checked, worst {trip}",
            )

    def drift_neighbour_routes(self) -> None:
        """The same change in routes that nobody spoke of, one after the other."""
        self.lead()
        for route in self.some(self.others, 5, 7):
            for _ in self.times(1, 2):
                trip = f"{route}-{self.pick('wk', 'sa')}-{self.n(1, 300):03}"
                self.look(trip, out=True)
                self.edit(trip, out=True)
            self.now_and_then(0.2)

    def drift_fares(self) -> None:
        """Cleans the fare tables, a file that the route does not use."""
        self.lead()
        for _ in self.times(8, 12):
            zone, price = self.pick(*"ABCDEF"), self.x(1, 9, 2)
            self.sh(
                *self.pick(
                    (f"grep -n ',{zone},' {self.feed}/fare_rules.txt", f"{self.n(1, 400)}:adult,{zone},{price}"),
                    (
                        f"cut -d, -f{self.n(1, 4)} {self.feed}/fare_attributes.txt | sort | uniq -c",
                        f"{self.n(2, 80)} {price}",
                    ),
                    (f"cat docs/tariff-{self.n(2011, 2025)}.md", f"# Tariff\nzone {zone}: {price} EUR"),
                ),
                out=True,
            )
            if self.chance(0.4):
                self.sh(
                    f"sed -i 's/,{zone},.*/,{zone},{price}/' {self.feed}/fare_rules.txt",
                    f"{self.n(1, 40)} lines",
                    out=True,
                    change=True,
                )
            self.now_and_then(0.1)
        self.tail()

    def drift_stop_names(self) -> None:
        """Prettifies names and coordinates of stops that the route never serves."""
        self.lead()
        for _ in self.times(8, 11):
            stop = f"{self.pick(*self.others)}-{self.pick(*STOPS)}"
            args = {
                "path": f"{self.feed}/stops.txt",
                "find": stop,
                "replace": stop.replace("-", " ") + f" ({self.n(1, 9)})",
            }
            self.call(
                "replace_in_file", args, f"1 replacement at line {self.n(2, 4000)}: {stop}", out=True, change=True
            )
            self.now_and_then(0.2)

    def drift_validator_code(self) -> None:
        """Does not use the validator, but improves it, module by module."""
        self.lead()
        for name in self.some(
            [
                "geo",
                "colours",
                "agencies",
                "wheelchair",
                "pathways",
                "translations",
                "levels",
                "transfers",
                "frequencies",
                "html_report",
            ],
            8,
            10,
        ):
            path = f"tools/rules/{name}.py"
            self.sh(
                f"cat {path}",
                f"def check_{name}(feed):\n    for row in feed.{name}:\n        yield from ...  # {self.n(1, 900)}",
                out=True,
            )
            if self.chance(0.7):
                self.call(
                    "write_file",
                    {
                        "path": path,
                        "content": f"def check_{name}(feed: Feed) -> Iterator[Notice]:\n    ...  # v{self.n(2, 9)}",
                    },
                    f"wrote {self.n(200, 9000)} bytes to {path}",
                    out=True,
                    change=True,
                )

    def stall_same_notice(self) -> None:
        """The validator is run with other flags, and nothing is changed in between."""
        self.work(4, 9)
        count, stop = self.n(3, 40), self.pick(*STOPS)
        for number in self.times(7, 12):
            flag = self.pick(
                "", " -v", " --strict", " --format json", " --no-cache", " 2>&1 | tail", " | head -50", " --all"
            )
            self.sh(
                f"python tools/validate.py {self.feed} --route {self.route}{flag}",
                self.pick(
                    f"{count} x decreasing_time at {stop}",
                    f"decreasing_time: {count} ({stop})",
                    f'{{"decreasing_time": {count}, "stop": "{stop}"}}',
                ),
                new=number == 0,
            )
        self.tail()

    def stall_undone(self) -> None:
        """A row is added, taken out, added."""
        self.work(4, 8)
        trip = self.trips[0]
        for number in self.times(8, 14):
            line = (
                f"sed -i '/{trip},.*Zoo/d' {self.feed}/stop_times.txt"
                if number % 2
                else f"echo '{trip},09:14:00,Zoo,5' >> {self.feed}/stop_times.txt"
            )
            self.sh(line, "", new=number < 2)

    def stall_three_files(self) -> None:
        """Counts the lines of three files in rotation."""
        self.work(4, 9)
        counts = {name: self.n(100, 99999) for name in FILES[:3]}
        for number in self.times(10, 16):
            name = FILES[number % 3]
            line = self.pick(
                f"wc -l {self.feed}/{name}", f"cat {self.feed}/{name} | wc -l", f"grep -c '' {self.feed}/{name}"
            )
            self.sh(line, f"{counts[name]}", new=number < 3)
        self.tail()

    def stall_upload_waits(self) -> None:
        """The agency's portal 'is processing' for longer than anyone should wait."""
        self.work(5, 9)
        for number in self.times(14, 22):
            self.sh(
                "curl -s https://portal.transit.example/uploads/last",
                f"state=processing now={self.time()}",
                new=number == 0,
                wait="portal",
                gap=self.x(30, 120),
            )

    def cascade_encoding(self) -> None:
        """A byte that is no UTF-8 stops whatever reads the file."""
        self.work(4, 9)
        at = self.n(1000, 90000)
        for _ in self.times(5, 8):
            tool = self.pick("validate.py", "retime.py", "zip_feed.py", "shift.py", "stats.py")
            text = self.pick(
                f"UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9 in position {at} ({tool})",
                f"Traceback (most recent call last):\n  File tools/{tool}, line "
                f"{self.n(3, 200)}\nUnicodeDecodeError: 0xe9",
                f"{tool}: could not parse stops.txt near byte {at}",
            )
            self.sh(
                f"python tools/{tool} {self.feed} --trip {self.pick(*self.trips)}", text, ok=False, cause="encoding"
            )
            if self.chance(0.4):
                self.sh(
                    self.pick(f"wc -l {self.feed}/{self.pick(*FILES)}", f"ls -la {self.feed} | head -{self.n(3, 30)}"),
                    f"{self.n(100, 99999)} {self.n(1, 99)}",
                )

    def cascade_disk(self) -> None:
        """No space left: sed, git and the zip all say so in their own words."""
        self.work(4, 8)
        for trip in self.some(self.trips, 5, 8):
            self.sh(
                *self.pick(
                    (
                        f"sed -i '/^{trip},/d' {self.feed}/stop_times.txt",
                        f"sed: couldn't flush {self.feed}/sed{self.hex(5)}: No space left on device",
                    ),
                    (f"git commit -am '{trip} retimed'", f"fatal: unable to write new index file ({trip})"),
                    (f"zip -r /tmp/{trip}.zip {self.feed}", "zip I/O error: No space left on device"),
                    (
                        f"cp {self.feed}/trips.txt {self.feed}/trips.{trip}",
                        "cp: error writing: No space left on device",
                    ),
                ),
                ok=False,
                cause="disk",
            )
            if self.chance(0.3):
                self.look(trip)

    def healthy_many_edits(self) -> None:
        """Every trip of the route, in one file."""
        for trip in self.trips:
            self.look(trip)
            self.edit(trip)

    def healthy_errors_become_fewer(self) -> None:
        """Validation errors differ, and are solved one by one."""
        self.work(2, 4)
        left = self.n(7, 12)
        while left:
            trip = self.pick(*self.trips)
            self.sh(
                f"python tools/validate.py {self.feed} --route {self.route}",
                f"ERROR {self.pick('missing_stop', 'decreasing_time', 'foreign_key', 'fast_travel')} {trip} line "
                f"{self.n(1, 9999)} ({left} left)",
                ok=False,
            )
            self.edit(trip)
            left -= self.n(1, min(2, left))
        self.sh(f"python tools/validate.py {self.feed} --route {self.route}", "0 errors")

    def healthy_does_it_occur(self) -> None:
        """grep ends with exit code 1 where nothing is found; that is an answer."""
        self.work(2, 4)
        for trip in self.some(self.trips, 6, 9):
            self.sh(f"grep -c '{trip}' {self.feed}/{self.pick(*FILES)}", f"exit code 1 (no line with {trip})", ok=False)
        self.work(4, 8)

    def healthy_calendar_of_the_route(self) -> None:
        """Files that the route's trips refer to by id."""
        self.work(2, 4)
        for trip in self.some(self.trips, 5, 8):
            service = f"SRV{self.n(100, 999)}"
            self.sh(f"grep '{trip}' {self.feed}/trips.txt", f"{self.route},{service},{trip},{self.n(1000, 9999)}")
            self.sh(
                f"grep '{service}' {self.feed}/calendar.txt {self.feed}/calendar_dates.txt",
                f"calendar.txt:{service},1,1,1,1,1,0,0,{self.day()}",
            )
        self.work(1, 5)

    def healthy_plain(self) -> None:
        """Nothing special."""
        self.work(14, 30)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(GtfsFeed, rng)
