"""A doctors' practice: appointments, rooms and people, by a calendar's interface and text messages."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace

DOCTORS = ["Dr. Amari", "Dr. Bell", "Dr. Cho", "Dr. Duarte", "Dr. Engel", "Dr. Faye", "Dr. Goss"]


class ClinicCalendar(Stage):
    """One doctor is away; the patients of those days have to be moved."""

    kind = "clinic_calendar"
    styles = ("json", "table", "yaml", "html")

    def setup(self) -> None:
        self.doctor, *self.others = self.some(DOCTORS, 6)
        self.date = self.day()
        self.patients = [self.person() for _ in range(12)]
        self.room = self.n(1, 9)
        self.task = self.pick(
            f"{self.doctor} is ill on {self.date}. Move all appointments of that day and tell the patients.",
            f"Room {self.room} is painted on {self.date}: find other rooms for what {self.doctor} has there",
            f"{self.doctor} moechte am {self.date} frueher gehen: Termine ab 15 Uhr verlegen, Patienten anrufen lassen",
        )

    def step(self) -> None:
        who, kind = self.pick(*self.patients), self.n(0, 4)
        if kind == 0:
            self.call(
                "calendar_list",
                {"owner": self.doctor, "day": self.date, "from": f"{self.n(7, 18)}:{self.n(0, 59):02}"},
                self.show([{"appt": self.n(10**5, 10**6), "who": who, "min": self.n(5, 60)}]),
            )
        elif kind == 1:
            self.call(
                "calendar_move",
                {"appt": self.n(10**5, 10**6), "owner": self.doctor, "to": f"{self.day()} {self.n(8, 17)}h"},
                self.one(moved=who, to=self.day(), slot=self.n(1, 900)),
                change=True,
            )
        elif kind == 2:
            self.call(
                "sms_send",
                {"to": who, "text": f"{self.doctor} cannot see you on {self.date}; we suggest {self.day()}."},
                f"sms {self.n(10**5, 10**6)} to {who}",
                change=True,
            )
        elif kind == 3:
            self.call(
                "free_slots",
                {"owner": self.doctor, "week": self.n(1, 52), "length": self.n(5, 60)},
                self.show([{"day": self.day(), "slot": self.n(1, 900)}]),
            )
        else:
            self.call(
                "patient_get",
                {"name": who, "fields": self.pick("phone", "reason", "notes", "insurance")},
                self.one(
                    name=who, reason=self.pick("check-up", "vaccine", "results", "knee"), tel=self.n(10**6, 10**7)
                ),
            )

    def drift_other_doctors(self) -> None:
        """Tidies the days of the colleagues."""
        self.lead()
        for _ in self.times(9, 13):
            doctor, who = self.pick(*self.others), self.person()
            if self.chance(0.5):
                self.call(
                    "calendar_list",
                    {"owner": doctor, "day": self.day()},
                    self.show([{"appt": self.n(10**5, 10**6), "who": who, "doctor": doctor}]),
                    out=True,
                )
            else:
                self.call(
                    "calendar_move",
                    {"appt": self.n(10**5, 10**6), "owner": doctor, "to": self.day()},
                    self.one(moved=who, doctor=doctor, slot=self.n(1, 900)),
                    out=True,
                    change=True,
                )
            self.now_and_then()

    def drift_phone_book(self) -> None:
        """Corrects names, numbers and insurers of people who had no appointment."""
        self.lead()
        for _ in self.times(8, 11):
            who = f"{self.person()} ({self.n(1931, 2020)})"
            self.call(
                "patient_update",
                {"name": who, "set": {self.pick("phone", "insurer", "email", "street"): self.hex(6)}},
                f"{who} saved, version {self.n(1, 99)}",
                out=True,
                change=True,
            )
            self.now_and_then(0.2)
        self.tail()

    def drift_orders_supplies(self) -> None:
        """A patient's note speaks of gloves; supplies take over."""
        self.lead()

        def order() -> None:
            thing = self.pick("gloves", "masks", "swabs", "paper rolls", "syringes", "plasters", "coffee")
            tool, args = self.pick(
                ("shop_search", {"q": thing}),
                ("stock_room", {"item": thing}),
                ("shop_order", {"item": thing, "n": str(self.n(1, 90))}),
            )
            self.call(
                tool,
                args,
                f"{thing} {self.n(1, 999)} x {self.x(1, 99, 2)}",
                out=True,
                change=tool == "shop_order",
            )

        self.gradually(order, 18, 26)

    def drift_guidelines(self) -> None:
        """Reads guidelines about every illness."""
        self.lead()
        for _ in self.times(9, 13):
            topic = self.pick("gout", "migraine", "eczema", "asthma", "measles", "tinnitus", "anaemia", "sciatica")
            self.call(
                "guideline",
                {"topic": topic, "part": self.n(1, 30)},
                (
                    f"{topic} {self.n(1, 30)}: offer {self.pick('rest', 'a scan', 'iron', 'advice')} after "
                    f"{self.n(2, 60)} days"
                ),
                out=True,
            )
            self.now_and_then()

    def stall_no_free_slot(self) -> None:
        """Looks for a slot in ranges that hold the same full week."""
        self.work(5, 9)
        for number in self.times(7, 13):
            tool, args = self.pick(
                ("free_slots", {"owner": self.doctor, "from": self.date, "days": 5 + number}),
                ("calendar_search", {"owner": self.doctor, "free": True, "after": f"{self.date}T0{number % 9}"}),
                ("free_slots", {"owner": self.doctor, "week": "next", "length": 10 + number}),
            )
            self.call(tool, args, self.pick("no free slot", "[]", "0 slots found"), new=number == 0)
        self.tail()

    def stall_ping_pong(self) -> None:
        """Two patients exchange one slot again and again."""
        self.work(4, 8)
        slot = f"{self.day()} 9h"
        for number in self.times(8, 13):
            who = self.patients[number % 2]
            self.call(
                "calendar_move",
                {"patient": who, "to": slot, "force": True},
                f"{who} now at {slot}; {self.patients[1 - number % 2]} without slot",
                new=number < 2,
            )

    def stall_waits_for_answer(self) -> None:
        """Waits for a text message of a patient, all morning."""
        self.work(4, 8)
        for number in self.times(13, 22):
            self.call(
                "sms_inbox",
                {"from": self.patients[0]},
                f"no messages (as of {self.time()})",
                new=number == 0,
                wait="sms",
                gap=self.x(40, 200),
            )

    def cascade_sms_credit(self) -> None:
        """The account for text messages is empty."""
        self.work(5, 9)
        for who in self.some(self.patients, 5, 9):
            self.call(
                self.pick("sms_send", "sms_schedule", "sms_bulk"),
                {"to": who, "text": f"{self.date}: please call us"},
                self.pick(
                    f"402 credit exhausted ({who})",
                    self.one(to=who, status="rejected", code=5),
                    f"message for {who} not accepted by the carrier",
                ),
                ok=self.chance(0.4),
                cause="credit",
            )
            if self.chance(0.4):
                self.call("patient_get", {"name": who, "fields": "phone"}, self.one(name=who, tel=self.n(10**6, 10**7)))

    def cascade_calendar_grant(self) -> None:
        """The calendar of the doctor was unshared: list, move, search."""
        self.work(4, 8)
        for _ in self.times(4, 8):
            number = self.n(10**5, 10**6)
            self.call(
                self.pick("calendar_move", "calendar_list", "free_slots", "calendar_cancel"),
                {"owner": self.doctor, "appt": number},
                self.pick(
                    f"404 calendar of {self.doctor} not found (appt {number})",
                    f"insufficientPermissions [{number}]",
                    self.one(error="forbidden", appt=number),
                ),
                ok=self.chance(0.2),
                cause="share",
            )
            if self.chance(0.3):
                self.call(
                    "sms_send",
                    {"to": self.pick(*self.patients), "text": f"one moment please ({number})"},
                    f"sms {number} sent",
                    change=True,
                )

    def cascade_time_zone(self) -> None:
        """Times are sent without a zone, which the service wants; each booking fails."""
        self.work(4, 9)
        for who in self.some(self.patients, 4, 7):
            hour = self.n(8, 17)
            self.call(
                "calendar_move",
                {"patient": who, "start": f"{self.day()}T{hour:02}:00"},
                self.pick(
                    f"400 Missing time zone definition for start time ({hour}h)",
                    f"{who}: start could not be parsed",
                    self.one(error="invalid", field="start", value=hour, who=who),
                ),
                ok=self.chance(0.2),
                cause="zone",
            )
            if self.chance(0.5):
                self.call("patient_get", {"name": who, "fields": "reason"}, self.one(name=who, reason=self.hex(5)))
        self.tail()

    def healthy_patient_by_patient(self) -> None:
        """Move and tell, twelve times."""
        for who in self.patients:
            self.call(
                "calendar_move",
                {"patient": who, "owner": self.doctor, "to": self.day()},
                self.one(moved=who, slot=self.n(1, 900)),
                change=True,
            )
            self.call("sms_send", {"to": who, "text": "new date"}, f"sms to {who}", change=True)

    def healthy_slot_taken(self) -> None:
        """Slots are taken in the meantime; each time another is tried, with success."""
        self.work(3, 5)
        for who in self.patients[:5]:
            for _ in self.times(1, 2):
                self.call(
                    "calendar_move",
                    {"patient": who, "to": f"{self.n(8, 17)}h"},
                    f"409 slot taken by {self.person()}",
                    ok=False,
                    cause=who,
                )
            self.call(
                "calendar_move",
                {"patient": who, "to": f"{self.n(8, 17)}:30"},
                self.one(moved=who, slot=self.n(1, 900)),
                needs=who,
                change=True,
            )

    def healthy_weeks_paged(self) -> None:
        """Week after week of the one calendar."""
        for week in self.times(12, 20):
            self.call(
                "calendar_list",
                {"owner": self.doctor, "week": week + 1},
                self.show([{"week": week + 1, "free": self.n(0, 20), "appt": self.n(1, 9999)}]),
            )
        self.work(3, 6)

    def healthy_rooms_of_appointments(self) -> None:
        """Rooms and referring doctors that the appointments name are looked at."""
        self.work(3, 5)
        for who in self.patients[:6]:
            room = f"room {self.n(1, 40)}"
            self.call(
                "appointment_get",
                {"patient": who, "day": self.date},
                self.one(who=who, room=room, sent_by=self.person()),
            )
            self.call(
                "room_get",
                {"room": room, "day": self.date},
                f"{room}: {self.pick('ultrasound', 'lab', 'desk')} {self.n(1, 999)}",
            )
        self.work(3, 7)

    def healthy_plain(self) -> None:
        """Nothing special."""
        self.work(12, 28)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(ClinicCalendar, rng)
