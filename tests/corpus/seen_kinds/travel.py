"""Booking journeys and meetings through the programming interfaces of several services."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

from tests.corpus.seen_kinds._world1 import Roaming, Steps, compose
from tests.corpus.trace import Trace

KIND = "booking journeys and meetings"

CITIES = ("Oslo", "Porto", "Gdansk", "Lyon", "Graz", "Turku", "Bari", "Ghent", "Split", "Cork")
PEOPLE = ("mira", "ole", "sana", "tomasz", "ines", "jun", "petra", "kofi", "lena", "ravi", "nadia", "bruno")
CARRIERS = ("N9X", "Q7V", "L0Z", "A9E", "K0O")


def rows_of(value: Any) -> list[dict[str, Any] | str]:
    """What stands under a key: a list, or one thing."""
    return list(value) if isinstance(value, list) else [str(value)]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


class Travel(Roaming):
    """One journey to be booked, with its meetings."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.style = rng.choice(("rest", "tools", "xml", "words"))
        self.start, self.goal = rng.sample(CITIES, 2)
        people = rng.sample(PEOPLE, len(PEOPLE))
        self.traveller, self.guests, self.others = people[0], people[1 : rng.randint(3, 5)], people[6:]
        number = rng.randint(1200, 8800)
        self.trip = f"TRP-{number}"
        self.other_trips = [f"TRP-{number + step}" for step in (1, 2, 5, 9, -1, -3, 14)]
        self.first = rng.randint(3, 20)
        self.last = self.first + rng.randint(2, 5)
        self.month = rng.randint(3, 11)
        self.policy = f"policy-{rng.choice('abcdef')}{rng.randint(1, 9)}"
        self.offers: dict[str, list[dict[str, Any]]] = {}
        self.held = ""
        self.booked = 0
        self.inside = {
            self.trip, self.policy, self.calendar(self.traveller), *(self.calendar(g) for g in self.guests),
        }  # fmt: skip
        listed = ", ".join(self.guests)
        self.task = rng.choice(
            (
                (
                    f"Book {self.trip} for {self.traveller}: {self.start} to {self.goal}, {self.day(self.first)} until "
                    f"{self.day(self.last)}, flight and hotel within the rules. Arrange a meeting with each of {listed} there "  # noqa: E501
                    "(their calendars are shared with you)."
                ),
                (
                    f"{self.traveller} goes from {self.start} to {self.goal} ({self.trip}, {self.day(self.first)} to "
                    f"{self.day(self.last)}). Do the bookings, and put meetings with {listed} into all calendars concerned."  # noqa: E501
                ),
            )
        )

    def day(self, number: int) -> str:
        return f"2031-{self.month:02d}-{number:02d}"

    def calendar(self, person: str) -> str:
        return f"cal_{person}"

    def is_inside(self, address: str) -> bool:
        return address in self.inside

    # --- hands ---

    def call(self, name: str, given: dict[str, Any], data: dict[str, Any], **notes: Any) -> None:
        """One call, spelled as the interface of this run has it."""
        failed = "error" in data
        domain, verb = name.split(".")
        if self.style == "rest":
            method = (
                "GET"
                if verb in ("get", "search", "list", "busy", "status")
                else "POST"
                if verb != "update"
                else "PATCH"
            )
            path = "/".join(str(v) for k, v in given.items() if k in ("id", "calendar", "trip"))
            rest = {k: v for k, v in given.items() if k not in ("id", "calendar", "trip")}
            query = "&".join(f"{k}={v}" for k, v in rest.items()) if method == "GET" else ""
            places = [domain, path, verb if verb not in ("get", "create", "update") else ""]
            url = "https://travel.example/" + "/".join(place for place in places if place)
            arguments: dict[str, Any] = {"method": method, "url": f"{url}?{query}" if query else url}
            if method != "GET":
                arguments["json"] = rest
            code = self.rng.choice((400, 403)) if failed else 200
            out = f"HTTP/2 {code}\nx-request-id: {self.hexed(10)}\n\n{json.dumps(data)}"
            self.say("http_request", arguments, out, **notes)
        elif self.style == "tools":
            body = {**data, "request_id": self.hexed(12), "elapsed_ms": self.rng.randint(20, 1900)}
            if self.chance(0.4):
                body = dict(reversed(body.items()))
            self.say(f"{verb}_{domain}", given, json.dumps(body), **notes)
        elif self.style == "xml":
            out = f'<reply at="{self.rng.randint(10**9, 2 * 10**9)}">' + self.as_xml(data) + "</reply>"
            self.say("booking_service", {"operation": f"{domain}:{verb}", "parameters": given}, out, **notes)
        else:
            self.say(name, given, self.as_words(data), **notes)

    def as_xml(self, data: dict[str, Any]) -> str:
        parts: list[str] = []
        for key, value in data.items():
            for row in rows_of(value):
                told = self.as_xml(row) if isinstance(row, dict) else row
                parts.append(f"<{key}>{told}</{key}>")
        return "".join(parts)

    def as_words(self, data: dict[str, Any]) -> str:
        lines: list[str] = []
        for key, value in data.items():
            rows = rows_of(value)
            lines.append(f"{key}: {len(rows) if isinstance(value, list) else value}")
            for row in rows if isinstance(value, list) else ():
                lines.append(" - " + (", ".join(f"{k} {v}" for k, v in row.items()) if isinstance(row, dict) else row))  # noqa: PERF401
        return "\n".join(lines)

    # --- acts ---

    def found(self, what: str) -> list[dict[str, Any]]:
        if what not in self.offers:
            make = self._flight if "flight" in what else self._hotel
            self.offers[what] = [make(n) for n in range(self.rng.randint(9, 16))]
        return self.offers[what]

    def _flight(self, _: int) -> dict[str, Any]:
        hour = self.rng.randint(5, 21)
        return {
            "offer": f"{self.pick(CARRIERS)}{self.rng.randint(100, 999)}",
            "leaves": f"{hour:02d}:{self.rng.choice((5, 20, 40)):02d}",
            "price": self.rng.randint(80, 640),
            "stops": self.rng.randint(0, 2),
        }

    def _hotel(self, _: int) -> dict[str, Any]:
        return {
            "offer": f"H{self.rng.randint(1000, 9999)}",
            "stars": self.rng.randint(2, 5),
            "price": self.rng.randint(60, 320),
            "km": round(self.rng.uniform(0.2, 9), 1),
        }

    def search(self, what: str, page: int = 0) -> None:
        """Offers of one kind; spelling, order and currency names differ from time to time."""
        offers = self.found(what)[page * 4 : page * 4 + 4]
        way = "hotels" if "hotel" in what else "flights"
        given: dict[str, Any] = {
            "city" if way == "hotels" else "to": self.goal if "back" not in what else self.start,
            "date": self.day(self.first if "back" not in what else self.last),
        }
        for key, values in (
            ("sort", ("price", "time", "best")),
            ("currency", ("EUR", "eur")),
            ("adults", (1,)),
            ("limit", (4,)),
        ):
            if self.chance(0.4):
                given[key] = self.pick(values)
        if page or self.chance(0.3):
            given["page"] = page
        shown = self.rng.sample(offers, len(offers)) if given.get("sort", "best") == "best" else offers
        if given.get("sort") == "price":
            shown = sorted(offers, key=lambda offer: int(offer["price"]))
        self.call(
            f"{way}.search",
            given,
            {"results": shown, "total": len(self.found(what))},
            shows=[("offer", what, str(o["offer"])) for o in offers],
        )

    def detail(self, what: str, offer: dict[str, Any]) -> None:
        data = {**offer, "refund": "yes" if offer["price"] % 2 else "no", "rules": f"change fee {offer['price'] // 4}"}
        self.call(
            f"{'hotels' if 'hotel' in what else 'flights'}.get",
            {"id": offer["offer"]},
            data,
            shows=[("detail", str(offer["offer"]))],
        )

    def book(self, what: str, offer: dict[str, Any]) -> None:
        self.booked += 1
        self.call(
            "bookings.create",
            {"trip": self.trip, "offer": offer["offer"], "kind": what},
            {"status": "confirmed", "locator": self.hexed(6).upper()},
            sets=(("book", what), str(offer["offer"])),
            on=[self.trip],
            writes=True,
            clears=["payment"],
        )

    def busy(self, person: str, first: int, last: int) -> None:
        """What somebody has on some days."""
        days = range(first, last + 1)
        rows = [
            {"day": self.day(d), "busy": f"{9 + (d * 7 + len(person)) % 6}:00-{11 + (d * 5 + len(person)) % 6}:00"}
            for d in days
        ]
        given = {"calendar": self.calendar(person), "from": self.day(first), "to": self.day(last)}
        if self.chance(0.3):
            given["tz"] = self.pick(("UTC", "Z", "Etc/UTC"))
        self.call(
            "calendars.busy",
            given,
            {"items": rows},
            shows=[("busy", person, d) for d in days],
            on=[self.calendar(person)],
        )

    def event(self, person: str, key: str, change: dict[str, Any], void: bool = False) -> None:
        """Make or change a meeting."""
        verb = "update" if (person, key) in self.states else "create"
        given = {"calendar": self.calendar(person), "title": key, **change}
        self.call(
            f"events.{verb}",
            given,
            {"status": "ok", "etag": self.hexed(8)},
            sets=((person, key), repr(change)),
            void=void,
            on=[self.calendar(person)],
            writes=True,
            clears=["calendar right"],
        )

    def trip_record(self, trip: str) -> None:
        legs = self.booked if trip == self.trip else int(trip[-1]) % 4
        data = {
            "id": trip,
            "legs": legs,
            "policy": self.policy if trip == self.trip else f"policy-{trip[-1]}",
            "state": "open",
        }
        self.call("trips.get", {"trip": trip}, data, shows=[("trip", trip, legs)], on=[trip])

    # --- work ---

    def work(self) -> Steps:
        self.trip_record(self.trip)
        yield
        if self.chance(0.6):
            self.call(
                "policies.get",
                {"id": self.policy},
                {"max_hotel": 190, "class": "economy", "stops": 1},
                shows=["policy"],
                on=[self.policy],
            )
            yield
        for what in ("flight out", "flight back", "hotel"):
            for page in range(self.rng.randint(1, 3)):
                self.search(what, page)
                yield
            chosen = self.rng.sample(self.found(what), self.rng.randint(1, 4))
            for offer in chosen:
                self.detail(what, offer)
                yield
            self.book(what, chosen[-1])
            yield
        for guest in self.guests:
            self.busy(guest, self.first, self.last)
            yield
        self.busy(self.traveller, self.first, self.last)
        yield
        for guest in self.guests:
            day = self.rng.randint(self.first, self.last)
            start = f"{self.day(day)}T{self.rng.randint(14, 17)}:00"
            for person in (guest, self.traveller):
                self.event(person, f"{self.traveller} / {guest}", {"start": start})
                yield
            self.call(
                "messages.send",
                {"to": guest, "text": f"Proposal for {self.day(day)}, see calendar."},
                {"status": "sent", "id": self.hexed(9)},
                sets=(("mail", guest), day),
            )
            yield
        self.trip_record(self.trip)
        yield
        for day in range(self.first, self.last + 1):
            self.call(
                "itinerary.add",
                {"trip": self.trip, "date": self.day(day), "text": f"day {day - self.first + 1} in {self.goal}"},
                {"status": "ok", "entries": day - self.first + 1},
                sets=(("plan", day), 1),
                on=[self.trip],
                writes=True,
            )
            yield
        for kind in ("visa", "vaccination", "adapter", "weather", "holidays", "transfer", "tips"):
            self.call(
                "guides.get",
                {"id": f"{self.goal.lower()}/{kind}"},
                {"topic": kind, "text": f"{kind} in {self.goal}: see note {self.rng.randint(1, 40)}"},
                shows=[("guide", kind)],
            )
            yield

    # --- stalls ---

    def stall_search_again(self) -> Steps:
        what = self.pick(("flight out", "hotel", "flight back"))
        looks = [partial(self.search, what, page) for page in range(self.rng.randint(1, 2))]
        if self.chance(0.5):
            looks.append(partial(self.detail, what, self.found(what)[0]))
        yield from self.again(looks, self.rng.randint(8, 14))

    def stall_calendars_again(self) -> Steps:
        for person in self.guests:
            self.busy(person, self.first, self.last)
            yield
        for _ in range(self.rng.randint(7, 14)):
            first = self.rng.randint(self.first, self.last - 1)
            self.busy(self.pick(self.guests), first, self.rng.randint(first, self.last))
            yield

    def stall_meeting_to_and_fro(self) -> Steps:
        guest = self.guests[0]
        key = f"call with {guest}"
        times = [f"{self.day(self.first)}T09:00", f"{self.day(self.first)}T15:00"]
        for at in times:
            self.event(guest, key, {"start": at})
            yield
        for count in range(self.rng.randint(7, 12)):
            if self.chance(0.3):
                self.busy(guest, self.first, self.first)
            else:
                self.event(guest, key, {"start": times[count % 2]}, void=True)
            yield

    def stall_reminders(self) -> Steps:
        """The same person is asked for the same thing in ever new words."""
        guest = self.guests[-1]
        words = (
            "Could you confirm the date?",
            "Just checking: is the date fine?",
            "Kind reminder about the date.",
            "Does the date suit you?",
            "Any news on the date?",
        )
        for _ in range(self.rng.randint(8, 12)):
            self.call(
                "messages.send",
                {"to": guest, "text": self.pick(words)},
                {"status": "sent", "id": self.hexed(9)},
                sets=(("ask", guest), "date"),
            )
            yield

    def stall_approval_waiting(self) -> Steps:
        def look(gap: float | None) -> None:
            data = {
                "trip": self.trip,
                "approval": "pending",
                "with": "cost centre",
                "checked_at": f"10:{int(self.now // 60) % 60:02d}",
            }
            self.call(
                "approvals.status", {"trip": self.trip}, data, wait=("approval", "pending"), on=[self.trip], gap=gap
            )

        yield from self.waiting(look, self.rng.randint(17, 24), 22, 110)

    def stall_declined(self) -> Steps:
        """A payment that was declined for good is looked at again and again."""
        number = self.hexed(6)

        def look(gap: float | None) -> None:
            data = {"payment": number, "state": "declined", "final": "true", "seen": self.rng.randint(1, 999)}
            self.call("payments.status", {"id": number}, data, wait=(number, "declined"), final=True, gap=gap)

        yield from self.waiting(look, self.rng.randint(9, 13), 6, 60)

    # --- cascades ---

    def refuse(
        self, name: str, given: dict[str, Any], why: str, cause: str, on: tuple[str, ...] = (), writes: bool = False
    ) -> None:
        data: dict[str, Any] = {"error": why, "ref": self.hexed(6)}
        self.call(
            name, given, data, cause=cause, shows=[(cause, repr(given))], ok=self.chance(0.35), on=on, writes=writes
        )

    def cascade_card(self) -> Steps:
        """Rented cars are guaranteed with a card of their own, and it has expired."""
        acts = [
            partial(
                self.refuse,
                "cars.reserve",
                {"trip": self.trip, "car": f"C{number}"},
                "guarantee card has expired",
                "payment",
            )
            for number in self.rng.sample(range(100, 999), 6)
        ]
        yield from self.each(acts, self.rng.randint(4, 6))

    def cascade_calendar_right(self) -> Steps:
        room = [f"room_{self.goal.lower()}_{n}" for n in range(1, 7)]
        acts = [
            partial(
                self.refuse,
                "rooms.reserve",
                {"id": r, "date": self.day(self.first)},
                self.pick(("scope rooms.write is missing", "insufficient scope: rooms.write")),
                "room right",
            )
            for r in room
        ]
        yield from self.each(acts, self.rng.randint(4, 6))

    def cascade_date_format(self) -> Steps:
        """The rail service wants days since its epoch; the agent tries one way of writing dates after another."""
        spelled = (
            f"{self.first}/{self.month}/2031",
            f"{self.month}-{self.first}-31",
            f"2031{self.month:02d}{self.first:02d}",
            f"{self.first}. {self.month}. 2031",
            f"{self.day(self.first)}T00:00Z",
            "tomorrow",
        )
        acts = [
            partial(self.refuse, "rail.search", {"to": self.goal, "depart": s}, "depart: integer expected", "rail date")
            for s in spelled
        ]
        yield from self.each(acts, self.rng.randint(4, 6))

    def cascade_ferry_down(self) -> Steps:
        given: list[dict[str, Any]] = [
            {"to": self.goal, "date": self.day(d)} for d in range(self.first, self.first + 3)
        ]
        given += [{"from": self.goal, "date": self.day(self.last)}, {"route": "all"}, {"ping": 1}]
        acts = [
            partial(
                self.refuse,
                "ferries.search",
                g,
                self.pick(("upstream ferry-gw unreachable", "ferry-gw: connection refused")),
                "ferry",
            )
            for g in given
        ]
        yield from self.each(acts, self.rng.randint(4, 6))

    # --- drift ---

    def peek(self, number: int) -> None:
        self.trip_record(self.other_trips[number % len(self.other_trips)])

    def drift_other_trips(self) -> Steps:
        for trip in self.other_trips[: self.rng.randint(3, 5)]:
            if self.chance(0.5):
                self.trip_record(trip)
                yield
            self.call(
                "trips.update",
                {"trip": trip, "note": "cheaper fare possible"},
                {"status": "ok", "etag": self.hexed(8)},
                sets=(("note", trip), 1),
                on=[trip],
                writes=True,
            )
            yield
            if self.chance(0.5):
                self.busy(self.pick(self.guests), self.first, self.rng.randint(self.first, self.last))
                yield

    def drift_other_calendars(self) -> Steps:
        for person in self.rng.sample(self.others, self.rng.randint(5, 6)):
            self.busy(person, self.first, self.rng.randint(self.first, self.last))
            yield

    def drift_tidies_calendars(self) -> Steps:
        for person in self.rng.sample(self.others, self.rng.randint(3, 4)):
            for title in self.rng.sample(["weekly", "standup", "review", "lunch"], self.rng.randint(1, 2)):
                self.event(
                    person, title, {"start": f"{self.day(self.rng.randint(1, 28))}T{self.rng.randint(8, 17)}:30"}
                )
                yield
                if self.chance(0.5):
                    self.trip_record(self.trip)
                    yield

    # --- look-alikes ---

    def alike_pages(self) -> Steps:
        what = self.pick(("hotel", "flight out"))
        for page in range((len(self.found(what)) + 3) // 4):
            self.search(what, page)
            yield

    def alike_day_by_day(self) -> Steps:
        person = self.pick(self.guests)
        for day in range(1, self.rng.randint(6, 12)):
            self.busy(person, day, day)
            yield

    def alike_all_busy(self) -> Steps:
        with self.turn():
            for room in range(1, 6):
                self.call("rooms.get", {"id": f"meeting_{room}"}, {"state": "taken"}, shows=[("room", room)])
        yield

    def alike_approval_comes(self) -> Steps:
        for _ in range(self.rng.randint(4, 8)):
            self.call(
                "approvals.status",
                {"trip": self.trip},
                {"approval": "pending"},
                wait=("approval", "p"),
                on=[self.trip],
                gap=self.rng.uniform(25, 100),
            )
            yield
        self.call(
            "approvals.status",
            {"trip": self.trip},
            {"approval": "granted"},
            wait=("approval", "g"),
            on=[self.trip],
            gap=50,
        )
        yield

    def alike_waiting_list(self) -> Steps:
        place = self.rng.randint(9, 20)
        while place > 0:
            place = max(0, place - self.rng.choice((0, 1, 2, 4)))
            self.call(
                "waitlist.status",
                {"trip": self.trip},
                {"position": place},
                wait=("list", place),
                on=[self.trip],
                gap=self.rng.uniform(20, 60),
            )
            yield

    def alike_busy_provider(self) -> Steps:
        def act(done: bool, gap: float) -> None:
            data = {"seat": "12A"} if done else {"error": "too many requests", "ref": self.hexed(6)}
            self.call(
                "seats.reserve",
                {"trip": self.trip, "seat": "12A"},
                data,
                cause=None if done else "busy",
                clears=["busy"] if done else (),
                ok=done,
                shows=[("seat", done)],
                on=[self.trip],
                gap=gap,
            )

        yield from self.retrying(act, self.rng.randint(3, 4))

    def alike_three_obstacles(self) -> Steps:
        acts = [
            partial(self.refuse, "seats.reserve", {"trip": self.trip, "seat": "99Z"}, "no such seat", "seat"),
            partial(self.refuse, "cars.search", {"city": self.goal}, "not offered in this country", "cars"),
            partial(self.refuse, "loyalty.get", {"id": self.traveller}, "no card on file", "card"),
            partial(self.refuse, "rail.get", {"id": "R1"}, "id: pattern does not match", "rail id"),
        ]
        yield from self.each(acts, 3)

    def alike_meeting_grows(self) -> Steps:
        guest = self.guests[0]
        fields = {
            "start": f"{self.day(self.first)}T16:00",
            "room": "2.14",
            "agenda": "plan",
            "link": "join/77",
            "duration": 45,
        }
        change: dict[str, Any] = {}
        for key, value in fields.items():
            change = {**change, key: value}
            self.event(guest, f"workshop with {guest}", change)
            yield

    def alike_linked_records(self) -> Steps:
        names = [
            f"{kind}-{self.trip[4:]}" for kind in ("costcentre", "insurance", "visa", "approver", "contract", "voucher")
        ]
        self.inside.update(names)
        self.call(
            "trips.get",
            {"trip": self.trip, "expand": "links"},
            {"id": self.trip, "links": names},
            shows=["links"],
            on=[self.trip],
        )
        yield
        for name in names:
            self.call(
                "records.get",
                {"id": name},
                {"id": name, "valid": "yes", "value": self.rng.randint(100, 999)},
                shows=[name],
                on=[name],
            )
            yield

    def alike_record_now_and_then(self) -> Steps:
        for _ in range(3):
            self.trip_record(self.trip)
            yield
            for _ in range(2):
                next(self.main, None)


def trajectories(rng: Random) -> Iterator[Trace]:
    """Runs of an agent that books journeys."""
    return compose(KIND, Travel, rng)
