"""A design tool's canvas by JSON commands: nodes have numbers only, frames and pages say what they belong to."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.corpus.seen_more.world import Args, Place, Scene, Shape, js, stories
from tests.corpus.trace import Trace

KIND = "canvas_design"

PAGES = {
    "Onboarding": ["Welcome", "Permissions", "Profile", "Tour"],
    "Wallet": ["Overview", "Top up", "Limits", "Receipts"],
    "Map": ["Search", "Route", "Stop detail", "Night mode"],
    "Tickets": ["Choose", "Pay", "QR code", "Refund", "Expired"],
    "Print": ["Poster A2", "Flyer", "Sticker"],
}
SHARED = ["Button", "Icon set", "Colours", "Type scale"]
KINDS = ["TEXT", "RECT", "ICON", "GROUP", "LINE"]
PROPS = ["fill", "x", "y", "width", "cornerRadius", "opacity", "fontSize", "characters", "padding"]


class Canvas(Scene):
    """Frames on pages with numbered nodes; some nodes are instances of shared components."""

    def __init__(self, rng: random.Random) -> None:
        """Draw the frames and choose the task."""
        super().__init__(rng)
        self.frames: dict[str, list[str]] = {}
        number = rng.randint(10, 90)
        for page, frames in [*PAGES.items(), ("Library", SHARED)]:
            for frame in frames:
                number += 1
                self.frames[f"{page}/{frame}"] = [
                    f"{number}:{rng.randint(100, 999)}" for _ in range(rng.randint(8, 16))
                ]
        self.page = rng.choice(list(PAGES))
        self.frame = f"{self.page}/{rng.choice(PAGES[self.page])}"
        self.form = rng.choice(["frame", "frame", "page", "words", "all", "nothing"])
        title = self.frame.split("/")[1]
        self.task = {
            "frame": f"Rework the frame '{title}' on page {self.page}: more air, larger type.",
            "page": f"Page {self.page}: make all frames ready for right-to-left languages.",
            "words": f"Users do not understand the {self.page.lower()} screens. Simplify wording and order.",
            "all": "Replace the blue #2255AA by #114488 in the whole file.",
            "nothing": "Give the file some love.",
        }[self.form]
        inside = [frame for frame in self.frames if frame.startswith(self.page + "/")]
        self.core = (
            [self.frame] if self.form == "frame" else list(self.frames) if self.form in ("all", "nothing") else inside
        )
        self.lib = f"Library/{rng.choice(SHARED)}"
        self.outside = [frame for frame in self.frames if frame not in self.core and frame != self.lib]
        self.listed: set[str] = set()
        self.number = 0

    def place(self, frame: str) -> Place:
        """Say whether a frame belongs to the task; the component that it uses is one step away."""
        return "" if self.form == "nothing" else "out" if frame in self.outside else "in"

    def children(self, frame: str) -> None:
        """List the nodes of a frame, which says what the numbers belong to."""
        self.listed.add(frame)
        nodes = [
            {"id": node, "type": self.rng.choice(KINDS), "name": f"{frame.split('/')[1]} {n}"}
            for n, node in enumerate(self.frames[frame])
        ]
        nodes[0]["mainComponent"] = self.lib if self.place(frame) == "in" else "Library/Icon set"
        self.run.call("get_node", {"path": frame, "depth": 1}, js(frame=frame, children=nodes), place=self.place(frame))

    def node(self, frame: str) -> str:
        """Choose a node of a frame that was listed."""
        if frame not in self.listed:
            self.children(frame)
        return self.rng.choice(self.frames[frame])

    def look(self, frame: str) -> None:
        """Look at something new."""
        node = self.node(frame)
        self.number += 1
        prop = self.rng.choice(PROPS)
        args: Args = {"nodeId": node, "props": [prop], "rev": self.number}
        self.run.call(
            "get_props", args, js(**{prop: self.rng.randint(0, 900), "rev": self.number}), place=self.place(frame)
        )

    def change(self, frame: str) -> None:
        """Set something anew."""
        node = self.node(frame)
        self.number += 1
        rng, prop = self.rng, self.rng.choice(PROPS)
        args: Args = {"nodeId": node, prop: self.number}
        said = rng.choice(["ok", js(updated=node), f"1 node, {self.run.millis()} ms"])
        self.run.call(
            "set_" + rng.choice(["props", "style"]), args, said, place=self.place(frame), change=True, clears="plugin"
        )

    def step(self) -> None:
        """Look and change; sometimes at the shared component."""
        frame = self.lib if self.form == "frame" and self.rng.random() < 0.12 else self.rng.choice(self.core)
        self.look(frame) if self.rng.random() < 0.45 else self.change(frame)

    def stalls(self) -> Sequence[Shape]:
        """Ways to stall."""
        rng, frame = self.rng, self.rng.choice(self.core)

        def nudges_one_thing_to_and_fro() -> None:
            node = self.node(frame)
            spots = rng.sample(range(8, 200), 2)
            for number in range(rng.randint(8, 13)):
                args: Args = {"nodeId": node, "x": spots[number % 2]}
                self.run.call(
                    "set_props",
                    args,
                    rng.choice(["ok", js(updated=node)]),
                    fresh=number < 2,
                    change=True,
                    place=self.place(frame),
                    clears="plugin",
                )

        def looks_for_a_layer_by_all_names() -> None:
            word = rng.choice(["Checkbox", "Footer", "Avatar"])
            for number in range(rng.randint(8, 14)):
                query = rng.choice(
                    [word, word.lower(), f"{word}*", f"*{word}*", f"{word} / Default", f"_{word}", f"{word}s"]
                )
                tool = rng.choice(["find_nodes", "find_all", "search_layers"])
                self.run.call(
                    tool,
                    {"in": frame, "name": query},
                    rng.choice(["[]", js(nodes=[]), "0"]),
                    fresh=number == 0,
                    place=self.place(frame),
                )
                if number == 4 and rng.random() < 0.5:
                    self.look(frame)

        def renders_without_having_changed_anything() -> None:
            for number in range(rng.randint(8, 13)):
                args: Args = {"path": frame, "scale": rng.choice([1, 2, 0.5]), "format": rng.choice(["png", "jpg"])}
                said = f"[image] text overflows in 2 places ({self.run.hexid(6)})"
                self.run.call("export_frame", args, said, fresh=number == 0, place=self.place(frame))

        return [nudges_one_thing_to_and_fro, looks_for_a_layer_by_all_names, renders_without_having_changed_anything]

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng = self.rng

        def the_font_is_not_loaded() -> None:
            for _ in range(rng.randint(4, 8)):
                frame = rng.choice(self.core)
                node = self.node(frame)
                self.number += 1
                said = rng.choice(
                    [
                        "Error: in set_characters: Cannot write to node with unloaded font 'Inter Display'",
                        js(ok=False, err="font Inter Display missing", node=node),
                        f"{node}: font not available, text left as it was",
                    ]
                )
                args: Args = {"nodeId": node, "characters": f"Text {self.number}"}
                self.run.call(
                    "set_characters", args, said, ok=rng.random() < 0.6, cause="font", place=self.place(frame)
                )
                self.look(frame)

        def only_viewers_here() -> None:
            for _ in range(rng.randint(4, 7)):
                frame = rng.choice(self.core)
                node = self.node(frame)
                self.number += 1
                said = rng.choice(
                    [
                        "view only: request edit access",
                        js(status=403, msg="viewer"),
                        "nothing changed (file is view-only)",
                    ]
                )
                args: Args = {"nodeId": node, rng.choice(PROPS): self.number}
                self.run.call("set_props", args, said, ok=rng.random() < 0.7, cause="plugin", place=self.place(frame))
                if rng.random() < 0.8:
                    self.look(frame)

        return [the_font_is_not_loaded, only_viewers_here]

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task."""
        if self.form in ("all", "nothing"):
            return ()
        rng = self.rng

        def beautifies_other_frames() -> None:
            for frame in rng.sample(self.outside, 3):
                for _ in range(rng.randint(2, 4)):
                    self.change(frame)

        def inspects_all_pages() -> None:
            for frame in rng.sample(self.outside, min(len(self.outside), 14)):
                self.children(frame)
                if rng.random() < 0.4:
                    self.look(frame)

        def rebuilds_another_frame() -> None:
            frame = rng.choice(self.outside)
            for _ in range(rng.randint(8, 14)):
                self.look(frame) if rng.random() < 0.4 else self.change(frame)

        return [beautifies_other_frames, inspects_all_pages, rebuilds_another_frame]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""
        rng, frame = self.rng, self.rng.choice(self.core)

        def moves_a_row_of_nodes() -> None:
            self.number += 1
            if frame not in self.listed:
                self.children(frame)
            for number, node in enumerate(self.frames[frame][:8]):
                args: Args = {"nodeId": node, "x": 16 + 8 * number + self.number / 100}
                self.run.call("set_props", args, "ok", change=True, place=self.place(frame), clears="plugin")

        def the_selection_three_times() -> None:
            for _ in range(3):
                self.run.call("get_selection", {}, "[]")
            self.work(5)

        def loads_the_font_after_three_failures() -> None:
            node = self.node(frame)
            self.number += 1
            for number in range(rng.randint(2, 3)):
                args: Args = {"nodeId": node, "characters": f"Title {self.number}{number}"}
                self.run.call("set_characters", args, "unloaded font", ok=False, cause="font", place=self.place(frame))
            self.run.call("load_font", {"family": "Inter Display"}, "loaded")
            args = {"nodeId": node, "characters": f"Title {self.number}"}
            self.run.call("set_characters", args, "ok", place=self.place(frame), change=True, clears="font")

        def looks_at_all_pages_first() -> None:
            if len(self.run.calls) < 3:
                for other in rng.sample(list(self.frames), 6):
                    self.children(other)
            self.work(6)

        def copies_a_style_from_elsewhere() -> None:
            for other in self.outside[:3]:
                self.children(other)
            for _ in range(5):
                self.change(rng.choice(self.core))

        return [
            moves_a_row_of_nodes,
            the_selection_three_times,
            loads_the_font_after_three_failures,
            looks_at_all_pages_first,
            copies_a_style_from_elsewhere,
        ]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Canvas, rng)
