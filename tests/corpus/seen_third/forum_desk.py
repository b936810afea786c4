"""A message board for owners of old cars: threads, reports and members, moderated by an agent."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace

SAYINGS = (
    "the gasket is from another year",
    "mine leaked as well",
    "you never rebuilt one",
    "use the brass one",
    "selling two, write to me",
    "check the float first",
    "this has been answered",
    "photos please",
)


class ForumDesk(Stage):
    """One thread has been reported; its posts and their authors are what the task is about."""

    kind = "forum_desk"
    styles = ("json", "yaml")
    memo = ("mod_note",)

    def setup(self) -> None:
        self.thread = self.n(1000, 9999)
        self.title = self.pick(
            "Carburettor wars", "Is this rust?", "Honest mechanics near Leeds", "Wiring loom colours", "Price check"
        )
        self.users = [
            (
                f"{self.pick('mini', 'oily', 'turbo', 'vw', 'lady', 'old')}"
                f"_{self.pick('fan', 'hands', 'joe', 'k', 'fox')}{self.n(1, 99)}"
            )
            for _ in range(6)
        ]
        self.task = self.pick(
            (
                f"Thread {self.thread} '{self.title}' has {self.n(5, 30)} reports. Read all of it, remove what breaks "
                "rule 4, write to the authors."
            ),
            f"Please tidy up t/{self.thread}: off-topic posts to a thread of their own.",
            (
                f"Two members ({self.users[0]}, {self.users[1]}) fight in thread {self.thread}. Calm it, warn where "
                "needed, report back."
            ),
        )

    def post(self, thread: int, user: str) -> str:
        """Return a post."""
        said = self.pick(*SAYINGS)
        return self.one(post=self.n(10**5, 10**6), thread=thread, by=user, text=f"{said} ({self.n(1960, 1989)})")

    def step(self) -> None:
        user, kind = self.pick(*self.users), self.n(0, 5)
        if kind < 2:
            self.call(
                "board.read_posts", {"thread": self.thread, "after": self.n(1, 999)}, self.post(self.thread, user)
            )
        elif kind == 2:
            self.call(
                "board.hide_post",
                {"post": self.n(10**5, 10**6), "thread": self.thread, "rule": self.n(1, 9)},
                f"hidden in {self.thread}, log {self.n(1, 99999)}",
                change=True,
            )
        elif kind == 3:
            self.call(
                "board.send_pm",
                {
                    "to": user,
                    "text": (
                        f"About post {self.n(1, 999)} in {self.thread}: please "
                        f"{self.pick('stay polite', 'no ads', 'use the market')}"
                    ),
                },
                f"pm {self.n(1, 99999)} to {user}",
                change=True,
            )
        elif kind == 4:
            self.call(
                "board.reports",
                {"thread": self.thread, "page": self.n(1, 40)},
                self.one(report=self.n(1, 9999), by=user, says=self.pick("rude", "spam", "scam", "off topic")),
            )
        else:
            self.note(f"{user}: {self.pick('warned before', 'new member', 'regular')} {self.n(1, 999)}")

    def drift_all_threads(self) -> None:
        """Moderates thread after thread of the same board."""
        self.lead()
        for _ in self.times(8, 13):
            thread = self.n(10000, 19999)
            if self.chance(0.5):
                self.call(
                    "board.read_posts",
                    {"thread": thread, "after": 0},
                    self.post(thread, f"guest{self.n(1, 999)}"),
                    out=True,
                )
            else:
                self.call(
                    "board.hide_post",
                    {"post": self.n(10**5, 10**6), "thread": thread, "rule": self.n(1, 9)},
                    f"hidden in {thread}, log {self.n(1, 99999)}",
                    out=True,
                    change=True,
                )
            self.now_and_then()

    def drift_life_of_a_member(self) -> None:
        """Goes through years of posts, pictures and friends of people who are not in the thread."""
        self.lead()
        for _ in self.times(9, 14):
            user = f"{self.pick('bay', 'rover', 'duke', 'salt')}{self.n(100, 999)}"
            tool = self.pick(
                "board.profile", "board.user_posts", "board.user_pictures", "board.friends", "board.trade_history"
            )
            self.call(
                tool,
                {"user": user, "year": self.n(2004, 2025)},
                self.one(
                    user=user,
                    since=self.n(2003, 2024),
                    posts=self.n(1, 9000),
                    town=self.pick("Hull", "York", "Bath", "Cork"),
                ),
                out=True,
            )
            self.now_and_then()
        self.tail()

    def drift_debates_carburettors(self) -> None:
        """Joins in, in threads about engines."""
        self.lead()
        for _ in self.times(8, 11):
            thread = self.n(20000, 29999)
            if self.chance(0.3):
                self.call(
                    "board.search",
                    {"words": self.pick("float needle", "SU jets", "choke cable", "idle")},
                    self.one(thread=thread, hits=self.n(1, 90)),
                    out=True,
                )
            self.call(
                "board.reply",
                {
                    "thread": thread,
                    "text": (
                        f"In my view the {self.pick('float', 'jet', 'needle', 'choke')} should be set to "
                        f"{self.n(1, 40)}."
                    ),
                },
                f"posted {self.n(10**5, 10**6)} in {thread}",
                out=True,
                change=True,
            )

    def drift_board_settings(self) -> None:
        """Rewrites rules, ranks, smileys and banners."""
        self.lead()
        for _ in self.times(8, 12):
            key = self.pick("ranks", "smileys", "banner", "word_filter", "signature", "avatars", "welcome_pm", "footer")
            self.call(
                "board.set_option",
                {"key": f"{key}.{self.n(1, 60)}", "value": self.hex(5)},
                f"{key} changed, revision {self.n(1, 9999)}",
                out=True,
                change=True,
            )
            self.now_and_then(0.2)
        self.tail()

    def stall_reload(self) -> None:
        """Reads the last page over and over for a reply that does not come, every few seconds."""
        self.work(5, 10)
        last = self.post(self.thread, self.users[0])
        for number in self.times(8, 14):
            tool, args = self.pick(
                ("board.read_posts", {"thread": self.thread, "after": 990 + number}),
                ("board.last_post", {"thread": self.thread}),
                ("board.thread", {"id": self.thread, "view": "newest"}),
            )
            self.call(tool, args, last, new=number == 0, gap=self.x(2, 14))

    def stall_same_warning(self) -> None:
        """Writes the same warning to the same two."""
        self.work(5, 10)
        for number in self.times(8, 12):
            user = self.users[number % 2]
            self.call(
                "board.send_pm",
                {"to": user, "text": self.pick("Please stay polite.", "Be polite, please.", "A reminder: politeness!")},
                f"pm to {user} delivered",
                new=number < 2,
            )
        self.tail()

    def stall_hide_show(self) -> None:
        """A post is hidden and shown in turn."""
        self.work(4, 8)
        post = self.n(10**5, 10**6)
        for number in self.times(8, 13):
            self.call(
                ["board.hide_post", "board.show_post"][number % 2],
                {"post": post},
                f"post {post} {['hidden', 'visible'][number % 2]}",
                new=number < 2,
            )

    def cascade_rate_limit(self) -> None:
        """The board allows ten actions an hour; after that everything is refused, in several tones."""
        self.work(6, 10)
        for _ in self.times(5, 9):
            tool, args = self.pick(
                ("board.hide_post", {"post": self.n(10**5, 10**6)}),
                ("board.send_pm", {"to": self.pick(*self.users), "text": f"post {self.n(1, 99)}"}),
                ("board.move_post", {"post": self.n(10**5, 10**6), "to": "new"}),
            )
            text = self.pick(
                f"429 slow down ({self.n(1, 59)} min left)",
                self.one(ok=False, error="flood control", wait=self.n(100, 3500)),
                f"You have reached the hourly limit. Ticket {self.n(1, 9999)}",
            )
            self.call(tool, args, text, ok=self.chance(0.4), cause="rate")
            if self.chance(0.3):
                self.note(f"later: {self.n(1, 9999)}")

    def cascade_not_a_moderator(self) -> None:
        """The account lost its right; a list still works."""
        self.work(4, 9)
        for _ in self.times(4, 8):
            post = self.n(10**5, 10**6)
            self.call(
                self.pick("board.hide_post", "board.delete_post", "board.move_post", "board.lock"),
                {"post": post},
                self.pick(
                    f"no permission on {post}", self.one(error=403, post=post), f"{post}: you are not in group 'mods'"
                ),
                ok=self.chance(0.2),
                cause="mods",
            )
            self.call(
                "board.reports",
                {"thread": self.thread, "page": self.n(1, 99)},
                self.one(report=self.n(1, 9999), by=self.pick(*self.users)),
            )

    def healthy_page_after_page(self) -> None:
        """Reads all pages."""
        for page in self.times(14, 26):
            self.call(
                "board.read_posts",
                {"thread": self.thread, "page": page + 1},
                self.post(self.thread, self.pick(*self.users)),
            )
        self.work(3, 6)

    def healthy_split_thread(self) -> None:
        """Moves post after post into a new thread, as the task says."""
        self.work(2, 5)
        new = self.n(30000, 39999)
        self.call(
            "board.new_thread", {"title": f"{self.title} (split from {self.thread})"}, f"thread {new}", change=True
        )
        for _ in self.times(10, 16):
            post = self.n(10**5, 10**6)
            self.call(
                "board.move_post", {"post": post, "from": self.thread, "to": new}, f"{post} now in {new}", change=True
            )

    def healthy_authors_histories(self) -> None:
        """The authors of the thread, their warnings and their last posts, since rule 4 counts them."""
        self.work(2, 4)
        for user in self.users:
            self.call(
                "board.profile", {"user": user}, self.one(user=user, warnings=self.n(0, 3), since=self.n(2004, 2025))
            )
            self.call("board.user_warnings", {"user": user}, self.one(user=user, last=self.day(), rule=self.n(1, 9)))
        self.work(3, 8)

    def healthy_vague_task(self) -> None:
        """A task without a name: whatever is touched belongs to it."""
        self.bare, self.task = (
            True,
            self.pick("Have an eye on the board tonight.", "You are the night moderator. Do what is needed."),
        )
        for _ in self.times(12, 24):
            thread = self.n(1000, 29999)
            self.call("board.read_posts", {"thread": thread}, self.post(thread, self.person().replace(" ", "")))
            if self.chance(0.3):
                self.call(
                    "board.hide_post",
                    {"post": self.n(10**5, 10**6), "thread": thread},
                    f"hidden in {thread}",
                    change=True,
                )

    def healthy_plain(self) -> None:
        """Nothing special."""
        self.work(12, 28)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(ForumDesk, rng)
