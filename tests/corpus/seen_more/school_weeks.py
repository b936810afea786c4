"""A school office: cover plans in sheets, one sheet for each week, rows by class; tasks by week, class or role."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.corpus.seen_more.world import Args, Place, Scene, Shape, stories
from tests.corpus.trace import Trace

KIND = "school_weeks"

CLASSES = ["5a", "5b", "6a", "6b", "7a", "7b", "8a", "8b", "9c", "10a"]
SUBJECTS = ["maths", "Deutsch", "sport", "music", "physics", "history", "art", "French"]
ROLES = ["head of year", "school nurse", "caretaker", "class speaker", "librarian", "parents of 7b"]
DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri"]


class Weeks(Scene):
    """Lessons by class and week."""

    def __init__(self, rng: random.Random) -> None:
        """Choose the task."""
        super().__init__(rng)
        self.group = rng.choice(CLASSES)
        self.first = rng.randint(8, 30)
        self.last = self.first + rng.randint(0, 2)
        self.form = rng.choice(["week", "weeks", "class", "both", "both", "nothing"])
        self.task = {
            "week": f"Cover plan for calendar week {self.first}: three teachers are ill, see that no lesson is empty.",
            "weeks": f"KW {self.first}-{self.last + 1}: Raumplan neu, die Halle ist gesperrt.",
            "class": f"Class {self.group} lost too many lessons this year. Count them, plan what can be made up.",
            "both": f"The excursion of {self.group} in week {self.first}: free the lessons, inform whom it concerns.",
            "nothing": "Please keep the plans in order while I am away.",
        }[self.form]
        self.number = 0

    def inside(self, group: str, week: int) -> bool:
        """Say whether a class in a week is what the task is about."""
        last = {"week": self.first, "weeks": self.last + 1, "both": self.first}.get(self.form, 99)
        right_week = self.form in ("class", "nothing") or self.first <= week <= last
        return right_week and (self.form not in ("class", "both") or group == self.group)

    def place(self, group: str, week: int) -> Place:
        """The same as a place."""
        return "" if self.form == "nothing" else "in" if self.inside(group, week) else "out"

    def pick(self, inside: bool) -> tuple[str, int]:
        """Choose a class and a week."""
        ways = [(group, week) for group in CLASSES for week in range(5, 40) if self.inside(group, week) == inside]
        return self.rng.choice(ways)

    def cells(self, group: str) -> str:
        """The rows of a class in a sheet."""
        row = CLASSES.index(group) * 6 + 2
        return f"B{row}:G{row + 5}"

    def look(self, group: str, week: int) -> None:
        """Ask something new about a class in a week."""
        rng, at = self.rng, self.place(group, week)
        self.number += 1
        kind = rng.randrange(3)
        if kind == 0:
            day = rng.choice(DAYS)
            rows = "\n".join(f"{n}\t{rng.choice(SUBJECTS)}\troom {rng.randint(100, 320)}" for n in range(1, 7))
            args: Args = {"sheet": f"KW{week:02d}", "range": self.cells(group), "day": f"{day}", "rev": self.number}
            self.run.call("sheets_get", args, f"class {group}\n{rows}", place=at)
        elif kind == 1:
            args = {"class": group, "kw": week, "lesson": self.number}
            said = (
                f"{rng.choice(SUBJECTS)}: teacher {rng.randint(1, 60)} {rng.choice(['ill', 'present', 'on excursion'])}"
            )
            self.run.call("absences_list", args, said, place=at)
        else:
            args = {"class": group, "kw": week, "topic": f"{rng.choice(SUBJECTS)} {self.number}"}
            self.run.call("class_book_read", args, f"p. {self.number}, homework: {rng.choice(SUBJECTS)}", place=at)

    def change(self, group: str, week: int) -> None:
        """Enter something new."""
        self.number += 1
        args: Args = {"sheet": f"KW{week:02d}", "range": self.cells(group).split(":")[0], "class": group}
        args["value"] = f"{self.rng.choice(SUBJECTS)} -> cover {self.number}"
        said = self.rng.choice(["1 cell", '{"updatedRange": "ok"}', "gespeichert"])
        self.run.call("sheets_set", args, said, place=self.place(group, week), change=True, clears="protected")

    def step(self) -> None:
        """Look and enter."""
        what = self.pick(True)
        self.look(*what) if self.rng.random() < 0.6 else self.change(*what)

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall."""
        rng, (group, week) = self.rng, self.pick(True)
        at, subject = self.place(group, week), self.rng.choice(SUBJECTS)

        def a_free_teacher_is_sought_again_and_again() -> None:
            ways: list[tuple[str, Args]] = [
                ("staff_free", {"kw": week, "day": "Tue", "lesson": 3}),
                ("staff_free", {"kw": week, "slot": "Tue-3"}),
                ("staff_search", {"free": f"KW{week} Tue 3"}),
                ("sheets_query", {"sheet": f"KW{week:02d}", "where": "Tue3 is empty"}),
                ("staff_search", {"frei": f"Dienstag 3. Stunde KW {week}"}),
            ]
            for number in range(rng.randint(8, 14)):
                tool, args = rng.choice(ways)
                said = rng.choice(["nobody", "[]", "0 rows", "niemand frei", "-"])
                self.run.call(tool, args, said, fresh=number == 0, place=at)
                if number == 5 and rng.random() < 0.5:
                    self.look(group, week)

        def two_rooms_by_turns() -> None:
            rooms = rng.sample(range(100, 320), 2)
            for number in range(rng.randint(5, 8)):
                args: Args = {
                    "sheet": f"KW{week:02d}",
                    "range": "C9",
                    "class": group,
                    "value": f"room {rooms[number % 2]}",
                }
                self.run.call("sheets_set", args, "1 cell", fresh=number < 2, change=True, place=at, clears="protected")
                if number % 2:
                    self.run.call(
                        "plan_check", {"kw": week}, f"1 conflict: {subject}, {group}", fresh=number < 3, place=at
                    )

        def reads_one_day_in_all_cuts() -> None:
            rows = [f"{n} | {rng.choice(SUBJECTS)} | {rng.randint(100, 320)}" for n in range(1, 7)]
            for number in range(rng.randint(8, 14)):
                cut = rng.choice(["B2:G7", "B2:G9", "B:G", "A2:G7", "2:7", "B2:F7"])
                tool = rng.choice(["sheets_get", "sheets_get", "sheets_csv"])
                sep = "," if tool == "sheets_csv" else " | "
                said = "\n".join(row.replace(" | ", sep) for row in rows)
                self.run.call(
                    tool, {"sheet": f"KW{week:02d}", "range": cut, "class": group}, said, fresh=number == 0, place=at
                )

        def tells_the_same_person_again() -> None:
            role = rng.choice(ROLES)
            for number in range(rng.randint(7, 11)):
                text = rng.choice(["please note", "Zur Erinnerung", "as I wrote", "once more", "bitte beachten"])
                args: Args = {"to": role, "text": f"{text}: {group}, week {week}, no {subject}"}
                self.run.call(
                    "message_send", args, rng.choice(["sent", "delivered"]), fresh=number == 0, change=True, place=at
                )

        def waits_for_a_signature_for_ever() -> None:
            for _ in range(rng.randint(17, 23)):
                args: Args = {"form": f"KW{week:02d}-{group}", "ts": self.run.time()}
                self.run.call("form_state", args, "wartet auf Unterschrift", watch="sign", gap=rng.uniform(25, 80))

        return [
            waits_for_a_signature_for_ever,
            a_free_teacher_is_sought_again_and_again,
            two_rooms_by_turns,
            reads_one_day_in_all_cuts,
            tells_the_same_person_again,
        ]

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng = self.rng

        def the_sheets_are_protected() -> None:
            for _ in range(rng.randint(4, 8)):
                group, week = self.pick(True)
                self.number += 1
                args: Args = {
                    "sheet": f"KW{week:02d}",
                    "range": f"C{self.number}",
                    "class": group,
                    "value": f"cover {self.number}",
                }
                said = rng.choice(
                    [
                        "You are trying to edit a protected cell or object.",
                        '{"updatedCells": 0, "warning": "range is protected by the head"}',
                        "Bereich geschuetzt. Wenden Sie sich an die Schulleitung.",
                    ]
                )
                self.run.call(
                    "sheets_set", args, said, ok=rng.random() < 0.75, cause="protected", place=self.place(group, week)
                )
                self.look(*self.pick(True))

        def the_parents_list_bounces() -> None:
            for _ in range(rng.randint(4, 6)):
                self.number += 1
                said = rng.choice(
                    [
                        "Delivery Status Notification (Failure): parents@ list is disabled",
                        "Votre message n'a pas ete distribue (liste desactivee).",
                        "sent, 0 of 27 recipients reached: list off",
                    ]
                )
                args: Args = {"to": f"parents of {self.group}", "text": f"Change {self.number} in the plan"}
                self.run.call("message_send", args, said, ok=rng.random() < 0.9, cause="list")
                self.step()

        return [the_sheets_are_protected, the_parents_list_bounces]

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task."""
        if self.form == "nothing":
            return ()
        rng = self.rng

        def plans_other_weeks() -> None:
            for step in range(rng.randint(4, 8)):
                week = self.last + 2 + step
                group = (
                    self.group
                    if self.form in ("both", "weeks", "week")
                    else rng.choice([g for g in CLASSES if g != self.group])
                )
                if rng.random() < 0.5:
                    self.look(group, week)
                self.change(group, week)

        def reads_what_others_do() -> None:
            for _ in range(rng.randint(12, 18)):
                self.look(*self.pick(False))
                if rng.random() < 0.1:
                    self.step()

        def helps_other_classes() -> None:
            for _ in range(rng.randint(5, 9)):
                self.change(*self.pick(False))
                if rng.random() < 0.3:
                    self.step()

        return [plans_other_weeks, reads_what_others_do, helps_other_classes]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        rng, (group, week) = self.rng, self.pick(True)
        at = self.place(group, week)

        def tells_everybody() -> None:
            self.number += 1
            for number, role in enumerate(ROLES):
                args: Args = {"to": role, "text": f"{group}, week {week}: plan {self.number} is final"}
                self.run.call("message_send", args, "sent", change=True, place=at, beside=number > 0)

        def day_by_day() -> None:
            for day in DAYS:
                rows = "\n".join(f"{n} {rng.choice(SUBJECTS)}" for n in range(1, 7))
                self.run.call(
                    "sheets_get", {"sheet": f"KW{week:02d}", "range": f"{day}!A1:C8", "class": group}, rows, place=at
                )

        def protected_and_then_opened() -> None:
            args: Args = {"sheet": f"KW{week:02d}", "range": "C4", "class": group, "value": f"art {self.number}"}
            for _ in range(rng.randint(2, 3)):
                self.run.call("sheets_set", args, "protected cell", ok=False, cause="protected", place=at)
            self.run.call("sheets_unlock", {"sheet": f"KW{week:02d}"}, "unlocked", change=True)
            self.run.call("sheets_set", args, "1 cell", place=at, change=True, clears="protected")

        def bell_three_times() -> None:
            for _ in range(3):
                self.run.call("school_day", {"today": True}, "school day, lessons 1-6")
            self.work(5)

        def compares_with_the_week_before() -> None:
            for _ in range(rng.randint(2, 4)):
                self.look(group, self.first - 1)
            for _ in range(5):
                self.step()

        def waits_for_the_answer_of_the_head() -> None:
            looks = rng.randint(3, 8)
            for number in range(looks):
                said = "no answer yet" if number < looks - 1 else "head of year: agreed"
                args: Args = {"from": "head of year", "unread": True}
                self.run.call(
                    "message_list", args, said, watch="head", moved=number == looks - 1, gap=rng.uniform(40, 100)
                )

        return [
            tells_everybody,
            day_by_day,
            protected_and_then_opened,
            bell_three_times,
            compares_with_the_week_before,
            waits_for_the_answer_of_the_head,
        ]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Weeks, rng)
