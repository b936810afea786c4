"""Game modding: a file tree with quests, scripts and textures, and a pack build that complains."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator

from tests.corpus.trace import Trace
from tests.corpus.unseen_kinds._world2 import Place, Scene, Step, produce

KIND = "game modding with asset files and a build"
KEYS: tuple[str, ...] = (
    "reward",
    "giver",
    "radius",
    "timer",
    "level",
    "music",
    "weather",
    "crowd",
    "gate",
    "boat",
    "lamp",
    "patrol",
)


class Mod(Scene):
    """A mod of a sea adventure; files are really edited."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.quest, *siblings = rng.sample(["harbour", "mill", "abbey", "forge", "lighthouse", "ropery"], 5)
        self.root = f"mods/{rng.choice(['tidewatch', 'saltroad', 'gullwing'])}"
        self.main = f"{self.root}/quests/{self.quest}.lua"
        self.lib = f"{self.root}/lib/{rng.choice(['steps', 'triggers', 'states'])}.lua"
        self.strings = f"{self.root}/text/en/{self.quest}.yml"
        self.art = [
            f"{self.root}/assets/{self.quest}/{kind}_{n:02}.png"
            for kind in ("crate", "rope", "sail")
            for n in range(1, 6)
        ]
        self.siblings = [f"{self.root}/quests/{one}.lua" for one in siblings]
        self.foreign = [
            "engine/conf/render.ini",
            "engine/conf/audio.ini",
            "mods/base/init.lua",
            "mods/base/lib/camera.lua",
        ]
        self.files: dict[str, list[str]] = {}
        for path in (self.main, *self.siblings):
            head = [f'local s = require("{self.lib[len(self.root) + 1 : -4]}")', "", "return s.quest {"]
            body = [f"\t{key} = {rng.randint(1, 90)}," for key in rng.sample(KEYS, len(KEYS))]
            stages = [
                f"\tstage {n} = s.{rng.choice(['go', 'find'])}({rng.randint(1, 400)}, '{rng.choice(KEYS)}'),"
                for n in range(1, rng.randint(20, 40))
            ]
            self.files[path] = [*head, *body, *stages, "}"]
        self.files[self.lib] = [f"function M.f{n}(a) return a * {rng.randint(2, 90)} end" for n in range(30)]
        self.files[self.strings] = [
            f"{self.quest}.line{n}: The {rng.choice(KEYS)} waits by the quay ({n})" for n in range(24)
        ]
        for path in self.foreign:
            self.files[path] = [f"{rng.choice(KEYS)}_{n} = {rng.randint(0, 999)}" for n in range(26)]
        self.bad = rng.sample(KEYS, rng.randint(5, 8))
        self.task = rng.choice(
            [
                (
                    "The quest in {m} does not pack. Repair it until `packer build {q}` is clean, bake the textures in "
                    "assets/{q}/ of the same mod."
                ),
                "Please make {m} ready for the next pack: build errors, its English lines ({s}), its textures.",
                "{m}: the packer complains about wrong values. Mend them one after the other; bake assets/{q}.",
            ]
        ).format(m=self.main, q=self.quest, s=self.strings)
        for key in KEYS:
            self.seen.add(f"{self.main} {key} {self.value(self.main, key)}")

    def value(self, path: str, key: str) -> str:
        """The value that stands behind a key."""
        return next(line for line in self.files[path] if line.startswith(f"\t{key} =")).split("= ")[1].rstrip(",")

    def where(self, path: str) -> Place:
        """The quest, its lines, its textures and what it requires are inside."""
        mine = (self.main, self.lib, self.strings)
        return "in" if path in mine or f"/assets/{self.quest}/" in path else "out"

    # Looks.

    def read(self, path: str, first: int, last: int, way: int | None = None) -> None:
        """Lines of a file through one of several tools."""
        rng = self.rng
        lines = self.files[path][first - 1 : last]
        facts = [f"{path} {number} {line}" for number, line in enumerate(lines, first)]
        far = path == self.lib
        way = rng.randrange(4) if way is None else way
        if way == 0:
            text = "\n".join(f"{number:>4}  {line}" for number, line in enumerate(lines, first))
            self.call(
                "open", {"path": path, "start": first, "end": last}, text, facts=facts, place=self.where(path), far=far
            )
            return
        if way == 1:
            script = f"sed -n '{first},{last}p' {path}"
        elif way == 2:
            script = f"head -n {last} {path} | tail -n +{first}"
        else:
            script = f"cd {path.rpartition('/')[0]} && awk 'NR>={first} && NR<={last}' {path.rpartition('/')[2]}"
        text = f"$ exit 0 in {rng.uniform(0.01, 0.09):.3f}s\n" + "\n".join(lines)
        self.call("shell", {"script": script}, text, facts=facts, place=self.where(path), far=far)

    def grep(self, path: str, word: str) -> None:
        """The lines with a word."""
        hits = [(n, line) for n, line in enumerate(self.files[path], 1) if word in line]
        text = "\n".join(f"{n}:{line}" for n, line in hits)
        facts = [f"{path} {n} {line}" for n, line in hits] or [f"no {word} in {path}"]
        script = self.pick(["grep -n", "grep -nF", "rg -n"]) + f" {word!r} {path}"
        self.call(
            "shell", {"script": script}, f"$ exit {0 if hits else 1}\n{text}", facts=facts, place=self.where(path)
        )

    # Changes.

    def edit(self, path: str, key: str, value: int | str) -> None:
        """Give a key another value."""
        old = self.value(path, key)
        row = self.files[path].index(f"\t{key} = {old},")
        self.files[path][row] = f"\t{key} = {value},"
        self.seen.add(f"{path} {row + 1} {self.files[path][row]}")
        self.call(
            "patch",
            {"file": path, "old": f"\t{key} = {old},", "new": f"\t{key} = {value},"},
            f"patched {path} ({self.hexid(7)})",
            facts=(f"{path} {key} {value}",),
            uses=("disk", "tabs"),
            place=self.where(path),
            change=True,
        )

    def build(self) -> None:
        """The packer stops at each wrong value."""
        left = [key for key in KEYS if key in self.bad]
        seconds = self.rng.uniform(2, 9)
        text = f"packer 2.4  {self.quest}  {self.stamp('log')}\n"
        if left:
            row = 1 + next(n for n, line in enumerate(self.files[self.main]) if line.startswith(f"\t{left[0]} ="))
            text += f"{self.main}:{row}: value of '{left[0]}' out of range\n{len(left)} error(s), {seconds:.2f}s"
        else:
            text += f"ok, {self.rng.randint(300, 420)} entries in {seconds:.2f}s"
        self.call(
            "shell",
            {"script": self.pick([f"packer build {self.quest}", f"packer build {self.quest} 2>&1 | tail -3"])},
            f"$ exit {1 if left else 0}\n{text}",
            facts=(f"build {' '.join(left)}",) if left else self.again("build ok"),
            uses=("disk",),
            place="in",
        )

    def mend(self, key: str) -> None:
        """Build, then repair what was named."""
        self.build()
        self.bad.remove(key)
        self.edit(self.main, key, self.rng.randint(100, 140))

    def bake(self, image: str) -> None:
        """One texture."""
        size = self.rng.choice([64, 128, 256])
        text = (
            f"$ exit 0\n{image} -> .dds {size}x{size} bc7 mips={size.bit_length() - 1} ({self.rng.randint(9, 80)} ms)"
        )
        arguments = {"script": f"texbake {image} --fmt bc7"}
        self.call(
            "shell", arguments, text, facts=(f"baked {image}",), uses=("texbake", "disk"), place="in", change=True
        )

    def line(self, number: int) -> None:
        """A better English line."""
        text = (
            f"{self.quest}.line{number}: {self.pick(['Mind the', 'Who moved the', 'Ask about the'])} {self.pick(KEYS)}!"
        )
        old = self.files[self.strings][number]
        self.files[self.strings][number] = text
        self.seen.add(f"{self.strings} {number + 1} {text}")
        arguments = {"file": self.strings, "old": old, "new": text}
        result = f"patched {self.strings} ({self.hexid(7)})"
        self.call("patch", arguments, result, facts=(text,), uses=("disk", "tabs"), place="in", change=True)

    def steps(self) -> list[Step]:
        part = functools.partial
        steps: list[Step] = [("", part(self.read, self.main, first, first + 11)) for first in range(1, 34, 12)]
        steps += [("", part(self.read, self.lib, 1, 14)), ("", part(self.grep, self.lib, "f2"))]
        steps += [("write", part(self.mend, key)) for key in KEYS if key in self.bad]
        rest: list[Step] = [("texbake", part(self.bake, image)) for image in self.some(self.art, 8)]
        rest += [("", part(self.read, self.strings, first, first + 4)) for first in (1, 6, 11, 16, 21)]
        rest += [("write", part(self.line, number)) for number in self.some(range(24), 5)]
        rest += [("", part(self.read, self.lib, first, first + 4)) for first in (15, 20, 25)]
        rest += [("", part(self.bones, image)) for image in self.some(self.art, 6)]
        return steps + self.some(rest, len(rest)) + [("write", self.build)]

    def bones(self, image: str) -> None:
        """What an image is."""
        text = f"$ exit 0\n{image}: PNG, {self.rng.choice([63, 64, 128])} x 64, RGBA, crc {self.hexid()}"
        self.call("shell", {"script": f"file {image}"}, text, facts=(f"file {image}",), place="in")

    # Troubles.

    def same_lines_in_other_ranges(self) -> None:
        """The file is read again in other cuts."""
        length = len(self.files[self.main])
        self.read(self.main, 1, length)
        for number in range(self.rng.randint(8, 15)):
            first = self.rng.randint(1, length - 8)
            if number == 5 and self.rng.random() < 0.5:
                self.read(self.lib, 1, 5 + number)
            elif self.rng.random() < 0.25:
                self.grep(self.main, self.pick(["stage", "s.go", "s.talk", "= s", "quest", self.pick(KEYS)]))
            else:
                self.read(self.main, first, min(length, first + self.rng.randint(4, 22)))

    def value_to_and_fro(self) -> None:
        """A value moves between tried ones; the simulation does not care."""
        values = self.rng.choice([(40, 60), (12, 24), (3, 9)])
        stage = self.rng.randint(3, 9)
        for number in range(self.rng.randint(7, 10)):
            self.edit(self.main, "radius", values[number % 2])
            text = f"{self.stamp('log')} simulated 600 s: stage {stage} is never reached (boat stuck at gate)"
            options = (
                f"packer sim {self.quest}",
                f"packer sim -v {self.quest}",
                f"packer simulate {self.quest} | tail -1",
            )
            script = self.pick(options)
            self.call("shell", {"script": script}, f"$ exit 1\n{text}", facts=self.again("stuck"), place="in")

    def a_texture_nobody_has(self) -> None:
        """The same missing name is looked for in every spelling and place."""
        name = self.pick(["foam", "barnacle", "kelp", "tarp"])
        fact = (f"no {name} anywhere",)
        for number in range(self.rng.randint(11, 17)):
            way = self.rng.randrange(5)
            if way == 0:
                arguments = {"script": f"find {self.root}/assets -iname '*{name}*'"}
                self.call("shell", arguments, "$ exit 0\n", facts=fact)
            elif way == 1:
                flags = self.pick(["-ri", "-rli", "-Rin", "-rn"])
                arguments = {"script": f"grep {flags} {name} {self.root}"}
                text = f"$ exit 1 in {self.rng.uniform(0.1, 0.3):.2f}s\n"
                self.call("shell", arguments, text, facts=(f"no word {name}",))
            elif way == 2:
                arguments = {"query": self.pick([name, name + "_01", name.title(), f"*{name}*.png"]), "in": self.root}
                self.call(
                    "asset_search", arguments, f'{{"hits": [], "took_ms": {self.rng.randint(3, 80)}}}', facts=fact
                )
            elif way == 3:
                arguments = {"script": f"ls -R {self.root}/assets | grep -i {name[: 3 + number % 3]}"}
                self.call("shell", arguments, "$ exit 1\n", facts=fact)
            else:
                arguments = {"script": f"git log --all --oneline -- '*{name}*' | head -{number + 3}"}
                self.call("shell", arguments, "$ exit 0\n", facts=(f"no {name} in history",))

    def bake_farm_stands(self) -> None:
        """The shared farm does not start the job for far too long."""
        job = f"bk{self.rng.randint(100, 999)}"
        for number in range(self.rng.randint(17, 24)):
            script = ("farm ls --mine", f"farm stat {job}", f"farm log {job} | tail -1")[number % 3]
            text = (
                f"{job} PEND prio 5 {self.stamp('clock')}",
                f"{job}: PEND, prio 5",
                "(no output, job is PEND, prio 5)",
            )[number % 3]
            arguments = {"script": script}
            gap = self.rng.uniform(30, 85)
            self.call("shell", arguments, f"$ exit 0\n{text}", facts=(f"{job} pend",), watch=job, gap=gap)

    def texbake_without_library(self) -> None:
        """The baker lacks a shared object; texture after texture."""
        self.blocked.add("texbake")
        dense = self.rng.random() < 0.3
        for number in range(self.rng.randint(5, 10)):
            image = self.art[0] if dense else self.pick(self.art)
            flags = self.pick(["--fmt bc7", "--fmt bc3", "-q", "--mips 4"])
            script = self.pick(
                [f"texbake {image} {flags}", f"bin/texbake {flags} {image}", f"texbake {flags} < {image}"]
            )
            text = f"texbake: error while loading shared libraries: libsquish.so.{0}: cannot open shared object file"
            self.call(
                "shell",
                {"script": script},
                f"$ exit 127\n{text}",
                ok=number % 2 == 0,
                cause="texbake",
                place="in",
                facts=() if dense else (f"bake {image} {flags}",),
            )
            if not dense:
                self.work(self.rng.choice((0, 1, 1, 2)))
        if self.rng.random() < 0.4:
            self.blocked.discard("texbake")
            self.call("shell", {"script": "pkg add libsquish"}, "$ exit 0\nlibsquish 1.15 added", facts=("squish",))
            self.bake(self.pick(self.art))

    def disk_is_full(self) -> None:
        """Nothing can be written, by whatever tool."""
        self.blocked |= {"write", "texbake"}
        for _ in range(self.rng.randint(4, 8)):
            key = self.pick(KEYS)
            way = self.rng.randrange(3)
            if way == 0:
                old = f"\t{key} = {self.value(self.main, key)},"
                arguments = {"file": self.main, "old": old, "new": f"\t{key} = {self.rng.randint(100, 140)},"}
                self.call(
                    "patch",
                    arguments,
                    "OSError 28: No space left on device",
                    ok=False,
                    cause="disk",
                    place="in",
                    facts=(key,),
                )
            elif way == 1:
                arguments = {"script": f"packer build {self.quest} --out /tmp/{key}"}
                text = "$ exit 1\npacker: write failed: no space left on device"
                self.call("shell", arguments, text, cause="disk", place="in", facts=(f"out {key}",))
            else:
                image = self.pick(self.art)
                arguments = {"script": f"texbake {image} --fmt bc7"}
                text = f"$ exit 74\n{image}: cannot write .dds (ENOSPC)"
                self.call("shell", arguments, text, ok=False, cause="disk", place="in", facts=(f"full {image}",))
            self.work(self.rng.choice((0, 1, 1, 2)))

    def spaces_for_tabs(self) -> None:
        """The quest is indented with tabs; the old text is given with spaces, key after key."""
        self.spaces(self.rng.randint(4, 8))

    def tabs_found_out(self) -> None:
        """Three rejections, then the tabs are seen."""
        self.spaces(3)
        self.blocked.discard("write")
        self.edit(self.main, "lamp", self.rng.randint(141, 160))

    def two_sisters(self) -> None:
        """How do two other quests word it: a few looks, then back."""
        for path in self.some(self.siblings, 2):
            self.read(path, 1, 12)
            self.read(path, 13, 24)
        self.work(6)

    def spaces(self, count: int) -> None:
        """So many edits with spaces."""
        self.blocked.add("write")
        for _ in range(count):
            key = self.pick(KEYS)
            value = self.value(self.main, key)
            arguments = {
                "file": self.main,
                "old": f"    {key} = {value},",
                "new": f"    {key} = {self.rng.randint(100, 140)},",
            }
            self.call(
                "patch",
                arguments,
                f"rejected: `old` occurs 0 times in {self.main.rpartition('/')[2]}",
                ok=self.rng.random() < 0.5,
                cause="tabs",
                place="in",
                facts=(f"spaces {key}",),
            )
            self.work(self.rng.choice((0, 1, 1, 2)))

    def other_quests_mended(self) -> None:
        """Values of the quests next door are changed as well."""
        dense = self.rng.random() < 0.4
        for path in self.siblings:
            if dense:
                self.read(path, 1, self.rng.randint(10, 20))
            for key in self.some(KEYS, 2 if dense else 1):
                self.edit(path, key, self.rng.randint(100, 140))
            self.work(1 if dense else 2)

    def into_the_engine(self) -> None:
        """The engine's configuration and the base mod are read from end to end."""
        for path in self.foreign:
            for first in (1, 10, 19)[: self.rng.randint(1, 3)]:
                self.read(path, first, first + 8)
        self.grep(self.foreign[0], "lamp")
        self.grep(self.foreign[2], "boat")

    def neighbours_textures(self) -> None:
        """Textures of other quests are baked and replaced."""
        for path in self.siblings:
            image = f"{self.root}/assets/{path.rpartition('/')[2][:-4]}/crate_0{self.rng.randint(1, 5)}.png"
            text = f"$ exit 0\n{image} -> .dds 128x128 bc7 ({self.rng.randint(9, 80)} ms)"
            arguments = {"script": f"texbake {image} --fmt bc7 --force"}
            self.call(
                "shell", arguments, text, facts=(f"baked {image}",), uses=("texbake", "disk"), place="out", change=True
            )
            self.work(self.rng.choice((0, 1, 1, 2)))

    # Look-alikes.

    def index_is_locked(self) -> None:
        """Somebody holds the asset index; longer waits, then it goes."""
        gap = 4.0
        for _ in range(self.rng.randint(3, 4)):
            self.call(
                "shell", {"script": "assetidx rebuild"}, "$ exit 75\nindex is locked", ok=False, cause="index", gap=gap
            )
            gap *= self.rng.uniform(1.7, 2.3)
        self.call(
            "shell", {"script": "assetidx rebuild"}, "$ exit 0\n1822 assets", facts=("index",), uses=("index",), gap=gap
        )

    def bake_with_progress(self) -> None:
        """The farm counts tiles."""
        done, job = 0, f"bk{self.rng.randint(100, 999)}"
        while done < 240:
            done = min(240, done + self.rng.randint(18, 70))
            arguments = {"script": f"farm stat {job}"}
            self.call(
                "shell",
                arguments,
                f"$ exit 0\n{job}: RUN {done}/240 tiles",
                facts=(f"{job} {done}",),
                watch=job,
                gap=20,
            )

    def words_without_hits(self) -> None:
        """Different words, none of them there."""
        for word in self.some(["deprecated", "loadstring", "goto", "setfenv", "os.execute", "math.random"], 5):
            self.grep(self.main, word)

    def three_causes(self) -> None:
        """Each failure has another cause."""
        arguments = {"script": "packer sign"}
        self.call("shell", arguments, "$ exit 2\nmissing argument: KEYFILE", ok=False, cause="argument")
        arguments = {"script": "packer sign key.pem"}
        self.call("shell", arguments, "$ exit 1\nkey.pem: mode 0644 is too open", ok=False, cause="mode")
        self.call("shell", {"script": "chmod 600 key.pm"}, "$ exit 1\nno such file: key.pm", ok=False, cause="typo")
        arguments = {"script": "chmod 600 key.pem && packer sign key.pem"}
        self.call("shell", arguments, f"$ exit 0\nsigned {self.hexid(16)}", facts=("signed",))

    def status_thrice(self) -> None:
        """A short repetition."""
        for _ in range(3):
            self.call("shell", {"script": "git status -s | wc -l"}, f"$ exit 0\n{4}", facts=("status",))
        self.work(2)

    def all_of_the_library(self) -> None:
        """What the quest requires is read whole."""
        for first in (1, 6, 11, 16, 21, 26):
            self.read(self.lib, first, first + 4)

    def tour_of_the_tree(self) -> None:
        """How do the other quests do it."""
        for path in self.some([*self.siblings, *self.foreign], self.rng.randint(5, 8)):
            self.read(path, 1, self.rng.randint(12, 20))

    def episodes(self) -> dict[str, list[Callable[[], None]]]:
        return {
            "stalled": [
                self.same_lines_in_other_ranges,
                self.value_to_and_fro,
                self.a_texture_nobody_has,
                self.bake_farm_stands,
            ],
            "cascading": [self.texbake_without_library, self.disk_is_full, self.spaces_for_tabs],
            "drifting": [self.other_quests_mended, self.into_the_engine, self.neighbours_textures],
            "alike": [
                self.index_is_locked,
                self.bake_with_progress,
                self.words_without_hits,
                self.three_causes,
                self.status_thrice,
                self.all_of_the_library,
                self.tabs_found_out,
                self.two_sisters,
            ],
            "opening": [self.tour_of_the_tree],
        }


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Runs of an agent that mends a mod."""
    return produce(rng, KIND, Mod)
