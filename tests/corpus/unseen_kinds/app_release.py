"""The release of a mobile app: versions, release notes in many languages, signing, CI, two stores."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Iterator

from tests.corpus.trace import Trace
from tests.corpus.unseen_kinds._world2 import Place, Scene, Step, produce

KIND = "release of a mobile app"
NOTES = {
    "de-DE": ("Karten laden schneller.", "Fehler beim Teilen behoben.", "Neue Symbole."),
    "fr-FR": ("Chargement plus rapide des cartes.", "Le partage fonctionne à nouveau.", "Nouvelles icônes."),
    "pt-BR": ("Mapas carregam mais rápido.", "Corrigido o compartilhamento.", "Novos ícones."),
    "ja-JP": ("地図の表示が速くなりました。", "共有の不具合を修正しました。", "新しいアイコン。"),
    "pl-PL": ("Mapy wczytują się szybciej.", "Naprawiono udostępnianie.", "Nowe ikony."),
    "en-GB": ("Maps load faster.", "Sharing works again.", "New icons."),
}


class Release(Scene):
    """One app among several in a repository, with listings in two stores."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.app, self.other = rng.sample(["fernlicht", "kelpnote", "tidebook", "mosswalk", "drift-radio"], 2)
        self.lite = f"{self.app}-lite"
        minor = rng.randint(3, 19)
        self.version = f"4.{minor}.0"
        self.old = [f"4.{minor - 1}.{patch}" for patch in range(4)] + [f"4.{minor - 2}.{patch}" for patch in range(3)]
        self.code = 4000 + minor * 10
        self.edits: dict[str, list[str]] = {}
        self.modules = [":core", ":share", ":maps", ":settings", ":sync", ":onboarding", ":search", ":widget"]
        self.task = rng.choice(
            [
                (
                    "Bring {a} {v} out: version and notes in apps/{a}, tests green, build signed, in both stores "
                    "(track beta), all languages filled in."
                ),
                (
                    "Release {v} of {a} please. Bump it, translate the notes for the listing, run the tests, and "
                    "hand the beta in. Only this app and this version."
                ),
                "We ship {a} {v} today. Everything under apps/{a} and its store entry for {v} is yours.",
            ]
        ).format(a=self.app, v=self.version)

    def where(self, app: str, version: str | None = None) -> Place:
        """This app in this version, and the kit it imports."""
        return "in" if app in (self.app, "ui-kit") and version in (None, self.version) else "out"

    # Looks and changes.

    def api(self, method: str, path: str, body: object, *facts: str, app: str, version: str | None = None) -> None:
        """A call of a store's interface that succeeds."""
        arguments = {"method": method, "url": f"https://{self.pick(['market', 'dock'])}.store.test/v2{path}"}
        if method != "GET":
            arguments["body"] = json.dumps(body, ensure_ascii=False)
        text = json.dumps({"code": 200, "data": body, "trace": self.hexid(12)}, ensure_ascii=False)
        place = self.where(app, version)
        self.call("http", arguments, text, facts=facts, uses=("token",), place=place, change=method != "GET")

    def describe(self, app: str, version: str, language: str) -> None:
        """Enter the notes of a version in one language."""
        note = self.pick(NOTES[language])
        body = {"lang": language, "whatsNew": note, "chars": len(note)}
        path = f"/apps/{app}/releases/{version}/texts/{language}"
        self.api("PUT", path, body, f"text {app} {version} {language} {note}", app=app, version=version)

    def shots(self, app: str, language: str, number: int) -> None:
        """Upload a screenshot."""
        body = {"file": f"{number:02}.png", "px": "1242x2688", "bytes": self.rng.randint(2 * 10**5, 9 * 10**5)}
        path = f"/apps/{app}/releases/{self.version}/shots/{language}/{number:02}"
        self.api("POST", path, body, f"shot {app} {language} {number}", app=app)

    def source(self, app: str, name: str) -> None:
        """Read a source file."""
        rng = random.Random(f"{app}{name}")
        lines = [
            f"    {rng.choice(['val', 'var'])} {rng.choice(['lat', 'zoom', 'token', 'page', 'tint'])}{n} = "
            f"{rng.choice(['Kit', 'Store', 'State'])}.{rng.choice(['load', 'of', 'map'])}({rng.randint(0, 99)})"
            for n in range(rng.randint(7, 22))
        ]
        lines += self.edits.get(f"{app}/{name}", [])
        root = "libs" if app == "ui-kit" else "apps"
        self.call(
            "repo_read",
            {"uri": f"repo://{root}/{app}/src/{name}.kt"},
            f"import libs.uikit.Kit\nclass {name} {{\n" + "\n".join(lines) + "\n}",
            facts=[f"source {app} {name} {line}" for line in lines],
            place=self.where(app),
            far=app == "ui-kit",
        )

    def rewrite(self, app: str, name: str) -> None:
        """Add a line to a source file."""
        line = f"    Kit.trace({self.rng.randint(1, 9)}, {self.hexid(3)!r})"
        self.edits.setdefault(f"{app}/{name}", []).append(line)
        arguments = {"uri": f"repo://apps/{app}/src/{name}.kt", "ops": [{"before": "}", "put": line}]}
        text = f"1+ 0- rev {self.hexid(7)}"
        facts = (f"source {app} {name} {line}",)
        self.call("repo_write", arguments, text, facts=facts, place=self.where(app), change=True)

    def test(self, module: str, red: int = 0) -> None:
        """Run the tests of a module; red ones are named."""
        names = [f"{module[1:].title()}Test.case{self.rng.randint(1, 80)}" for _ in range(red)]
        total = random.Random(module).randint(20, 140)
        text = f"> Task {module}:test ({self.rng.uniform(3, 50):.1f} s)\n" + "".join(f"{one} FAILED\n" for one in names)
        text += f"{total} tests, {red} failed"
        facts = (f"tests {module} {' '.join(names)}",)
        self.call(
            "gradle",
            {"args": f"{module}:test", "app": self.app},
            text,
            facts=facts,
            ok=not red,
            place="in",
            uses=("sdk",),
        )

    def bump(self) -> None:
        """The version file."""
        path = f"repo://apps/{self.app}/version.properties"
        text = f"version={self.old[0]}\ncode={self.code - 4}\nsigning=ci/signing.yml#{self.app}"
        self.call("repo_read", {"uri": path}, text, facts=("version file",), place="in")
        arguments = {
            "uri": path,
            "ops": [{"replace": "version", "put": self.version}, {"replace": "code", "put": self.code}],
        }
        text = f"2+ 2- rev {self.hexid(7)}"
        self.call("repo_write", arguments, text, facts=(f"code {self.code}",), place="in", change=True)

    def pipeline(self) -> None:
        """The CI goes through its stages."""
        number = self.rng.randint(9000, 9999)
        for stage in ("queued", "checkout", "compile 1/3", "compile 2/3", "compile 3/3", "lint", "bundle", "passed"):
            text = f"#{number} {self.app}@{self.version}\nStufe: {stage}\nStand: {self.stamp('clock')}"
            gap = self.rng.uniform(11, 45)
            self.call(
                "ci_job",
                {"number": number},
                text,
                facts=(f"ci {number} {stage}",),
                watch=f"ci {number}",
                gap=gap,
                place="in",
            )

    def sign(self, kind: str) -> None:
        """Sign an artefact."""
        text = f"signed {self.app}-{self.version}.{kind}\nsha256 {self.hexid(64)}\nvalid until 2032-01-31"
        self.call(
            "lane", {"lane": "sign", "artifact": kind}, text, facts=(f"signed {kind}",), uses=("profile",), place="in"
        )

    def steps(self) -> list[Step]:
        part = functools.partial
        steps: list[Step] = [("", self.bump)]
        rest: list[Step] = [("sdk", part(self.test, module)) for module in self.some(self.modules, 6)]
        names = ["MapView", "ShareSheet", "SyncJob", "Settings", "Search", "Widget"]
        rest += [("", part(self.source, self.app, name)) for name in names]
        rest += [("", part(self.source, "ui-kit", name)) for name in ("Button", "Palette")]
        rest += [("token", part(self.describe, self.app, self.version, language)) for language in NOTES]
        languages = self.some(list(NOTES), 2)
        rest += [("token", part(self.shots, self.app, language, n)) for language in languages for n in range(1, 4)]
        rest += [("", part(self.rewrite, self.app, name)) for name in self.some(names, 3)]
        return [*steps, *self.some(rest, len(rest)), ("", self.pipeline), ("profile", part(self.sign, "aab"))]

    # Troubles.

    def review_that_does_not_begin(self) -> None:
        """The store says `waiting for review` for more than a quarter of an hour, under several addresses."""
        queue = self.rng.randint(20, 400)
        for number in range(self.rng.randint(17, 24)):
            path = ("", "?fields=state", "/review", "/timeline?last=1")[number % 4]
            arguments = {
                "method": "GET",
                "url": f"https://market.store.test/v2/apps/{self.app}/releases/{self.version}{path}",
            }
            state = {"state": "WAITING_FOR_REVIEW", "ahead": queue}
            body: object = [state] if "timeline" in path else {"review": state} if path == "/review" else state
            text = json.dumps({"code": 200, "data": body, "trace": self.hexid(12), "at": self.stamp()})
            gap = self.rng.uniform(65, 110)
            self.call(
                "http", arguments, text, facts=("review waits",), watch="review", gap=gap, uses=("token",), place="in"
            )

    def one_crash_in_many_windows(self) -> None:
        """The same trace of the beta's only crash is fetched in all forms."""
        frame, number = f"SyncJob.kt:{self.rng.randint(20, 300)}", self.rng.randint(1000, 9999)
        line = f"NullPointer at SyncJob.pull({frame})"
        for turn in range(self.rng.randint(9, 15)):
            way = self.rng.randrange(5)
            if way == 0:
                arguments = {
                    "method": "GET",
                    "url": f"https://dock.store.test/v2/apps/{self.app}/crashes?limit={turn + 1}",
                }
                body = [{"id": number, "top": frame, "why": "NullPointer", "in": "SyncJob.pull", "users": 3}]
                text = json.dumps({"code": 200, "data": body, "trace": self.hexid(12)})
                self.call("http", arguments, text, facts=("crash",), uses=("token",), place="in")
            elif way == 1:
                arguments = {"lane": "symbolicate", "crash": str(number)}
                self.call(
                    "lane", arguments, f"[{self.stamp('clock')}] #0 {line}; 3 users", facts=("crash",), place="in"
                )
            elif way == 2:
                text = f"1 group, 3 users\n{number}: {line}"
                self.call("crash_groups", {"app": self.app, "days": turn % 7 + 1}, text, facts=("crash",), place="in")
            elif way == 3:
                text = f"crash_{number}.txt:1:{line} (3 users)"
                self.call(
                    "repo_find", {"text": self.pick(["NullPointer", "SyncJob.pull", frame])}, text, facts=("crash",)
                )
            else:
                text = f"Absturz {number} (3 Nutzer): {line}"
                self.call("crash_show", {"id": number, "lang": "de"}, text, facts=("crash",), place="in")
            if turn == 5 and self.rng.random() < 0.5:
                self.source(self.app, "PullLock")

    def the_same_picture_again(self) -> None:
        """A screenshot is handed in again under other spellings of its path; the store already has it."""
        language, number = self.pick(list(NOTES)), self.rng.randint(5, 9)
        sha = self.hexid(10)
        for _ in range(self.rng.randint(9, 14)):
            name = self.pick(
                [f"{number:02}.png", f"./{number:02}.png", f"shots/../{number:02}.png", f"{language}/{number:02}.png"]
            )
            tool = self.pick(["upload_shot", "upload_shot", "listing_media"])
            arguments = (
                {"lang": language, "file": name}
                if tool == "upload_shot"
                else {"op": "add", "src": name, "set": language}
            )
            text = self.pick(
                [
                    f"present: {number:02}.png ({sha}), nothing to do",
                    json.dumps({"stored": False, "reason": "identical", "sha": sha, "trace": self.hexid()}),
                    f"skip {number:02}.png, {sha} is already in set {language}",
                ]
            )
            self.call(tool, arguments, text, facts=(f"present {language} {number}",), place="in", change=False)

    def code_up_and_down(self) -> None:
        """The build number moves between two values, and the validation says the same."""
        codes = (self.code + 1, self.code)
        self.seen.add(f"code {self.code}")
        for number in range(self.rng.randint(7, 9)):
            arguments = {
                "uri": f"repo://apps/{self.app}/version.properties",
                "ops": [{"replace": "code", "put": codes[number % 2]}],
            }
            text = f"1+ 1- rev {self.hexid(7)}"
            self.call("repo_write", arguments, text, facts=(f"code {codes[number % 2]}",), place="in", change=True)
            text = f"[{self.stamp('clock')}] validate: 1 Beanstandung\n  - Datenschutzangaben fehlen (privacy manifest)"
            arguments = {
                "lane": self.pick(["validate", "precheck", "validate_beta"]),
                "level": self.pick(["all", "store"]),
            }
            self.call("lane", arguments, text, facts=self.again("privacy"), place="in")

    def profile_has_expired(self) -> None:
        """Signing fails of the profile's date, whatever is signed and however."""
        self.blocked.add("profile")
        dense = self.rng.random() < 0.3
        for number in range(self.rng.randint(7, 11) if dense else self.rng.randint(4, 8)):
            lane = "sign" if dense else self.pick(["sign", "sign_adhoc", "archive", "export_ipa"])
            arguments = {"lane": lane, "artifact": "ipa"} | (
                {} if dense else {"retry": number, "clean": number % 2 == 0}
            )
            text = f"▸ {lane} {self.app}\nerror: profile expired 2031-02-28 (uuid {self.code}-ab)\n** FAILED ** code 65"
            facts = () if dense else (f"{lane} {number}",)
            self.call("lane", arguments, text, ok=self.rng.random() < 0.4, cause="profile", place="in", facts=facts)
            if not dense:
                self.work(self.rng.choice((0, 1, 1, 2)))
        if self.rng.random() < 0.4:
            self.blocked.discard("profile")
            self.call(
                "lane", {"lane": "renew_profiles"}, "1 profile renewed, valid until 2032-03-01", facts=("renewed",)
            )
            self.sign("ipa")

    def token_is_out_of_date(self) -> None:
        """Every store call is answered 401."""
        self.blocked.add("token")
        for _ in range(self.rng.randint(4, 8)):
            language = self.pick(list(NOTES))
            method, path = self.pick(
                [
                    ("PUT", f"texts/{language}"),
                    ("GET", "review"),
                    ("POST", f"shots/{language}/01"),
                    ("PATCH", "rollout"),
                ]
            )
            arguments = {
                "method": method,
                "url": f"https://market.store.test/v2/apps/{self.app}/releases/{self.version}/{path}",
            }
            text = json.dumps(
                {"code": 401, "error": {"id": "TOKEN_EXPIRED", "detail": "exp 1930000000"}, "trace": self.hexid(12)}
            )
            self.call(
                "http",
                arguments,
                text,
                ok=self.rng.random() < 0.6,
                cause="token",
                place="in",
                facts=(f"{method} {path}",),
            )
            self.work(self.rng.choice((0, 1, 1, 2, 3)))

    def part_of_the_kit_missing(self) -> None:
        """A platform package is not installed; every variant fails of it."""
        self.blocked.add("sdk")
        for _ in range(self.rng.randint(4, 8)):
            module = self.pick(self.modules)
            task = self.pick(["assembleBeta", "bundleRelease", "lintBeta", "test", "testBetaUnit"])
            text = (
                f"> Configure {module}\npackage 'platforms;api-41' not found\nBUILD FAILED in {self.rng.randint(1, 9)}s"
            )
            ok = self.rng.random() < 0.3
            arguments = {"args": f"{module}:{task}", "app": self.app}
            self.call("gradle", arguments, text, ok=ok, cause="sdk", place="in", facts=(f"{module}{task}",))
            self.work(self.rng.choice((0, 1, 1, 2)))

    def the_small_sister_too(self) -> None:
        """The lite app, which is another app, is released along with it."""
        dense = self.rng.random() < 0.4
        for name in self.some(["MapView", "ShareSheet", "Settings", "Search", "Widget"], 4):
            if dense:
                self.source(self.lite, name)
            self.pick([self.rewrite_lite, self.describe_lite])(name)
            if dense:
                self.describe_lite(name)
            self.work(1 if dense else 2)

    def rewrite_lite(self, name: str) -> None:
        """A file of the lite app."""
        self.rewrite(self.lite, name)

    def describe_lite(self, _name: str) -> None:
        """A text of the lite app."""
        self.describe(self.lite, self.version, self.pick(list(NOTES)))

    def older_versions_touched_up(self) -> None:
        """The notes of releases that are long out are polished."""
        for version in self.some(self.old, self.rng.randint(4, 6)):
            for language in self.some(list(NOTES), self.rng.choice((0, 1, 1, 2))):
                self.describe(self.app, version, language)
            self.work(self.rng.choice((1, 2)))

    def reading_another_app(self) -> None:
        """The sources of an app that has nothing to do with it."""
        names = ["Player", "Tuner", "Archive", "Login", "Theme", "Push", "Billing", "Cache", "Home", "About"]
        for name in self.some(names, self.rng.randint(7, 10)):
            self.source(self.other, name)
            if self.rng.random() < 0.15:
                self.work()

    # Look-alikes.

    def red_until_mended(self) -> None:
        """Tests are red, another one each time, with an edit between."""
        module = self.pick(self.modules)
        for red in (4, 2, 1, 0):
            self.test(module, red)
            if red and self.rng.random() < 0.6:
                self.rewrite(self.app, f"{module[1:].title()}Model")

    def emulator_awakes(self) -> None:
        """The emulator needs time; each try waits longer."""
        gap = 6.0
        for _ in range(self.rng.randint(3, 4)):
            self.call(
                "emulator", {"do": "install", "abi": "arm64"}, "device offline", ok=False, cause="emulator", gap=gap
            )
            gap *= self.rng.uniform(1.5, 2.2)
        arguments = {"do": "install", "abi": "arm64"}
        self.call("emulator", arguments, "installed 38 MB", facts=("installed",), uses=("emulator",), gap=gap)

    def processing_of_the_bundle(self) -> None:
        """The store processes the upload; some looks show nothing new."""
        arguments = {"method": "GET", "url": f"https://dock.store.test/v2/apps/{self.app}/bundles/{self.code}"}
        for _ in range(self.rng.randint(4, 8)):
            text = json.dumps({"code": 200, "data": {"state": "PROCESSING"}, "trace": self.hexid(12)})
            gap = self.rng.uniform(25, 85)
            self.call(
                "http", arguments, text, facts=("processing",), watch="bundle", gap=gap, uses=("token",), place="in"
            )
        text = json.dumps({"code": 200, "data": {"state": "READY", "size": 31_000_000}, "trace": self.hexid(12)})
        self.call("http", arguments, text, facts=("ready",), uses=("token",), place="in", gap=40)

    def devices_in_one_turn(self) -> None:
        """The same smoke test on several devices at once, all with the same verdict."""
        with self.turn():
            for device in self.some(["p7-small", "p9", "t11-tablet", "fold3", "s2-old", "w5"], 5):
                self.call(
                    "smoke",
                    {"device": device, "build": self.code},
                    "ok, 12 of 12 screens",
                    facts=(f"smoke {device}",),
                    place="in",
                )

    def a_glance_next_door(self) -> None:
        """How did the lite app word it: three looks, then back."""
        for name in self.some(["MapView", "ShareSheet", "Settings"], 3):
            self.source(self.lite, name)
        self.work(5)

    def the_whole_kit(self) -> None:
        """The imported kit is read."""
        for name in self.some(["Dialog", "Chip", "Sheet", "Toast", "Theme", "Icon", "Grid"], self.rng.randint(5, 7)):
            self.source("ui-kit", name)

    def first_a_look_round(self) -> None:
        """What the other apps look like."""
        for name in self.some(["Player", "Tuner", "Archive", "Login", "Theme", "Push"], 3):
            self.source(self.other, name)
        for name in self.some(["MapView", "Settings", "Search"], 3):
            self.source(self.lite, name)

    def episodes(self) -> dict[str, list[Callable[[], None]]]:
        return {
            "stalled": [
                self.review_that_does_not_begin,
                self.one_crash_in_many_windows,
                self.the_same_picture_again,
                self.code_up_and_down,
            ],
            "cascading": [self.profile_has_expired, self.token_is_out_of_date, self.part_of_the_kit_missing],
            "drifting": [self.the_small_sister_too, self.older_versions_touched_up, self.reading_another_app],
            "alike": [
                self.red_until_mended,
                self.emulator_awakes,
                self.processing_of_the_bundle,
                self.devices_in_one_turn,
                self.a_glance_next_door,
                self.the_whole_kit,
            ],
            "opening": [self.first_a_look_round],
        }


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Runs of an agent that releases an app."""
    return produce(rng, KIND, Release)
