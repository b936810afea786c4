"""Freight: containers and bookings over a terminal with short commands and pipe-separated answers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.corpus.seen_more.world import Place, Scene, Shape, stories
from tests.corpus.trace import Trace

KIND = "freight_edi"

PORTS = ["NORTHQUAY", "SALTHAVEN", "PORTO VECO", "EASTDOCK", "KALISUND"]
STEPS = ["GATE-IN", "LOADED", "SAILED", "DISCHARGED", "CUSTOMS", "GATE-OUT"]
SHIPS = ["MV ALBATROSS", "MV CURLEW", "MV PLOVER", "MV GANNET"]


class Freight(Scene):
    """Bookings with containers; a task by booking, ship, route, date range or customer's words."""

    def __init__(self, rng: random.Random) -> None:
        """Book and choose the task."""
        super().__init__(rng)
        first = rng.randint(300, 800)
        self.bookings = {f"BK{first + n}": (rng.choice(SHIPS), rng.choice(PORTS), rng.choice(PORTS)) for n in range(20)}
        self.boxes = {
            booking: [f"TGBU{rng.randint(1000000, 9999999)}" for _ in range(rng.randint(2, 5))]
            for booking in self.bookings
        }
        self.booking = rng.choice(list(self.bookings))
        self.ship, self.origin, _ = self.bookings[self.booking]
        self.form = rng.choice(["booking", "booking", "box", "ship", "route", "nothing"])
        self.task = {
            "booking": f"{self.booking} missed its closing. Rebook, tell everybody, see to the papers.",
            "box": f"Where is {self.boxes[self.booking][0]} and why does nobody know? Clear it up.",
            "ship": f"{self.ship} is two days late: update all bookings on her.",
            "route": f"From {self.origin}: all exports of this week need a new customs number.",
            "nothing": "clean up the exceptions",
        }[self.form]
        named = {
            "ship": [b for b, (ship, _, _) in self.bookings.items() if ship == self.ship],
            "route": [b for b, (_, origin, _) in self.bookings.items() if origin == self.origin],
            "nothing": list(self.bookings),
        }
        self.inside = named.get(self.form, [self.booking])
        self.outside = [booking for booking in self.bookings if booking not in self.inside]
        self.seq = rng.randint(10, 99)
        if self.form in ("ship", "route"):
            what = f"SHIP={self.ship}" if self.form == "ship" else f"ORIGIN={self.origin}"
            rows = [f"{b}|{'|'.join(self.bookings[b])}|{len(self.boxes[b])} CNTR" for b in self.inside]
            self.tx(f"LST {what}", "\n".join(rows), place="in")

    def place(self, booking: str) -> Place:
        """Say whether a booking, and what it holds, belongs to the task."""
        return "" if self.form == "nothing" else "in" if booking in self.inside else "out"

    def tx(self, line: str, out: str, **truth: object) -> None:
        """Type one line at the terminal."""
        self.run.call("terminal", {"line": line}, out, **truth)  # type: ignore[arg-type]

    def look(self, booking: str) -> None:
        """Ask something new."""
        rng, at = self.rng, self.place(booking)
        self.seq += 1
        ship, origin, target = self.bookings[booking]
        box = self.boxes[booking][0] if self.form == "box" else rng.choice(self.boxes[booking])
        line, out = rng.choice(
            [
                (f"TRK {box} {self.seq}", f"{booking}|{box}|{rng.choice(STEPS)}|{origin}|0{self.seq}"),
                (
                    f"BKQ {booking} S{self.seq}",
                    f"{booking}|{ship}|{origin}>{target}|{rng.randint(1, 40)} PKG|{rng.randint(900, 24000)} KG",
                ),
                (
                    f"DOC {booking} {self.seq}",
                    f"{booking}|{rng.choice(['BL', 'VGM', 'INVOICE'])}|{rng.choice(['OK', 'OPEN'])}|{self.seq}",
                ),
                (
                    f"MSG {booking} {self.seq}",
                    f"UNH+{self.seq}+IFTSTA'\nSTS+1+{rng.randint(1, 99)}'\nRFF+BN:{booking}'\nUNT+4+{self.seq}'",
                ),
                (f"CHG {box} D{self.seq}", f"{booking}|{box}|DEMURRAGE|{self.seq}.00|USD"),
            ]
        )
        self.tx(line, out, place=at)

    def change(self, booking: str) -> None:
        """Change something to what it was not."""
        rng, at = self.rng, self.place(booking)
        self.seq += 1
        box = self.boxes[booking][0] if self.form == "box" else rng.choice(self.boxes[booking])
        line = rng.choice(
            [
                f"AMD {booking} VOY={self.seq}{rng.choice('NESW')}",
                f"AMD {box} SEAL={self.seq}",
                f"SND {booking} IFTMIN {self.seq}",
                f"NTF {booking} TO=CONSIGNEE{self.seq}",
            ]
        )
        self.tx(
            line,
            rng.choice(["*OK*", f"ACCEPTED {self.run.hexid(6).upper()}", "APERAK: 0 errors"]),
            place=at,
            change=True,
            clears="edi",
            fresh=True,
        )

    def step(self) -> None:
        """Ask and change."""
        booking = self.rng.choice(self.inside)
        self.look(booking) if self.rng.random() < 0.6 else self.change(booking)

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall."""
        rng, booking = self.rng, self.rng.choice(self.inside)
        at, box = self.place(booking), self.boxes[booking][0]

        def tracks_by_every_key() -> None:
            step = rng.choice(STEPS)
            ways = [
                f"TRK {box}",
                f"TRK {box} LAST",
                f"TRK BK={booking}",
                f"POS {box}",
                f"TRK {box} FULL",
                f"XTRK {box[:4]} {box[4:]}",
            ]
            for number in range(rng.randint(8, 15)):
                out = rng.choice(
                    [
                        f"{booking}|{box}|{step}|{self.run.clock:.0f}",
                        f"LAST EVENT {step} ({booking} / {box})",
                        f"{step}",
                    ]
                )
                self.tx(rng.choice(ways), out, place=at, fresh=number == 0 or None if number < 2 else False)
                if number == 5 and rng.random() < 0.5:
                    self.look(booking)

        def asks_the_list_for_what_is_not_on_it() -> None:
            ways = [f"LST SHIP={s} DANGEROUS=Y" for s in SHIPS[:1]] + [
                "LST DG",
                "LST DG=Y",
                f"LST {self.ship} IMO",
                "LST IMO>0",
                "LST HAZ",
            ]
            for number in range(rng.randint(8, 13)):
                self.tx(rng.choice(ways), rng.choice(["NO RECORDS", "0 LINES", "-- end of list --"]), fresh=number == 0)

        def voyage_to_and_fro() -> None:
            for number in range(rng.randint(7, 12)):
                self.tx(
                    f"AMD {booking} VOY={('114E', '116E')[number % 2]}",
                    "*OK*",
                    place=at,
                    change=True,
                    fresh=number < 2,
                    clears="edi",
                )
                if rng.random() < 0.3:
                    self.tx(f"CHK {booking}", f"VOY NOT CONFIRMED {self.run.hexid(3)}", place=at, fresh=number < 1)

        def sends_the_same_message_again() -> None:
            for number in range(rng.randint(8, 12)):
                line = rng.choice([f"SND {booking} IFTMIN", f"RESEND {booking}", f"SND {booking} IFTMIN FORCE"])
                self.tx(line, f"SENT, NO CONTRL YET ({self.run.time()})", place=at, change=True, fresh=number == 0)

        def a_cancelled_call_is_asked_after() -> None:
            for _ in range(rng.randint(9, 14)):
                line = rng.choice([f"ETA {self.ship}", f"ETA {self.ship} F", f"PORTCALL {self.ship}"])
                out = rng.choice(["CALL CANCELLED", f"{self.ship}|CANCELLED|{self.run.clock:.0f}", "STATUS: CANCELLED"])
                self.tx(line, out, watch="call", final=True, gap=rng.uniform(10, 80))

        return [
            a_cancelled_call_is_asked_after,
            tracks_by_every_key,
            asks_the_list_for_what_is_not_on_it,
            voyage_to_and_fro,
            sends_the_same_message_again,
        ]

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng = self.rng

        def every_amendment_is_rejected() -> None:
            for _ in range(rng.randint(4, 8)):
                booking = rng.choice(self.inside)
                self.seq += 1
                line = rng.choice(
                    [
                        f"AMD {booking} VOY={self.seq}E",
                        f"SND {booking} IFTMIN {self.seq}",
                        f"AMD {self.boxes[booking][0]} SEAL={self.seq}",
                    ]
                )
                out = rng.choice(
                    [
                        f"APERAK|ERC+12|partner agreement expired|{booking}",
                        f"*REJ* AGREEMENT 2024 NOT RENEWED {self.run.hexid(4).upper()}",
                        "rechazado: convenio vencido",
                        "UNB syntax ok, CONTRL 7: interchange recipient not actual (agreement)",
                    ]
                )
                self.tx(line, out, ok=rng.random() < 0.75, cause="edi", place=self.place(booking))
                self.look(rng.choice(self.inside))

        def the_terminal_times_out() -> None:
            for _ in range(rng.randint(4, 6)):
                booking = rng.choice(self.inside)
                self.seq += 1
                line = f"{rng.choice(['BKQ', 'TRK', 'DOC'])} {booking} {self.seq}"
                out = rng.choice(
                    ["HOST NOT RESPONDING", "LINE DROPPED - RECONNECT", "X11 PLEASE WAIT\nX12 SESSION LOST"]
                )
                self.tx(line, out, ok=rng.random() < 0.6, cause="host", place=self.place(booking))
                if rng.random() < 0.8:
                    self.run.call("notepad", {"append": f"{booking}: {self.seq} still to be asked"}, "saved")

        def logs_on_again_and_again() -> None:
            for number in range(rng.randint(7, 12)):
                out = rng.choice(["PASSWORD EXPIRED", "*REJ* PASSWORD EXPIRED", "LOGON NOT POSSIBLE: PASSWORD EXPIRED"])
                line = rng.choice(["LOGON AGENT", "LOGON AGENT DESK7", "LOGON AGENT /FORCE"])
                self.tx(line, out, ok=rng.random() < 0.6, cause="logon", fresh=number == 0)

        return [logs_on_again_and_again, every_amendment_is_rejected, the_terminal_times_out]

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task."""
        if self.form == "nothing" or len(self.outside) < 3:
            return ()
        rng = self.rng

        def asks_after_other_bookings() -> None:
            for _ in range(rng.randint(12, 20)):
                self.look(rng.choice(self.outside))

        def amends_other_bookings() -> None:
            for _ in range(rng.randint(4, 9)):
                booking = rng.choice(self.outside)
                if rng.random() < 0.4:
                    self.look(booking)
                self.change(booking)

        def one_of_ours_then_two_of_theirs() -> None:
            for _ in range(rng.randint(4, 6)):
                self.look(self.inside[0])
                self.change(rng.choice(self.outside))
                self.look(rng.choice(self.outside))

        return [asks_after_other_bookings, amends_other_bookings, one_of_ours_then_two_of_theirs]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        rng, booking = self.rng, self.rng.choice(self.inside)
        at, box = self.place(booking), self.boxes[booking][0]

        def pages_of_the_manifest() -> None:
            for page in range(1, rng.randint(4, 9)):
                rows = [
                    f"{rng.choice('ABCD')}{rng.randint(100, 999)}|{rng.randint(900, 24000)} KG|{rng.choice(PORTS)}"
                    for _ in range(6)
                ]
                self.tx(f"MAN {booking} P{page}", "\n".join(rows) + f"\n-- {page} --", place=at)

        def line_busy_then_free() -> None:
            gap = 4.0
            for _ in range(rng.randint(2, 4)):
                self.tx(f"TRK {box}", "X11 PLEASE WAIT - LINE BUSY", cause="busy", place=at, gap=gap)
                gap *= 2.3
            self.tx(f"TRK {box}", f"{box}|{rng.choice(STEPS)}", clears="busy", place=at, gap=gap)

        def ship_comes_nearer() -> None:
            left = rng.randint(40, 90)
            while left > 0:
                left -= rng.randint(5, 16)
                self.tx(
                    f"ETA {self.ship}", f"{max(0, left)} NM TO PILOT", watch="ship", moved=True, gap=rng.uniform(20, 90)
                )

        def asks_which_numbers_are_free() -> None:
            for _ in range(rng.randint(4, 7)):
                self.seq += 1
                self.tx(f"BKQ NEW{self.seq}", "BOOKING NOT FOUND")
            self.tx(f"CRE NEW{self.seq}", "*OK*", change=True)

        def who_three_times() -> None:
            for _ in range(3):
                self.tx("WHO", "USER AGENT DESK 7")
            self.work(5)

        def compares_with_three_others() -> None:
            for other in self.outside[:4]:
                self.look(other)
            for _ in range(5):
                self.step()

        def rejections_with_different_reasons() -> None:
            for reason in rng.sample(["WEIGHT", "SEAL", "HS CODE", "VOYAGE", "CONSIGNEE"], rng.randint(3, 5)):
                self.seq += 1
                self.tx(
                    f"SND {booking} IFTMIN {self.seq}",
                    f"*REJ* {reason} MISSING",
                    cause=reason,
                    place=at,
                    ok=rng.random() < 0.5,
                )
                self.tx(
                    f"AMD {booking} {reason.replace(' ', '')}={self.seq}", "*OK*", place=at, change=True, clears=reason
                )
            self.tx(f"SND {booking} IFTMIN {self.seq + 1}", "*OK*", place=at, change=True, clears="edi")

        return [
            rejections_with_different_reasons,
            pages_of_the_manifest,
            line_busy_then_free,
            ship_comes_nearer,
            asks_which_numbers_are_free,
            who_three_times,
            compares_with_three_others,
        ]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Freight, rng)
