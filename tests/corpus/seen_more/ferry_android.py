"""An Android app, through an IDE's tools that speak of symbols rather than paths."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from tests.corpus.seen_more.trees import TreeScene
from tests.corpus.seen_more.world import Args, Place, Shape, js, stories
from tests.corpus.trace import Trace

KIND = "ferry_android"


class App(TreeScene):
    """Classes of an app for ferry passengers."""

    parts: ClassVar[dict[str, list[str]]] = {
        "login": ["LoginViewModel", "LoginScreen", "PinStore", "OtpApi"],
        "timetable": ["TimetableScreen", "DepartureRow", "TimetableRepo", "TideCalc"],
        "boarding": ["PassScreen", "QrPainter", "BoardingRepo", "GateService"],
        "push": ["PushReceiver", "ChannelSetup", "DelayFormatter"],
        "settings": ["SettingsScreen", "ThemePrefs", "LanguagePicker", "AboutScreen"],
    }
    shared: ClassVar[dict[str, list[str]]] = {"core": ["HttpClient", "Clock", "Result", "Prefs", "Analytics"]}
    strays = (
        "fastlane.Fastfile",
        "docs.Releases",
        "store.Listing",
        "scripts.Screenshots",
        "wiki.Home",
        "docs.Onboarding",
    )
    words = ("departure", "token", "pier", "locale", "badge", "retry", "offline", "window", "theme", "delay", "cursor")

    def path(self, part: str, stem: str) -> str:
        """Fully qualified names."""
        return f"ferry.{part}.{stem}"

    def test_of(self, path: str) -> str:
        """The test class of a class."""
        return "" if path.endswith("Test") else f"{path}Test"

    def link_line(self, path: str, link: str) -> str:
        """An import."""
        return f"import {link}"

    def body(self, path: str) -> list[str]:
        """Members."""
        rng = self.rng
        lines = [f"class {path.rsplit('.', 1)[-1]} {{"]
        for _ in range(rng.randint(3, 8)):
            word = rng.choice(self.words)
            lines += [
                f"    fun {rng.choice(['load', 'show', 'map'])}{word.title()}(): Int = {word} + {rng.randint(1, 99)}"
            ]
        return lines

    def new_line(self, path: str, word: str) -> str:
        """A member."""
        return f"    val {word}{self.number} = {self.rng.choice(self.words)}.take({self.rng.randint(1, 99)})"

    def say_task(self) -> str:
        """The task in its form."""
        rng, name = self.rng, self.target.rsplit(".", 1)[-1]
        return {
            "path": f"{self.target} leaks the activity. Fix the leak, keep the API.",
            "file": f"{name} should survive process death (SavedStateHandle).",
            "glob": f"ferry.{self.part}.*: replace LiveData by StateFlow",
            "folder": f"Write the missing KDoc in package ferry.{self.part}.",
            "words": rng.choice(
                [
                    f"When the phone is offline the {self.part} part shows yesterday's data without saying so.",
                    f"Accessibility of {self.part}: content descriptions, touch targets, contrast.",
                    f"Story 4{self.number}: as a commuter I want a shorter {self.part}. See the mock-ups.",
                ]
            ),
            "red": f"{name}Test is flaky/red since Tuesday",
            "line": f"Crash: java.lang.IllegalStateException at {self.target}({name}.kt:{rng.randint(9, 40)})",
            "everywhere": "Package `ferry` becomes `seaways`, move all classes.",
            "nothing": "Reduce the app's start time.",
        }[self.form]

    def do_read(self, path: str, fresh: bool | None, place: Place) -> None:
        """Look at a symbol."""
        lines = self.text[path]
        if fresh is not False:
            self.run.call("ide_symbol_source", {"fqName": path}, "\n".join(lines), fresh=True, place=place)
            return
        ways: list[tuple[str, Args, str]] = [
            (
                "ide_symbol_source",
                {"fqName": path, "withLineNumbers": True},
                "\n".join(f"{n} {x}" for n, x in enumerate(lines)),
            ),
            ("ide_structure", {"fqName": path}, "\n".join(line.strip().split("=")[0] for line in lines)),
            ("ide_quick_doc", {"symbol": path}, lines[-1].strip()),
            ("ide_open_in_editor", {"class": path.rsplit(".", 1)[-1]}, "\n".join(lines[:9])),
        ]
        tool, args, said = self.rng.choice(ways)
        self.run.call(tool, args, said, fresh=False, place=place)

    def do_edit(self, path: str, before: str, after: str, fresh: bool, place: Place) -> None:
        """Change a member."""
        if not before:
            file = path.replace(".", "/")
            self.run.call(
                "ide_create_file", {"file": file, "text": after}, "created", fresh=fresh, change=True, place=place
            )
            return
        args: Args = {"fqName": path, "member": before.strip()[:40], "newText": after}
        said = self.rng.choice(["reformatted, 0 problems", js(changed=1), f"ok ({self.run.millis()} ms)"])
        self.run.call(
            self.rng.choice(["ide_replace_member", "ide_edit"]), args, said, fresh=fresh, change=True, place=place
        )

    def do_seek(self, query: str, hits: list[str], fresh: bool, place: Place) -> None:
        """Find usages or text."""
        args: Args = {"text": query, "scope": f"package:ferry.{self.part}", "regex": True}
        self.run.call("ide_find_in_files", args, "\n".join(hits) or "no occurrences", fresh=fresh, place=place)

    def do_check(self, red: list[str], fresh: bool, place: Place) -> None:
        """Run the tests."""
        where = self.named_by_check or f"{self.target}Test"
        cases = "".join(f'<testcase name="{word}"><failure>at {where}</failure></testcase>' for word in red)
        said = f'<testsuite tests="22" failures="{len(red)}" time="{self.run.millis() / 1000}">{cases}</testsuite>'
        args: Args = {"configuration": f"{self.part} unit tests"}
        self.run.call("ide_run", args, said, fresh=fresh, place=place, clears="sdk")

    def cascades(self) -> Sequence[Shape]:
        """Ways to fall into a cascade."""
        rng = self.rng

        def the_sdk_licence_is_not_accepted() -> None:
            for task in rng.sample(
                ["assembleDebug", "lint", "testDebug", "bundleRelease", "dependencies", "kspDebug"], rng.randint(4, 6)
            ):
                said = rng.choice(
                    [
                        "FAILURE: Build failed with an exception.\n> platforms;android-35: licences not accepted",
                        f"> Task :app:{task} FAILED\nLicenceNotAcceptedException",
                        f"Gradle sync failed ({self.run.millis()} ms): accept the SDK licence agreements",
                    ]
                )
                args: Args = {"task": task, "offline": rng.random() < 0.3}
                self.run.call("gradle", args, said, ok=rng.random() < 0.5, cause="sdk", place=self.here)
                self.quiet()

        def the_emulator_is_offline() -> None:
            for _ in range(rng.randint(4, 8)):
                self.number += 1
                tool, args = rng.choice(
                    [
                        ("adb_shell", f"input tap {self.number} 300"),
                        ("adb_install", f"app-{self.number}.apk"),
                        ("ui_dump", f"w{self.number}"),
                    ]
                )
                said = rng.choice(
                    ["error: device offline", "adb: no devices/emulators found", "Timeout waiting for emulator-5554"]
                )
                self.run.call(tool, args, said, ok=rng.random() < 0.5, cause="device")
                if rng.random() < 0.8:
                    self.step()

        return [the_sdk_licence_is_not_accepted, the_emulator_is_offline]

    def alikes(self) -> Sequence[Shape]:
        """Healthy things that look like trouble."""

        def indexing() -> None:
            for percent in range(8, 100, self.rng.choice([13, 19, 24])):
                self.run.call(
                    "ide_status", {}, f"indexing {percent}%", watch="index", moved=True, gap=self.rng.uniform(5, 30)
                )

        def the_device_thrice() -> None:
            for _ in range(3):
                self.run.call("adb_devices", {}, "emulator-5554 device")
            self.work(5)

        def fails_thrice_and_boots() -> None:
            for number in range(self.rng.randint(2, 3)):
                self.run.call(
                    "adb_shell", f"am start -n ferry/.Main{number}", "error: device offline", ok=False, cause="boot"
                )
            self.run.call("emulator_start", {"avd": "pixel"}, "booted", change=True)
            self.run.call("adb_shell", "am start -n ferry/.Main", "Starting: Intent", clears="boot")
            self.work(3)

        return [*super().alikes(), indexing, the_device_thrice, fails_thrice_and_boots]


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return stories(KIND, App, rng)
