"""Firmware in C, by an agent that has nothing but a shell."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from tests.corpus.seen_more.trees import TreeScene
from tests.corpus.seen_more.world import Place, Shape, stories
from tests.corpus.trace import Trace

KIND = "pump_firmware"


class Firmware(TreeScene):
    """Drivers and tasks of a pump's firmware; headers are the links."""

    parts: ClassVar[dict[str, list[str]]] = {
        "drivers/adc": ["adc", "adc_dma", "adc_calib", "adc_filter"],
        "drivers/can": ["can_tx", "can_rx", "can_filter", "can_err", "can_ids"],
        "control": ["pid", "ramp", "limits", "soft_start"],
        "ui": ["buttons", "leds", "menu", "buzzer"],
        "boot": ["crc", "update", "vectors", "slots"],
    }
    shared: ClassVar[dict[str, list[str]]] = {
        "lib": ["ring", "fixmath", "assert_", "ticks"],
        "hal": ["gpio", "clock", "irq"],
    }
    strays = (
        "doc/README",
        "tools/flash.sh",
        "doc/pinout.md",
        "tools/plot.py",
        ".gitattributes",
        "doc/history.txt",
    )
    words = (
        "gain",
        "offset",
        "timeout",
        "edge",
        "mask",
        "prescaler",
        "sample",
        "overrun",
        "window",
        "duty",
        "retry",
        "phase",
    )

    def path(self, part: str, stem: str) -> str:
        """C files by folder."""
        return f"src/{part}/{stem}.c"

    def test_of(self, path: str) -> str:
        """Tests lie in one folder of their own."""
        return "test/test_" + path.rsplit("/", 1)[-1] if path.startswith("src/") else ""

    def link_line(self, path: str, link: str) -> str:
        """An include."""
        return f'#include "{link.removeprefix("src/").replace(".c", ".h")}"'

    def body(self, path: str) -> list[str]:
        """Small functions."""
        rng = self.rng
        lines: list[str] = []
        for _ in range(rng.randint(3, 9)):
            word = rng.choice(self.words)
            lines += [
                f"static uint16_t {word}_{rng.randint(0, 99)}(uint16_t {word}) {{",
                f"    return {word} << {rng.randint(1, 9)};",
                "}",
            ]
        return lines

    def new_line(self, path: str, word: str) -> str:
        """A statement."""
        return f"    {word}_q += {self.number} & 0x{self.rng.randint(16, 255):X};"

    def say_task(self) -> str:
        """The task in its form."""
        rng, name = self.rng, self.target.rsplit("/", 1)[-1]
        part = self.part.rsplit("/", 1)[-1]
        return {
            "path": f"{self.target}: the interrupt handler takes too long, make it shorter.",
            "file": f"There is an overflow in {name} when the pump runs for 49 days. Fix.",
            "glob": f"src/{self.part}/*.c: use fixed width types",
            "folder": f"Make src/{self.part}/ free of warnings with -Wall -Wextra.",
            "words": f"The {part} code behaves badly after a brown-out. Find out what it does then and correct it.",
            "red": f"`make test-{part}` has been failing since the merge.",
            "line": f"src/{self.part}/{name}:{rng.randint(10, 40)}: comparison of integers of different signs",
            "everywhere": "Rename all variables *_q to *_fix in the whole tree.",
            "nothing": "Flash usage is at 97 %. Win some bytes back.",
        }[self.form]

    def sh(self, line: str, out: str, code: int = 0, *, ok: bool | None = None, **truth: object) -> None:
        """Run a line on the shell."""
        good = code == 0 if ok is None else ok
        self.run.call("sh", line, f"{out}\n$? = {code}" if code else out, ok=good, **truth)  # type: ignore[arg-type]

    def do_read(self, path: str, fresh: bool | None, place: Place) -> None:
        """Read by cat, sed, head or less."""
        lines, rng = self.text[path], self.rng
        end = len(lines) if fresh is None else rng.randint(max(1, len(lines) // 2), len(lines) + 9)
        ways = [f"cat {path}", f"cat -n {path}"] if fresh is None else []
        ways += [
            f"sed -n '1,{end}p' {path}",
            f"head -n {end} {path}",
            f"cd {path.rsplit('/', 1)[0]} && head -{end} {path.rsplit('/', 1)[-1]}",
        ]
        if fresh is False:
            ways += [f"grep -n '' {path} | head -{end}", f"awk 'NR<={end}' {path}"]
        way = rng.choice(ways)
        shown = (
            [f"{n}:{line}" for n, line in enumerate(lines[:end], 1)]
            if "grep" in way or "-n " in way[:7]
            else lines[:end]
        )
        self.sh(way, "\n".join(shown), fresh=fresh is None or fresh, place=place)

    def do_edit(self, path: str, before: str, after: str, fresh: bool, place: Place) -> None:
        """Change by sed, by a patch or by a here-document."""
        if not before:
            self.sh(f"cat > {path} <<'E'\n{after}\nE", "", fresh=fresh, change=True, place=place)
            return
        a, b = before.strip()[:40].replace("/", "."), after.strip().replace("/", ".")
        line = self.rng.choice(
            [
                f"sed -i 's/{a}/{b}/' {path}",
                f"perl -pi -e 's#\\Q{a}\\E#{b}#' {path}",
                f"patch {path} <<'E'\n-{before}\n+{after}\nE",
                f"python3 - <<'E'\np='{path}'\ns=open(p).read().replace('''{a}''','''{b}''')\nopen(p,'w').write(s)\nE",
            ]
        )
        self.sh(line, "", fresh=fresh, change=True, place=place, clears="write")

    def do_seek(self, query: str, hits: list[str], fresh: bool, place: Place) -> None:
        """Search by grep."""
        where = f"src/{self.part}" if self.form != "everywhere" else "src"
        line = self.rng.choice(
            [f"grep -rn '{query}' {where}", f"rg -n '{query}' {where}/", f"git grep -n '{query}' -- {where}"]
        )
        self.sh(line, "\n".join(hits), 0 if hits else 1, ok=True, fresh=fresh, place=place)

    def do_check(self, red: list[str], fresh: bool, place: Place) -> None:
        """Run make."""
        part = self.part.rsplit("/", 1)[-1]
        lines = [f"CC build/{self.run.hexid(4)}.o", f"running test_{part} (seed {self.rng.randint(1, 9999)})"]
        where = self.named_by_check or f"test/test_{part}.c"
        lines += [f"{where}:{20 + len(word)}: FAIL {word}: expected 0x{len(word):X}" for word in red]
        lines.append(f"{len(red)} failures of 18 in {self.run.millis()} ms")
        line = self.rng.choice([f"make test-{part}", f"make -s test-{part} 2>&1 | tail -20", f"make test-{part} V=1"])
        self.sh(line, "\n".join(lines), 2 if red else 0, ok=True, fresh=fresh, place=place, clears="compiler")

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng = self.rng

        def no_cross_compiler() -> None:
            for _ in range(rng.randint(4, 8)):
                target = rng.choice(
                    ["all", "size", f"test-{self.part}", "build/app.elf", "flash", "map", "-j4", "V=1", "release"]
                )
                out = rng.choice(
                    [
                        f"make: arm-none-eabi-gcc: No such file or directory\nmake: *** [{target}] Error 127",
                        "/bin/sh: 1: arm-none-eabi-gcc: not found",
                        "CMake Error: The C compiler identification is unknown (arm-none-eabi-gcc)",
                    ]
                )
                self.sh(
                    f"{rng.choice(['make', 'make -C .', 'cmake --build build --target'])} {target}",
                    out,
                    2,
                    cause="compiler",
                )
                self.quiet()

        def the_probe_does_not_answer() -> None:
            for _ in range(rng.randint(4, 7)):
                self.number += 1
                out = rng.choice(
                    [
                        "Error: init mode failed (unable to connect to the target)\nin procedure 'program'",
                        "openocd: LIBUSB_ERROR_TIMEOUT",
                        "st-info: Found 0 stlink programmers",
                        "Warn : target voltage 0.00 V; giving up",
                    ]
                )
                line = rng.choice(
                    [
                        f"openocd -f board.cfg -c 'reset; sleep {self.number}'",
                        f"st-flash --freq={self.number}k reset",
                        "st-info --probe",
                    ]
                )
                self.sh(line, out, 1, ok=rng.random() < 0.6, cause="probe")
                if rng.random() < 0.8:
                    self.step()

        def the_tree_cannot_be_written() -> None:
            for _ in range(rng.randint(4, 6)):
                path = rng.choice(self.core)
                self.number += 1
                line = rng.choice(
                    [
                        f"sed -i 's/{self.number}/0/' {path}",
                        f"cp {path} {path}.{self.number}",
                        f"echo {self.number} >> {path}",
                    ]
                )
                out = rng.choice(
                    [f"sh: {path}: Read-only file system", f"couldn't open temporary file: EROFS ({path})"]
                )
                self.sh(line, out, 4, ok=rng.random() < 0.5, cause="write", place=self.place(path))
                self.quiet()

        return [no_cross_compiler, the_probe_does_not_answer, the_tree_cannot_be_written]

    def drifts(self) -> Sequence[Shape]:
        """Ways to leave the task that only a shell has."""
        shapes = super().drifts()
        if not shapes:
            return ()
        rng = self.rng
        part = rng.choice([part for part in self.parts if part != self.part])
        names = [path.rsplit("/", 1)[-1] for path in self.paths[part] if path in self.outside]

        def goes_to_another_folder_and_stays() -> None:
            self.sh(f"cd src/{part}", "", place="out")
            for _ in range(rng.randint(5, 9)):
                name, word = rng.choice(names), rng.choice(self.words)
                self.number += 1
                if rng.random() < 0.5:
                    self.sh(f"sed -i 's/{word}/{word}_{self.number}/' {name}", "", place="out", change=True)
                else:
                    shown = f"{self.number}:    return {word} << {rng.randint(1, 9)};"
                    self.sh(f"grep -n '{word}.*{self.number % 10}' {name}", shown, place="out")
            self.sh("cd -", "/w/pump")

        def sweeps_over_foreign_folders() -> None:
            for other in [other for other in self.parts if other != self.part]:
                self.number += 1
                line = rng.choice(
                    [
                        f"sed -i 's/int /int32_t /;{self.number}q' src/{other}/*.c",
                        f"clang-format -i --style=file src/{other}/*.c # {self.number}",
                        f"for f in src/{other}/*.c; do unifdef -m -DREV={self.number} $f; done",
                    ]
                )
                self.sh(line, "", place="out", change=True)
                if rng.random() < 0.4:
                    self.quiet()

        return [*shapes, goes_to_another_folder_and_stays, sweeps_over_foreign_folders]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""

        def git_status_three_times() -> None:
            for _ in range(3):
                self.sh("git rev-parse --abbrev-ref HEAD", "work")
            self.work(4)

        def three_failures_then_the_compiler_is_installed() -> None:
            for target in self.rng.sample(["all", "size", "map", "release"], self.rng.randint(2, 3)):
                self.sh(f"make {target}", "make: arm-none-eabi-gcc: No such file or directory", 2, cause="compiler")
            self.sh("apt-get install -y gcc-arm-none-eabi >/dev/null && echo installed", "installed", change=True)
            self.red = self.rng.sample(self.words, 3)
            self.check()

        return [*super().alikes(), git_status_three_times, three_failures_then_the_compiler_is_installed]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, Firmware, rng)
