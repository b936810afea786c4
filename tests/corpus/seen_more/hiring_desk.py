"""Recruiting: people known by role and record key, openings, interviews, calendar; tasks name roles."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.corpus.seen_more.world import Args, Place, Scene, Shape, js, stories
from tests.corpus.trace import Trace

KIND = "hiring_desk"

OPENINGS = ["night nurse", "welder", "bus driver", "sound engineer", "payroll clerk", "gardener", "Koch (m/w/d)"]
BOSSES = {
    "night nurse": "ward lead",
    "welder": "shop foreman",
    "bus driver": "depot head",
    "sound engineer": "stage lead",
}
TOPICS = ["certificate", "salary wish", "start date", "reference", "trial day", "permit", "shift model", "photo"]


class Hiring(Scene):
    """Candidates by opening; a task by opening, by candidate, by the boss who asks, or by date."""

    def __init__(self, rng: random.Random) -> None:
        """Choose the task."""
        super().__init__(rng)
        self.people = {f"cand_{rng.randint(10000, 99999)}": rng.choice(OPENINGS) for _ in range(36)}
        self.opening = rng.choice(list(BOSSES))
        self.people[f"cand_{rng.randint(1000, 9999)}"] = self.opening
        own = [who for who, opening in self.people.items() if opening == self.opening]
        self.who = rng.choice(own)
        self.form = rng.choice(["opening", "boss", "candidate", "candidate", "except", "nothing"])
        self.task = {
            "opening": f"Opening '{self.opening}': invite who fits, refuse the others kindly.",
            "boss": f"The {BOSSES[self.opening]} waits for our short list. Make it and send it over.",
            "candidate": f"{self.who} has withdrawn: cancel everything, delete what the law wants deleted.",
            "except": f"Everybody who applied as {self.opening} except {self.who} gets an interim notice.",
            "nothing": "Go through the applications, you know how we do it.",
        }[self.form]
        named = {
            "candidate": [self.who],
            "except": [one for one in own if one != self.who],
            "nothing": list(self.people),
        }
        self.inside = named.get(self.form, own) or own
        self.outside = [one for one in self.people if one not in self.inside]
        self.number = 0
        if self.form in ("opening", "boss", "except"):
            rows = [{"id": one, "opening": self.opening} for one in own]
            args: Args = {"opening": self.opening}
            if self.form == "boss":
                self.call(
                    "getOpenings", {"hiringManager": BOSSES[self.opening]}, js(openings=[self.opening]), place="in"
                )
            self.call("listCandidates", args, js(items=rows, next=None), place="in")

    def place(self, who: str) -> Place:
        """Say whether a candidate belongs to the task."""
        return "" if self.form == "nothing" else "in" if who in self.inside else "out"

    def look(self, who: str) -> None:
        """Look at something new of a candidate."""
        rng, at = self.rng, self.place(who)
        self.number += 1
        kind, topic = rng.randrange(4), rng.choice(TOPICS)
        if kind == 0:
            said = js(
                id=who, opening=self.people[who], **{topic.replace(" ", "_"): f"{rng.choice(TOPICS)} {self.number}"}
            )
            self.call("getCandidate", {"candidateId": who, "expand": [topic], "v": self.number}, said, place=at)
        elif kind == 1:
            said = f"p. {self.number}: {rng.randint(2, 20)} years as {rng.choice(OPENINGS)}, {topic} enclosed"
            self.call("readAttachment", {"candidateId": who, "page": self.number}, said, place=at)
        elif kind == 2:
            said = f"{rng.choice(['Mon', 'Di', 'Thu'])} {rng.randint(8, 17)}:00 free, {topic} to be settled"
            self.call("calendarFind", {"with": who, "week": self.number}, said, place=at)
        else:
            thanks = rng.choice(["thanks", "merci", "Danke"])
            said = f"#{self.number} {who}: '{thanks}, about the {topic}: {rng.choice(['yes', 'no', 'later'])}'"
            self.call("inboxRead", {"from": who, "n": self.number}, said, place=at)

    def change(self, who: str) -> None:
        """Do something for a candidate that was not done before."""
        self.number += 1
        tool, args = self.rng.choice(
            [
                ("setStage", {"candidateId": who, "stage": f"round {self.number}"}),
                ("addNote", {"candidateId": who, "text": f"{self.rng.choice(TOPICS)} {self.number}"}),
                (
                    "sendMessage",
                    {"to": who, "template": f"t{self.number}", "lang": self.rng.choice(["de", "en", "fr"])},
                ),
                ("bookSlot", {"candidateId": who, "slot": f"s{self.number}"}),
            ]
        )
        said = self.rng.choice([js(ok=True), "done", f"saved at {self.run.time()}"])
        self.call(tool, args, said, place=self.place(who), change=True, clears="consent")

    def step(self) -> None:
        """Look and act."""
        who = self.rng.choice(self.inside)
        self.look(who) if self.rng.random() < 0.6 else self.change(who)

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall."""
        rng, who = self.rng, self.rng.choice(self.inside)
        at = self.place(who)

        def looks_for_a_reference_letter() -> None:
            ways: list[tuple[str, Args]] = [
                ("listAttachments", {"candidateId": who}),
                ("listAttachments", {"candidateId": who, "type": "reference"}),
                ("searchFiles", {"q": f"{who} Arbeitszeugnis"}),
                ("searchFiles", {"q": f"reference letter {who}", "deep": True}),
                ("inboxSearch", {"q": f"from:{who} has:attachment"}),
            ]
            for number in range(rng.randint(8, 14)):
                tool, args = rng.choice(ways)
                self.call(tool, args, rng.choice(["[]", js(items=[]), "nothing found"]), fresh=number == 0, place=at)
                if number == 4 and rng.random() < 0.5:
                    self.look(who)

        def stage_to_and_fro() -> None:
            for number in range(rng.randint(8, 12)):
                args: Args = {"candidateId": who, "stage": ("interview", "screening")[number % 2]}
                self.call("setStage", args, js(ok=True), fresh=number < 2, change=True, place=at, clears="consent")

        def writes_the_same_question_again() -> None:
            for number in range(rng.randint(8, 12)):
                text = rng.choice(
                    ["When can you start?", "Your start date please", "Wann koennen Sie anfangen?", "start date?"]
                )
                if number % 3 < 2:
                    self.call(
                        "sendMessage", {"to": who, "text": text}, "sent", fresh=number == 0, change=True, place=at
                    )
                else:
                    self.call(
                        "inboxRead", {"from": who, "unread": "yes"}, "no new message", fresh=number == 2, place=at
                    )

        return [looks_for_a_reference_letter, stage_to_and_fro, writes_the_same_question_again]

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng = self.rng

        def consent_has_run_out() -> None:
            who = rng.choice(self.inside)
            for _ in range(rng.randint(4, 7)):
                self.number += 1
                said = rng.choice(
                    [
                        js(ok=False, reason=f"data consent of {who} expired"),
                        "Nicht erlaubt: Einwilligung abgelaufen",
                        f"451 {who}: processing blocked (GDPR)",
                    ]
                )
                tool = rng.choice(["setStage", "addNote", "sendMessage", "bookSlot"])
                args: Args = {"candidateId": who, "value": self.number}
                self.call(tool, args, said, ok=rng.random() < 0.75, cause="consent", place=self.place(who))
                self.number += 1
                self.call(
                    "policyRead",
                    {"section": self.number},
                    f"section {self.number}: {rng.choice(TOPICS)} is kept for a year",
                )

        def the_calendar_is_not_connected() -> None:
            for _ in range(rng.randint(4, 7)):
                who = rng.choice(self.inside)
                self.number += 1
                said = rng.choice(
                    ["calendar account disconnected", js(error={"type": "oauth", "hint": "reconnect"}), "invalid_grant"]
                )
                tool = rng.choice(["bookRoom", "bookPanel", "findPanelSlot"])
                args: Args = {"for": who, "week": self.number}
                self.call(tool, args, said, ok=rng.random() < 0.6, cause="calendar", place=self.place(who))
                self.step()

        return [consent_has_run_out, the_calendar_is_not_connected]

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task."""
        if self.form == "nothing":
            return ()
        rng = self.rng

        def reads_other_peoples_files() -> None:
            for _ in range(rng.randint(12, 18)):
                self.look(rng.choice(self.outside))

        def acts_for_other_openings() -> None:
            for _ in range(rng.randint(4, 8)):
                who = rng.choice(self.outside)
                if rng.random() < 0.5:
                    self.look(who)
                self.change(who)

        def mixes_foreign_people_in() -> None:
            for _ in range(rng.randint(5, 8)):
                self.change(rng.choice(self.outside))
                self.step()

        return [reads_other_peoples_files, acts_for_other_openings, mixes_foreign_people_in]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        rng, who = self.rng, self.rng.choice(self.inside)

        def the_same_notice_to_all() -> None:
            self.number += 1
            for number, one in enumerate(self.inside[:9]):
                args: Args = {"to": one, "template": f"interim-{self.number}"}
                self.call(
                    "sendMessage", args, "sent", change=True, place=self.place(one), beside=number > 0, clears="consent"
                )

        def attachment_page_by_page() -> None:
            for page in range(1, rng.randint(5, 9)):
                self.number += 1
                said = f"page {page}: {rng.choice(TOPICS)}, {rng.choice(TOPICS)} {self.number}"
                self.call(
                    "readAttachment",
                    {"candidateId": who, "file": "cv.pdf", "p": page + self.number},
                    said,
                    place=self.place(who),
                )

        def slot_taken_thrice() -> None:
            for _ in range(3):
                self.number += 1
                args: Args = {"candidateId": who, "slot": f"s{self.number}"}
                self.call(
                    "bookSlot", args, "slot already taken", ok=False, cause=f"slot{self.number}", place=self.place(who)
                )
            self.change(who)

        def tenant_three_times() -> None:
            for _ in range(3):
                self.call("whoAmI", {}, "agent@desk (recruiter)")
            self.work(5)

        def compares_with_hired_people() -> None:
            for other in self.outside[: rng.randint(2, 4)]:
                self.look(other)
            for _ in range(5):
                self.step()

        return [
            the_same_notice_to_all,
            attachment_page_by_page,
            slot_taken_thrice,
            tenant_three_times,
            compares_with_hired_people,
        ]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Hiring, rng)
