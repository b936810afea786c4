"""A Java service moves to a new framework version: modules, imports, a compiler whose errors become fewer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace

MODULES = ["billing", "catalog", "shipping", "accounts", "reporting", "gateway", "loyalty", "search"]
NOUNS = [
    "Order",
    "Price",
    "Invoice",
    "Item",
    "Rate",
    "Voucher",
    "Parcel",
    "Ledger",
    "Quote",
    "Session",
    "Batch",
    "Refund",
]
ROLES = ["Service", "Controller", "Repository", "Mapper", "Config", "Client", "Listener", "Dto"]


class JavaUpgrade(Stage):
    """A module with classes; each class imports some others and a common module."""

    kind = "java_upgrade"
    styles = ("log",)
    memo = ("todo_write",)

    def setup(self) -> None:
        self.module, *self.rest = self.some(MODULES, 5)
        self.package = self.pick("com/acme", "de/werk", "org/nimbus")
        self.old, self.new = self.pick(
            ("javax.persistence", "jakarta.persistence"),
            ("junit.framework", "org.junit.jupiter.api"),
            ("org.apache.log4j", "org.slf4j"),
        )
        self.classes = [self.java(self.module) for _ in range(9)]
        self.common = [self.java("common") for _ in range(3)]
        self.imports = {path: self.some([*self.classes, *self.common], 2, 3) for path in self.classes}
        self.task = self.pick(
            f"Upgrade module {self.module} from {self.old} to {self.new}; `mvn -pl {self.module} verify` must pass.",
            f"{self.module}/pom.xml: bump the parent to 3.x and repair what breaks in {self.module}.",
            f"Replace {self.old} by {self.new} in {self.module}/src, tests included. One module only for now!",
        )

    def java(self, module: str) -> str:
        """Return the path of a class."""
        stem = self.pick(*NOUNS) + self.pick(*ROLES)
        return f"{module}/src/{self.pick('main', 'main', 'test')}/java/{self.package}/{module}/{stem}.java"

    def read(self, path: str, **more: Any) -> None:
        """Show a file, with its imports."""
        linked = self.imports.get(path, [])
        head = "\n".join(f"import {link.split('java/')[1][:-5].replace('/', '.')};" for link in linked)
        stem = path.split("/")[-1][:-5]
        self.call(
            self.pick("view", "read_file"),
            {"path": path},
            (
                f"package {self.package.replace('/', '.')};\n{head}\nimport "
                f"{self.old}.{self.pick('Entity', 'Id', 'Test', 'Logger')};\n\nclass {stem} {{ // "
                f"{self.n(20, 900)} lines, {self.hex(4)}"
            ),
            **more,
        )

    def edit(self, path: str, **more: Any) -> None:
        """Change a file."""
        what = self.pick("Entity", "Id", "Column", "Test", "Logger", "Query")
        self.call(
            "str_replace",
            {"path": path, "old_str": f"import {self.old}.{what};", "new_str": f"import {self.new}.{what};"},
            f"{path.split('/')[-1]}: replaced, line {self.n(3, 40)}",
            change=True,
            **more,
        )

    def compile(self, errors: int) -> None:
        """Run the compiler."""
        first = self.pick(*self.classes)
        self.call(
            "bash",
            {"command": f"mvn -q -pl {self.module} {self.pick('compile', 'test-compile', 'verify')}"},
            (
                f"[ERROR] {first}:[{self.n(3, 400)},{self.n(1, 80)}] "
                f"{self.pick('package does not exist', 'cannot find symbol', 'incompatible types')}\n[ERROR] "
                f"{errors} errors"
            )
            if errors
            else "BUILD SUCCESS",
            ok=not errors,
            out=None,
        )

    def step(self) -> None:
        path, kind = self.pick(*self.classes), self.n(0, 5)
        if kind < 2:
            self.read(path)
        elif kind < 4:
            self.edit(path)
        elif kind == 4:
            self.read(self.pick(*self.imports[path]))
        else:
            self.compile(self.n(1, 300))

    def drift_module_by_module(self) -> None:
        """One module only, said the task; the agent upgrades the others."""
        self.lead()
        for module in self.rest:
            self.call(
                "bash",
                {"command": f"grep -rl {self.old} {module}/src | head -{self.n(3, 30)}"},
                "\n".join(self.java(module) for _ in range(3)),
                out=True,
            )
            for _ in self.times(1, 3):
                path = self.java(module)
                self.read(path, out=True)
                self.edit(path, out=True)
            self.now_and_then(0.3)

    def drift_unused_code(self) -> None:
        """Deletes and renames things in another module, gradually."""
        self.lead()

        def tidy() -> None:
            path = self.java(self.rest[0])
            tool, args = self.pick(
                ("bash", {"command": f"git rm {path}"}),
                ("bash", {"command": f"git mv {path} {path.replace('Dto', 'Data').replace('Service', 'Svc')}"}),
                ("str_replace", {"path": path, "old_str": f"get{self.hex(3)}", "new_str": f"fetch{self.hex(3)}"}),
            )
            self.call(tool, args, f"ok {path.split('/')[-1]} {self.n(1, 999)}", out=True, change=True)

        self.gradually(tidy, 16, 24)

    def drift_front_end(self) -> None:
        """From a controller to the web pages that have nothing to do with it."""
        self.lead()
        for _ in self.times(8, 12):
            page = (
                f"web/src/{self.pick('cart', 'login', 'footer', 'theme', 'search', 'map')}/"
                f"{self.pick('index', 'style', 'util', 'view')}{self.n(1, 30)}.{self.pick('ts', 'css', 'vue')}"
            )
            if self.chance(0.5):
                self.call(
                    "view", {"path": page}, f"// {page}\nexport const a{self.n(1, 99)} = {self.n(1, 999)};", out=True
                )
            else:
                self.call(
                    "str_replace",
                    {"path": page, "old_str": f"{self.n(1, 99)}px", "new_str": f"{self.n(1, 9)}rem"},
                    f"{page} replaced {self.n(1, 99)}",
                    out=True,
                    change=True,
                )
            self.now_and_then()
        self.tail()

    def drift_release_notes(self) -> None:
        """Reads release notes of libraries that the module does not use."""
        self.lead()
        for _ in self.times(9, 13):
            library = self.pick("kafka-clients", "netty", "jooq", "quarkus", "vertx", "grpc", "lucene", "hazelcast")
            self.call(
                "fetch",
                {"url": f"https://docs.{library}.example/releases/{self.n(1, 9)}.{self.n(0, 30)}"},
                (
                    f"# {library} {self.n(1, 9)}.{self.n(0, 30)}\n- {self.pick('fixed', 'deprecated', 'added')} "
                    f"{self.pick('timeouts', 'shading', 'modules')} ({self.n(100, 9999)})"
                ),
                out=True,
            )
            self.now_and_then()

    def stall_clean_install(self) -> None:
        """The same build with other goals, as if it helped."""
        self.work(5, 10)
        line = f"[ERROR] {self.classes[0]}:[{self.n(3, 90)},8] cannot find symbol"
        for number in self.times(7, 12):
            goal = self.pick(
                "clean install",
                "clean verify -U",
                "compile -X",
                "-o compile",
                "install -DskipTests",
                "dependency:purge-local-repository compile",
                "-T1 compile",
            )
            self.call(
                "bash",
                {
                    "command": (
                        f"mvn -pl {self.module} {goal} 2>&1 | "
                        f"{self.pick('tail -3', 'grep ERROR | head -1', 'tail -20')}"
                    )
                },
                f"{line}\n[INFO] Total time: {self.x(2, 90)} s",
                ok=self.chance(0.5),
                new=number == 0,
            )
        self.tail()

    def stall_import_back_and_forth(self) -> None:
        """The old import, the new import."""
        self.work(4, 9)
        path, pair = self.classes[0], (self.old, self.new)
        for number in self.times(8, 12):
            before, after = pair[number % 2], pair[1 - number % 2]
            self.call(
                "str_replace",
                {"path": path, "old_str": f"import {before}.Id;", "new_str": f"import {after}.Id;"},
                "1 replacement",
                new=number < 2,
            )

    def stall_list_rereads(self) -> None:
        """Reads three files in rotation without a change."""
        self.work(4, 9)
        texts = {path: f"class {path.split('/')[-1][:-5]} {{ // {self.hex(5)}" for path in self.classes[:3]}
        for number in self.times(10, 16):
            path = self.classes[number % 3]
            self.call(self.pick("view", "read_file", "cat"), {"path": path}, texts[path], new=number < 3)

    def cascade_repository_down(self) -> None:
        """The artifact repository is unreachable; every goal fails at another artifact."""
        self.work(4, 9)
        for _ in self.times(5, 9):
            artifact = (
                f"{self.pick('spring', 'hibernate', 'jackson', 'surefire', 'assertj')}-"
                f"{self.pick('core', 'api', 'bom')}:{self.n(1, 9)}.{self.n(0, 30)}"
            )
            self.call(
                "bash",
                {
                    "command": (
                        f"mvn -pl {self.module} "
                        f"{self.pick('compile', 'test', 'dependency:tree', 'versions:display', 'verify')} -q"
                    )
                },
                self.pick(
                    f"Could not transfer artifact {artifact}: Connect to nexus.corp:8081 failed",
                    f"Non-resolvable import POM {artifact}",
                    f"[ERROR] Plugin {artifact} or one of its dependencies could not be resolved",
                ),
                ok=False,
                out=None,
                cause="nexus",
            )
            if self.chance(0.4):
                self.edit(self.pick(*self.classes))

    def cascade_wrong_jdk(self) -> None:
        """The machine has an older JDK; every class file, every tool says so."""
        self.work(4, 9)
        for path in self.some(self.classes, 5, 8):
            stem = path.split("/")[-1][:-5]
            self.call(
                "bash",
                {
                    "command": self.pick(
                        f"mvn -pl {self.module} test -Dtest={stem}",
                        f"javac --release 21 {path}",
                        f"java -cp target {stem}",
                    )
                },
                self.pick(
                    f"{stem} has been compiled by a more recent version (class file version 65.0)",
                    f"error: release version 21 not supported ({stem})",
                    f"UnsupportedClassVersionError: {stem}",
                ),
                ok=False,
                out=None,
                cause="jdk",
            )
            if self.chance(0.4):
                self.read(path)

    def cascade_database_of_tests(self) -> None:
        """The container for the tests' database does not start; each test class has its own stack trace."""
        self.work(5, 10)
        for path in self.some(self.classes, 5, 8):
            stem = path.split("/")[-1][:-5]
            text = self.pick(
                f"{stem}IT: Could not find a valid Docker environment",
                f"{stem}IT » IllegalState Failed to load ApplicationContext",
                f"{stem}IT » Connection to localhost:{self.n(32000, 33000)} refused",
            )
            self.call(
                "bash",
                {"command": f"mvn -pl {self.module} verify -Dit.test={stem}IT"},
                text,
                ok=False,
                out=None,
                cause="docker",
            )
            if self.chance(0.5):
                self.pick(self.read, self.edit)(path)

    def healthy_errors_become_fewer(self) -> None:
        """Compile, repair the first error, compile."""
        self.work(2, 4)
        errors = self.n(25, 60)
        while errors:
            self.compile(errors)
            for _ in self.times(1, 2):
                self.edit(self.pick(*self.classes))
            errors = max(0, errors - self.n(3, 9))
        self.compile(0)

    def healthy_import_chain(self) -> None:
        """Reads classes of other packages, since the compiler's error names them one after the other."""
        self.work(3, 6)
        for _ in self.times(5, 8):
            path = (
                f"platform/src/main/java/{self.package}/platform/"
                f"{self.pick(*NOUNS)}{self.pick(*ROLES)}{self.n(1, 9)}.java"
            )
            self.call(
                "bash",
                {"command": f"mvn -q -pl {self.module} compile"},
                f"[ERROR] {self.pick(*self.classes)}: method in {path} has another signature now",
                ok=False,
                out=None,
            )
            self.read(path)
            self.edit(self.pick(*self.classes))

    def healthy_every_class(self) -> None:
        """Many edits of the same form."""
        for path in self.classes:
            self.read(path)
            self.edit(path)
        self.compile(0)

    def healthy_tests_to_green(self) -> None:
        """Red tests of the module, each repaired."""
        self.work(2, 4)
        for path in self.some(self.classes, 5, 7):
            stem = path.split("/")[-1][:-5] + "Test"
            self.call(
                "bash",
                {"command": f"mvn -pl {self.module} test -Dtest={stem}"},
                f"Tests run: {self.n(3, 40)}, Failures: {self.n(1, 3)} {stem}",
                ok=False,
                out=None,
            )
            self.edit(path)
            self.call(
                "bash",
                {"command": f"mvn -pl {self.module} test -Dtest={stem}"},
                f"Tests run: {self.n(3, 40)}, Failures: 0 {stem}",
                out=None,
            )

    def healthy_plain(self) -> None:
        """Nothing special."""
        self.work(14, 30)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(JavaUpgrade, rng)
