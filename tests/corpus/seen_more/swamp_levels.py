"""A game's scenes and scripts, through the remote control of its editor."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from tests.corpus.seen_more.trees import TreeScene
from tests.corpus.seen_more.world import Args, Place, Shape, stories
from tests.corpus.trace import Trace

KIND = "swamp_levels"


class Levels(TreeScene):
    """Scenes by world; they use prefabs and scripts."""

    parts: ClassVar[dict[str, list[str]]] = {
        "swamp": ["arrival", "frog_king", "sunken_mill", "fog"],
        "tower": ["stairs", "library", "clock_room", "roof", "cellar"],
        "desert": ["caravan", "well", "glass_dunes", "tomb"],
        "harbour": ["docks", "market", "lighthouse"],
        "menus": ["title", "inventory", "credits"],
    }
    shared: ClassVar[dict[str, list[str]]] = {"prefabs": ["door", "torch", "boat", "enemy_base", "chest", "trigger"]}
    strays = (
        "store/page_text",
        "i18n/strings.de",
        "audio/credits",
        "press/kit",
        "tools/pack_textures",
        "docs/roadmap",
    )
    words = (
        "speed",
        "hp",
        "fog_density",
        "loop",
        "spawn",
        "tint",
        "delay",
        "radius",
        "gravity",
        "drop",
        "volume",
        "seed",
    )
    forms = ("path", "file", "glob", "folder", "words", "words", "words", "red", "everywhere", "nothing")

    def path(self, part: str, stem: str) -> str:
        """Resource addresses."""
        return f"res://{part}/{stem}.scene"

    def link_line(self, path: str, link: str) -> str:
        """A resource that a scene uses."""
        return f'[ext_resource path="{link}"]'

    def body(self, path: str) -> list[str]:
        """Nodes with properties."""
        rng = self.rng
        lines: list[str] = []
        for number in range(rng.randint(3, 8)):
            lines += [
                f'[node name="N{number}"]',
                *(f"{word} = {rng.uniform(0, 50):.2f}" for word in rng.sample(self.words, 2)),
            ]
        return lines

    def new_line(self, path: str, word: str) -> str:
        """A property."""
        return f"{word} = {self.number}.{self.rng.randint(10, 99)}"

    def say_task(self) -> str:
        """The task in its form."""
        rng = self.rng
        name = self.target.rsplit("/", 1)[-1].removesuffix(".scene").replace("_", " ")
        return {
            "path": f"{self.target}: the frame rate drops below 30. Make it cheaper.",
            "file": f"The {name} room in the {self.part} is too hard for new players. Tune it.",
            "glob": f"res://{self.part}/*.scene: replace point lights by baked ones",
            "folder": f"Everything in res://{self.part}/ shall work with a gamepad.",
            "words": rng.choice(
                [
                    f"The {self.part} needs more mood. Colours, sound, little things that move.",
                    f"Testers get lost in the {self.part}. Help them with light and signs.",
                    f"{self.part}: enemies walk through walls",
                ]
            ),
            "red": f"The smoke test of world '{self.part}' crashes.",
            "line": "",
            "everywhere": "The property `hp` is called `health` from now on, in every scene.",
            "nothing": "Play the game and improve what annoys you.",
        }[self.form]

    def do_read(self, path: str, fresh: bool | None, place: Place) -> None:
        """Look at a scene."""
        lines = self.text[path]
        if fresh is not False:
            self.run.call("scene.dump", {"scene": path}, "\n".join(lines), fresh=True, place=place)
        elif self.rng.random() < 0.5:
            tree = "\n".join(f"- {line}" for line in lines)
            self.run.call(
                "scene.tree", {"scene": path, "depth": self.rng.randint(3, 9)}, tree, fresh=False, place=place
            )
        else:
            said = " ".join(lines)
            self.run.call(
                "scene.query",
                {"scene": path, "select": self.rng.choice(["*", "node", "//*"])},
                said,
                fresh=False,
                place=place,
            )

    def do_edit(self, path: str, before: str, after: str, fresh: bool, place: Place) -> None:
        """Set a property."""
        if not before:
            self.run.call("file.write", {"file": path, "text": after}, "written", fresh=fresh, change=True, place=place)
            return
        key, _, value = after.partition(" = ")
        args: Args = {"scene": path, "node": f"N{len(before) % 5}", "prop": key, "value": value}
        said = self.rng.choice(["true", "set", f"undo#{self.rng.randint(100, 999)}"])
        self.run.call("node.set", args, said, fresh=fresh, change=True, place=place, clears="save")

    def do_seek(self, query: str, hits: list[str], fresh: bool, place: Place) -> None:
        """Find in scenes."""
        args = {"regex": query, "root": f"res://{self.part}/"}
        self.run.call("project.find", args, "\n".join(hits) or "[]", fresh=fresh, place=place)

    def do_check(self, red: list[str], fresh: bool, place: Place) -> None:
        """Play the world without a picture."""
        where = self.named_by_check or self.target
        lines = [f"frame {self.rng.randint(100, 9000)} fps {self.rng.randint(40, 61)}"]
        lines += [f"SCRIPT ERROR: {where}: {word} is null" for word in red]
        args = {"world": self.part, "headless": True, "frames": 600}
        self.run.call("game.play", args, "\n".join(lines), fresh=fresh, place=place, clears="device")

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng = self.rng

        def the_editor_holds_a_dialog_open() -> None:
            for _ in range(rng.randint(4, 8)):
                path = rng.choice(self.core)
                self.number += 1
                args: Args = {
                    "scene": path,
                    "node": f"N{self.number}",
                    "prop": rng.choice(self.words),
                    "value": str(self.number),
                }
                said = rng.choice(
                    ["false (modal dialog open: 'Save changes?')", "null", "ERR_BUSY editor waits for input"][::2]
                )
                self.run.call("node.set", args, said, ok=rng.random() < 0.7, cause="save", place=self.place(path))
                self.quiet()
            if rng.random() < 0.3:
                self.run.call("editor.key", {"key": "Escape"}, "dialog closed")
                self.edit(self.core[0])

        def no_graphics_device() -> None:
            for number in range(rng.randint(4, 7)):
                tool = rng.choice(["game.play", "game.screenshot", "light.bake"])
                args: Args = {"world": self.part, "frames": 10 + number}
                said = rng.choice(
                    [
                        "VK_ERROR_INITIALIZATION_FAILED",
                        "ERROR: Unable to create DisplayServer (x11)",
                        "no GPU: adapter list is empty",
                    ]
                )
                self.run.call(tool, args, said, ok=rng.random() < 0.6, cause="device", place=self.here)
                self.quiet()

        return [the_editor_holds_a_dialog_open, no_graphics_device]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""

        def saves_thrice() -> None:
            for _ in range(3):
                self.run.call("editor.version", {}, "4.1.stable")
            self.work(5)

        def baking() -> None:
            for percent in range(10, 100, self.rng.choice([12, 20, 25])):
                said = f"baking {percent}% ({self.run.millis()} ms/texel)"
                self.run.call("light.status", {}, said, watch="bake", moved=True, gap=self.rng.uniform(9, 40))

        def a_value_creeps_up() -> None:
            for number in range(self.rng.randint(5, 9)):
                args: Args = {
                    "scene": self.target,
                    "node": "N1",
                    "prop": "radius",
                    "value": f"{self.number + number / 100}",
                }
                self.run.call("node.set", args, "true", change=True, place=self.place(self.target), clears="save")
            self.work(3)

        return [*super().alikes(), saves_thrice, baking, a_value_creeps_up]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Levels, rng)
