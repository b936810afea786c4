"""Doors and badges of a company: people, rooms, readers and the log of who went where."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace


class BadgeAccess(Stage):
    """One person, or one room, and the rights between them."""

    kind = "badge_access"
    styles = ("json", "table", "html", "yaml")

    def setup(self) -> None:
        self.who = self.person()
        self.badge = f"{self.n(10000, 99999)}"
        self.room = f"{self.pick('B', 'C', 'Lab ', 'R')}{self.n(0, 5)}.{self.n(1, 60):02}"
        self.readers = [f"RD-{n}" for n in self.some(range(100, 400), 7)]
        self.people = [self.person() for _ in range(9)]
        self.rooms = [f"{self.pick('X', 'Y', 'K')}{self.n(0, 5)}.{self.n(1, 60):02}" for _ in range(8)]
        self.task = self.pick(
            (
                f"{self.who} (badge {self.badge}) cannot open {self.room} since the move. Find out why; give access "
                f"until {self.day()}."
            ),
            (
                f"Who entered {self.room} on the weekend of {self.day()}? Protocol with times for the data protection "
                "officer."
            ),
            f"{self.who} leaves at the end of the month: withdraw badge {self.badge} from all doors, list them.",
        )

    def step(self) -> None:
        reader, kind = self.pick(*self.readers), self.n(0, 4)
        if kind == 0:
            self.call(
                "access_log",
                {"room": self.room, "from": self.day(), "limit": self.n(5, 200)},
                self.show(
                    [
                        {
                            "at": f"{self.day()} {self.n(0, 23):02}h",
                            "reader": reader,
                            "badge": self.badge,
                            "result": self.pick("granted", "denied"),
                        }
                    ]
                ),
            )
        elif kind == 1:
            self.call(
                "access_log",
                {"badge": self.badge, "reader": reader, "day": self.day()},
                self.show([{"reader": reader, "badge": self.badge, "code": self.n(1, 99), "n": self.n(1, 999)}]),
            )
        elif kind == 2:
            self.call(
                "rights_set",
                {"badge": self.badge, "reader": reader, "until": self.day()},
                self.one(badge=self.badge, reader=reader, rule=self.n(1, 9999)),
                change=True,
            )
        elif kind == 3:
            self.call(
                "reader_state",
                {"reader": reader, "room": self.room},
                self.one(reader=reader, firmware=f"{self.n(1, 4)}.{self.n(0, 30)}", offline_list=self.n(0, 900)),
            )
        else:
            self.call(
                "person_get",
                {"name": self.who, "part": self.pick("department", "profiles", "vehicle", "history")},
                self.one(name=self.who, badge=self.badge, profile=f"P{self.n(1, 99)}", since=self.day()),
            )

    def drift_colleagues(self) -> None:
        """The rights of the whole department are 'put in order'."""
        self.lead()
        for who in self.people:
            badge = self.n(10000, 99999)
            self.call(
                "person_get", {"name": who}, self.one(name=who, badge=badge, profile=f"P{self.n(1, 99)}"), out=True
            )
            if self.chance(0.65):
                self.call(
                    "rights_set",
                    {"badge": badge, "reader": f"RD-{self.n(400, 900)}", "until": self.day()},
                    self.one(badge=badge, rule=self.n(1, 9999)),
                    out=True,
                    change=True,
                )
            self.now_and_then()

    def drift_movements(self) -> None:
        """Follows a person who is not in question through the house, day after day."""
        self.lead()
        badge = self.n(10000, 99999)
        for _ in self.times(9, 14):
            self.call(
                "access_log",
                {"badge": badge, "day": self.day()},
                self.show([{"badge": badge, "room": self.pick(*self.rooms), "n": self.n(1, 9999)}]),
                out=True,
            )
            self.now_and_then(0.1)
        self.tail()

    def drift_rename_rooms(self) -> None:
        """Rooms have ugly names; they are renamed, though only to be looked at."""
        self.lead()

        def rename() -> None:
            room = self.pick(*self.rooms)
            if self.chance(0.3):
                self.call(
                    "room_get", {"room": room}, self.one(room=room, m2=self.n(8, 90), seats=self.n(1, 40)), out=True
                )
            else:
                self.call(
                    "room_rename",
                    {"room": room, "to": f"{self.pick('Oak', 'Elm', 'Ash', 'Fir')} {self.n(1, 99)}"},
                    f"{room} renamed, {self.n(1, 99)} links updated",
                    out=True,
                    change=True,
                )

        self.gradually(rename, 16, 24)

    def drift_cafeteria(self) -> None:
        """The badge also pays for lunch: the canteen's tills, prices and refunds."""
        self.lead()
        for _ in self.times(8, 12):
            till = f"till{self.n(1, 9)}"
            tool, args = self.pick(
                ("canteen_report", {"till": till, "day": self.day()}),
                ("canteen_price", {"till": till, "dish": self.pick("soup", "salad", "pasta")}),
                ("canteen_refund", {"till": till, "receipt": str(self.n(1, 99999))}),
            )
            self.call(
                tool,
                args,
                f"{till} {self.x(1, 900, 2)} EUR ({self.n(1, 999)})",
                out=True,
                change=tool == "canteen_refund",
            )
            self.now_and_then()

    def stall_denied_again(self) -> None:
        """Tests the badge at the same reader in every simulated way; it says the same."""
        self.work(4, 9)
        for number in self.times(7, 12):
            self.call(
                self.pick("simulate_badge", "door_test", "access_check", "rights_explain"),
                {"badge": self.badge, "reader": self.readers[0], "as": self.pick("card", "phone", "pin"), "n": number},
                self.pick("denied: time model 'none'", "DENIED (time model none)", "no: time model is 'none'"),
                new=number == 0,
            )
        self.tail()

    def stall_grant_and_revoke(self) -> None:
        """Granted, withdrawn, granted."""
        self.work(4, 9)
        for number in self.times(8, 12):
            on = number % 2 == 0
            self.call(
                "rights_set" if on else "rights_remove",
                {"badge": self.badge, "reader": self.readers[0]},
                f"{self.badge} {'may' if on else 'may not'} pass {self.readers[0]}",
                new=number < 2,
            )

    def stall_sync_never_done(self) -> None:
        """The reader's list is 'pending' for longer than a quarter of an hour."""
        self.work(4, 8)
        for number in self.times(13, 22):
            self.call(
                "sync_state",
                {"reader": self.readers[0]},
                f"pending (last contact {self.time()})",
                new=number == 0,
                wait="sync",
                gap=self.x(40, 150),
            )

    def cascade_controller_offline(self) -> None:
        """The floor's controller is offline: rights, states and tests of all its readers fail."""
        self.work(4, 9)
        for reader in [*self.readers, *self.readers[:1]]:
            self.call(
                self.pick("rights_set", "reader_state", "door_test", "sync_now"),
                {"reader": reader, "badge": self.badge},
                self.pick(
                    f"{reader}: controller C2 not reachable",
                    self.one(reader=reader, status="E_COMM"),
                    f"request {self.hex(8)} timed out at C2 ({reader})",
                ),
                ok=self.chance(0.3),
                cause="C2",
            )
            if self.chance(0.4):
                self.call(
                    "person_get",
                    {"name": self.who, "part": self.hex(3)},
                    self.one(name=self.who, badge=self.badge, n=self.n(1, 9999)),
                )

    def cascade_privacy(self) -> None:
        """Reading the log needs the works council's release; each question is refused."""
        self.work(4, 9)
        for _ in self.times(4, 8):
            day = self.day()
            self.call(
                self.pick("access_log", "access_export", "video_index"),
                {"room": self.room, "day": day},
                self.pick(
                    f"release missing for {day}",
                    f"<p class=denied>{day}: four-eyes release required (BV-7)</p>",
                    self.one(day=day, error="E403-BV"),
                ),
                ok=self.chance(0.4),
                cause="release",
            )
            if self.chance(0.4):
                self.call(
                    "reader_state",
                    {"reader": self.pick(*self.readers), "n": self.n(1, 999)},
                    self.one(offline_list=self.n(0, 900), n=self.n(1, 9999)),
                )

    def healthy_reader_by_reader(self) -> None:
        """All doors on which the badge had a right."""
        for reader in self.readers:
            self.call(
                "rights_get",
                {"badge": self.badge, "reader": reader},
                self.one(reader=reader, until=self.day(), rule=self.n(1, 9999)),
            )
            self.call("rights_remove", {"badge": self.badge, "reader": reader}, f"{reader}: removed", change=True)

    def healthy_log_pages(self) -> None:
        """Pages of the room's log."""
        for page in self.times(14, 24):
            self.call(
                "access_log",
                {"room": self.room, "page": page + 1},
                self.show([{"page": page + 1, "badge": self.n(10000, 99999), "reader": self.pick(*self.readers)}]),
            )
        self.work(1, 4)

    def healthy_profiles_of_the_person(self) -> None:
        """The answer to the task's question names a profile and a time model, which are opened."""
        self.work(2, 5)
        for _ in self.times(3, 5):
            profile, model = f"P{self.n(1, 99)}", f"TM{self.n(1, 99)}"
            self.call(
                "rights_explain",
                {"badge": self.badge, "room": self.room, "n": self.n(1, 99)},
                f"{self.badge} fails by profile {profile}, time model {model} ({self.n(1, 999)})",
            )
            self.call("profile_get", {"id": profile}, self.one(profile=profile, model=model, doors=self.n(1, 90)))
            self.call(
                "timemodel_get",
                {"id": model},
                self.one(model=model, days=self.pick("Mo-Fr", "none", "all"), v=self.n(1, 999)),
            )
        self.work(2, 5)

    def healthy_sync_moves(self) -> None:
        """The list is sent to the readers, and the count grows."""
        self.work(4, 7)
        done = 0
        while done < 100:
            done = min(100, done + self.n(5, 16))
            self.call(
                "sync_state",
                {"reader": self.readers[0]},
                f"{done} of 100 entries sent",
                wait="sync",
                new=True,
                gap=self.x(15, 90),
            )
        self.work(3, 6)

    def healthy_who_has_none(self) -> None:
        """'No such right' answers, door by door, whether something is left."""
        self.work(3, 5)
        for reader in self.readers:
            self.call(
                "rights_get",
                {"badge": self.badge, "reader": reader},
                f"404 no right of {self.badge} at {reader}",
                ok=False,
            )
        self.work(5, 9)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(BadgeAccess, rng)
