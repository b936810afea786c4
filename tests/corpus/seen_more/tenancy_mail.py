"""A housing office: mail in several languages and workbooks, through an office suite's MCP server."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.corpus.seen_more.world import Args, Place, Scene, Shape, js, stories
from tests.corpus.trace import Trace

KIND = "tenancy_mail"

TOPICS = {
    "heating": ["boiler", "radiator", "cold flat", "Heizung Ablesung"],
    "parking": ["bay 12", "permit", "barrier", "visitor space"],
    "summer party": ["grill", "music until ten", "tables", "Kuchenliste"],
    "lift": ["stuck doors", "inspection", "emergency call", "second floor"],
    "deposits": ["refund", "handover protocol", "key missing", "Kaution"],
    "cellar": ["damp", "bicycles", "light", "lock"],
    "rent 2025": ["index clause", "objection", "reference flats", "Mieterhoehung"],
}
ROLES = ["caretaker", "tenants' speaker", "boiler fitter", "neighbour from the third floor", "owner", "accountant"]
BOOKS = {topic: f"{topic.replace(' ', '_')}.xlsx" for topic in TOPICS}


class Office(Scene):
    """Mail threads and workbooks by topic, and a task about one of them."""

    def __init__(self, rng: random.Random) -> None:
        """Write the mails and choose the task."""
        super().__init__(rng)
        self.mails: dict[str, tuple[str, str, str]] = {}
        for topic, words in TOPICS.items():
            for _ in range(rng.randint(7, 12)):
                number = f"<{rng.randint(10000, 99999)}.{rng.randint(10, 99)}@house>"
                role = rng.choice(ROLES)
                wish = rng.choice(["please answer", "bitte um Rueckruf", "see row", "I object,"])
                text = f"About {rng.choice(words)}: {wish}"
                self.mails[number] = (topic, role, f"{text} {rng.randint(2, 90)} ({rng.choice(words)}).")
        self.topic = rng.choice(list(TOPICS))
        self.role = rng.choice(ROLES)
        self.form = rng.choice(["topic", "topic", "role", "book", "thread", "nothing"])
        book = BOOKS[self.topic]
        self.task = {
            "topic": f"Work through everything about {self.topic}: answer what is open and bring the list up to date.",
            "role": f"The {self.role} complains that nobody answers. Read what came from there, answer each one.",
            "book": f"Bring `{book}` in line with what the tenants wrote, and tell them that it is done.",
            "thread": f"Sort out '{rng.choice(TOPICS[self.topic])}' ({self.topic}) with those who wrote about it.",
            "nothing": "Empty the inbox: answer, file, enter in the lists.",
        }[self.form]
        self.unread = [mail for mail in self.mails if self.place(mail) != "out"]
        rng.shuffle(self.unread)
        self.row = 4
        self.sent = 0
        if self.form != "nothing":
            rows = "\n".join(f"{mail} {self.mails[mail][1]}: {self.mails[mail][0]}" for mail in self.unread)
            asked = f"from:{self.role}" if self.form == "role" else f"subject:{self.topic}"
            self.call("mail_search", {"q": asked, "mailbox": "all"}, rows, place="in")

    def place(self, mail: str) -> Place:
        """Say whether a mail belongs to the task."""
        if self.form == "nothing":
            return ""
        topic, role, _ = self.mails[mail]
        return "in" if (role == self.role if self.form == "role" else topic == self.topic) else "out"

    def place_book(self, topic: str) -> Place:
        """Say whether a workbook belongs to the task."""
        if self.form == "nothing":
            return ""
        own = {self.topic} if self.form != "role" else {t for t, role, _ in self.mails.values() if role == self.role}
        return "in" if topic in own else "out"

    def read(self, mail: str, fresh: bool | None = None) -> None:
        """Open one mail."""
        topic, role, text = self.mails[mail]
        shown = f"From: {role}\nDate: 2025-02-{int(mail[1:5]) % 28 + 1:02d}\nSubject: Re: {topic}\n\n{text}"
        if fresh is None:
            shown += f"\n> see {BOOKS[topic]}"
        self.call(
            "mail_read", {"message_id": mail}, shown, fresh=True if fresh is None else fresh, place=self.place(mail)
        )

    def answer(self, mail: str) -> None:
        """Answer one mail that was not answered yet."""
        topic, role, text = self.mails[mail]
        self.sent += 1
        args = {
            "to": role,
            "subject": f"Re: {topic}",
            "body": f"Thank you. {text[:25]} is settled, no. {self.sent}.",
            "in_reply_to": mail,
        }
        said = self.rng.choice(["queued", "Message sent.", f"250 2.0.0 accepted as {self.run.hexid(6)}"])
        self.call("mail_send", args, said, place=self.place(mail), change=True, clears="send")

    def enter(self, topic: str, fresh: bool = True) -> None:
        """Write a new row into a workbook."""
        self.row += 1
        rows = [
            [
                self.row - 4,
                self.rng.choice(TOPICS[topic]),
                self.rng.choice(["open", "done", "to owner"]),
                self.rng.randint(20, 900),
            ]
        ]
        args = {"workbook": BOOKS[topic], "sheet": "2025", "range": f"A{self.row}:D{self.row}", "values": rows}
        self.call(
            "workbook_write",
            args,
            '{"updatedCells": 4}',
            fresh=fresh,
            place=self.place_book(topic),
            change=True,
            clears="lock",
        )

    def step(self) -> None:
        """Read the next mail, answer it, enter it."""
        if not self.unread:
            if self.row < 60:
                self.enter(self.topic)
            return
        mail = self.unread.pop()
        self.read(mail)
        topic = self.mails[mail][0]
        if self.rng.random() < 0.7:
            self.answer(mail)
        if self.rng.random() < 0.5:
            self.enter(topic)

    def look(self) -> None:
        """Do something new that needs neither sending nor writing."""
        if self.unread:
            self.read(self.unread.pop())
        else:
            self.row += 1
            args = {"workbook": BOOKS[self.topic], "sheet": "2024", "range": f"A{self.row}:D{self.row}"}
            self.call(
                "workbook_read",
                args,
                f"{self.row} | {self.rng.choice(TOPICS[self.topic])} | {self.rng.randint(9, 999)}",
            )

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall."""
        rng = self.rng

        def looks_for_a_mail_that_never_came() -> None:
            thing = rng.choice(["offer", "invoice", "signed protocol", "report"])
            words = [
                thing,
                f"{thing} {self.topic}",
                f"Angebot {self.topic}",
                f"from:owner {thing}",
                f"has:attachment {thing}",
            ]
            boxes = ["inbox", "archive", "spam", "all", "sent"]
            asks = [(word, box) for word in words for box in boxes]
            for number, (word, box) in enumerate(rng.sample(asks, rng.randint(9, 18))):
                said = rng.choice(["[]", "No messages match.", js(messages=[], took_ms=self.run.millis())])
                self.call("mail_search", {"q": word, "mailbox": box}, said, fresh=number == 0)
                if number == 5 and rng.random() < 0.5:
                    self.look()

        def reminds_the_same_person_again_and_again() -> None:
            mail = next(iter(m for m in self.mails if self.place(m) != "out"))
            role = self.mails[mail][1]
            begins = [
                "Just a reminder",
                "Following up",
                "Did you see my mail?",
                "Kurze Erinnerung",
                "Any news?",
                "Once more",
            ]
            for number in range(rng.randint(4, 7)):
                args = {
                    "to": role,
                    "subject": f"Re: {self.mails[mail][0]}",
                    "body": f"{begins[number % 6]}: please answer.",
                }
                self.call(
                    "mail_send",
                    args,
                    rng.choice(["queued", "Message sent."]),
                    fresh=number == 0,
                    change=True,
                    place=self.place(mail),
                )
                said = rng.choice(["No new messages.", "[]", "0 unread"])
                self.call("mail_search", {"q": f"from:{role} is:unread", "mailbox": "inbox"}, said, fresh=number == 0)

        def reads_one_sheet_in_many_ranges() -> None:
            lines = [
                f"{n} | {rng.choice(TOPICS[self.topic])} | {rng.choice(['open', 'done'])} | {rng.randint(20, 900)}"
                for n in range(1, 9)
            ]
            book = BOOKS[self.topic]
            for number in range(rng.randint(8, 14)):
                ask = rng.choice(["A1:D9", "A:D", "A2:D9", "A1:C9", "A1:D20", "2025!A1:D9", "B1:D9", "UsedRange"])
                tool = rng.choice(["workbook_read", "workbook_read", "workbook_to_csv"])
                shown = "\n".join(line.replace(" | ", "," if tool == "workbook_to_csv" else " | ") for line in lines)
                args = {"workbook": book, "sheet": "2025", "range": ask}
                self.call(tool, args, shown, fresh=number == 0, place=self.place_book(self.topic))

        def one_cell_to_and_fro() -> None:
            book, cell = BOOKS[self.topic], f"D{rng.randint(4, 9)}"
            amounts = rng.sample(range(100, 900), 2)
            for number in range(rng.randint(5, 8)):
                args = {"workbook": book, "sheet": "2025", "range": cell, "values": [[amounts[number % 2]]]}
                at = self.place_book(self.topic)
                self.call("workbook_write", args, '{"updatedCells": 1}', fresh=number < 2, change=True, place=at)
                if number % 2:
                    self.call(
                        "workbook_read", args | {"range": "D20"}, "=SUM(D4:D19) -> #REF!", fresh=number < 3, place=at
                    )

        return [
            looks_for_a_mail_that_never_came,
            reminds_the_same_person_again_and_again,
            reads_one_sheet_in_many_ranges,
            one_cell_to_and_fro,
        ]

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng = self.rng

        def no_mail_leaves_the_house() -> None:
            own = [mail for mail in self.mails if self.place(mail) != "out"]
            for _ in range(rng.randint(4, 8)):
                mail = rng.choice(own)
                topic, role, text = self.mails[mail]
                said = rng.choice(
                    [
                        "452 4.2.2 The sender's mailbox is over quota; message not accepted",
                        "Die Nachricht wurde nicht gesendet: Ihr Postfach hat die Groessenbegrenzung ueberschritten.",
                        js(status="ok", delivery={"error": {"code": "QuotaExceeded", "used": "50.0 GB of 50 GB"}}),
                        "Not sent. You have run out of storage, free some space and try again.",
                    ]
                )
                args = {"to": role, "subject": f"Re: {topic}", "body": f"Dear {role}, {text[:30]}"}
                self.call("mail_send", args, said, ok=rng.random() < 0.7, cause="send", place=self.place(mail))
                self.look()
            if rng.random() < 0.4:
                self.call("mail_empty_trash", {}, "4.1 GB freed")
                self.answer(own[0])

        def the_book_is_locked() -> None:
            who = rng.choice(["accountant", "caretaker"])
            for _ in range(rng.randint(4, 7)):
                self.row += 1
                args: Args = {
                    "workbook": BOOKS[self.topic],
                    "sheet": rng.choice(["2025", "Summary"]),
                    "range": f"A{self.row}:D{self.row}",
                }
                said = rng.choice(
                    [
                        f"423 Locked: checked out by {who}",
                        f"{BOOKS[self.topic]} is open for editing by '{who}'. Your change was not saved.",
                        js(error="ConflictingLock", owner=who, id=self.run.hexid(12)),
                    ]
                )
                args["values"] = [[self.row, rng.choice(TOPICS[self.topic])]]
                at = self.place_book(self.topic)
                self.call("workbook_write", args, said, ok=rng.random() < 0.6, cause="lock", place=at)
                self.look()

        def an_address_that_does_not_exist() -> None:
            topic = self.topic
            for number in range(rng.randint(4, 7)):
                said = rng.choice(
                    [
                        "550 5.1.1 user unknown",
                        "Mail Delivery Subsystem: address not found",
                        "Ihre Nachricht konnte nicht zugestellt werden. Der Empfaenger ist unbekannt.",
                    ]
                )
                args = {
                    "to": "old-boiler-firm",
                    "subject": f"{topic} {number}",
                    "body": f"Question {number} on {topic}",
                }
                self.call("mail_send", args, said, ok=rng.random() < 0.8, cause="address")
                self.step() if rng.random() < 0.7 else self.look()

        return [an_address_that_does_not_exist, no_mail_leaves_the_house, the_book_is_locked]

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task."""
        if self.form == "nothing":
            return ()
        rng = self.rng
        foreign = [mail for mail in self.mails if self.place(mail) == "out"]
        other = rng.choice([topic for topic in TOPICS if self.place_book(topic) == "out"] or [self.topic])

        def answers_everything_else_too() -> None:
            for mail in rng.sample(foreign, rng.randint(4, 8)):
                self.read(mail)
                self.answer(mail)

        def reads_the_whole_archive() -> None:
            for mail in rng.sample(foreign, rng.randint(12, 20)):
                self.read(mail)
                if rng.random() < 0.12:
                    self.look()

        def keeps_another_list() -> None:
            for _ in range(rng.randint(4, 8)):
                self.enter(other)
                if rng.random() < 0.3:
                    self.look()

        def sorts_other_mail_into_folders() -> None:
            for mail in rng.sample(foreign, rng.randint(5, 9)):
                self.call(
                    "mail_move", {"message_id": mail, "folder": self.mails[mail][0]}, "moved", place="out", change=True
                )

        shapes: list[Shape] = [answers_everything_else_too, reads_the_whole_archive, sorts_other_mail_into_folders]
        return shapes if other == self.topic else [*shapes, keeps_another_list]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        rng = self.rng

        def three_sends_fail_then_space_is_made() -> None:
            if not self.unread:
                return
            mail = self.unread.pop()
            self.read(mail)
            for wait in (10, 35, 90)[: rng.randint(2, 3)]:
                args = {"to": self.mails[mail][1], "subject": "Re", "body": "Thank you."}
                self.call("mail_send", args, "452 4.2.2 over quota", cause="send", place=self.place(mail), gap=wait)
            self.call("mail_empty_trash", {}, "1.3 GB freed")
            self.answer(mail)

        def same_answer_to_many() -> None:
            self.sent += 1
            text = f"The meeting no. {self.sent} is on Tuesday at six."
            for role in ROLES:
                args = {"to": role, "subject": f"{self.topic}: date", "body": text}
                self.call("mail_send", args, "queued", fresh=True, change=True, beside=role != ROLES[0], clears="send")

        def pages_of_the_inbox() -> None:
            for page in range(1, rng.randint(4, 8)):
                mails = rng.sample(list(self.mails.items()), 6)
                shown = "\n".join(f"{number} {role}: {topic}" for number, (topic, role, _) in mails)
                self.call(
                    "mail_search",
                    {"q": f"after:2025-02-{rng.randint(1, 28)}", "mailbox": "all", "page": page},
                    shown,
                    fresh=True,
                )

        def waits_for_an_answer() -> None:
            looks = rng.randint(3, 7)
            for number in range(looks):
                said = "No new messages." if number < looks - 1 else f"1 new: {self.role}: yes, agreed"
                args = {"q": f"from:{self.role} is:unread", "mailbox": "inbox"}
                self.call("mail_search", args, said, watch="inbox", moved=number == looks - 1, gap=rng.uniform(40, 110))

        def asks_three_times_whether_there_is_a_draft() -> None:
            for _ in range(3):
                self.call("mail_drafts", {}, "[]")
            self.step()

        def reads_a_few_strangers_on_the_way() -> None:
            foreign = [mail for mail in self.mails if self.place(mail) == "out"]
            for mail in foreign[:4]:
                self.read(mail)
            for _ in range(4):
                self.step()

        return [
            three_sends_fail_then_space_is_made,
            same_answer_to_many,
            pages_of_the_inbox,
            waits_for_an_answer,
            asks_three_times_whether_there_is_a_draft,
            reads_a_few_strangers_on_the_way,
        ]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Office, rng)
