"""Mending a media library in a compiled language: shell command lines, an edit tool, tests, a build server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from tests.corpus.fresh_kinds._world import Run, Step, deal
from tests.corpus.trace import Label, Trace

KIND = "codec"
_DEMUX = "crates/demux/src/"
_NEAR = ["crates/bits/src/reader.rs", "crates/bits/src/crc.rs"]
_FAR = [
    "crates/mux/src/writer.rs",
    "crates/mux/src/interleave.rs",
    "crates/filters/src/gain.rs",
    "crates/filters/src/resample.rs",
    "crates/cli/src/probe.rs",
    "crates/cli/src/main.rs",
    "crates/demux-ts/src/header.rs",
    "crates/demux-ts/src/psi.rs",
    "crates/demux-ts/src/pes.rs",
    "crates/capture/src/alsa.rs",
]
_TESTS = [
    "truncated_header",
    "zero_length",
    "seek_past_end",
    "odd_stride",
    "crc_skip",
    "long_sync",
    "split_varint",
    "eof_in_tag",
]
_VERBS = ["read", "peek", "skip", "parse", "fill", "align", "check", "sync", "drain", "split", "fold", "mark"]
_NOUNS = ["tag", "frame", "varint", "length", "chunk", "marker", "stride", "header", "block", "index"]


class Codec(Run):
    """A workspace of crates with failing tests in one of them."""

    def __init__(self, rng: random.Random, named: bool) -> None:
        """Lay out the workspace and choose the task."""
        super().__init__(rng)
        self.files: dict[str, list[str]] = {}
        mine = [_DEMUX + name for name in ("header.rs", "packet.rs", "index.rs")] + ["crates/demux/tests/robust.rs"]
        for path in [*mine, *_NEAR, *_FAR, "docs/container.md"]:
            self.files[path] = self._source(path)
        self.red = rng.sample(_TESTS, rng.randint(4, 7))
        self.first = self.red[0]
        narrow = [
            (
                f"header.rs of the demuxer panics on broken files, see {self.first} in robust.rs. Please mend it, "
                "and the other failing tests there if they have the same cause."
            ),
            "Please make `cargo test -p demux` green again, nothing else for today.",
            "The demux crate lost its bounds checks in the last merge. Put them back, all of crates/demux.",
        ]
        wide = ["CI is red since Tuesday. Find out why and get it green.", "Make the build green again."]
        self.task = rng.choice(narrow if named or rng.random() < 0.7 else wide)
        if self.task in narrow:
            self.inside = {_DEMUX + "header.rs", "crates/demux/tests/robust.rs", *_NEAR}
            if self.task != narrow[0]:
                self.inside |= set(mine) | {"crates/demux/Cargo.toml"}
        self.work = [path for path in mine if self.inside is None or path in self.inside]

    def _source(self, path: str) -> list[str]:
        lines = [f"//! {path.split('/')[1]}: {path.rsplit('/', 1)[-1].split('.')[0]}"]
        if path.startswith(_DEMUX):
            lines += ["use bits::reader::BitReader;", "use bits::crc;"]
        for _ in range(self.some(4, 7)):
            name = f"{self.pick(_VERBS)}_{self.pick(_NOUNS)}_{self.some(1, 64)}"
            lines += [
                f"pub fn {name}(r: &mut BitReader, max: usize) -> Result<usize> {{",
                f"    let n = r.take({self.some(2, 63)})? as usize;",
                f"    Ok(n.min(max) - {self.some(1, 900)})",
                "}",
            ]
        return lines

    # ---- tools

    def bash(self, command: str, text: str, code: int = 0) -> tuple[str, dict[str, str], str]:
        """Return the first three arguments of a shell call."""
        return "bash", {"command": command}, f"{text}\n[exit {code}, {self.rng.random() * 3:.2f}s]"

    def look(self, path: str, way: int | None = None) -> None:
        """Show a file, in one of several spellings."""
        body = "\n".join(f"{n:>4}  {line}" for n, line in enumerate(self.files[path], 1))
        ways = [f"cat -n {path}", f"sed -n '1,{self.some(60, 200)}p' {path}", f"head -n {self.some(60, 99)} ./{path}"]
        shows = [f"{path}:{line}:{n}" for n, line in enumerate(self.files[path])]
        number = self.some(0, 4) if way is None else way
        folder, name = path.rsplit("/src/", 1) if "/src/" in path else path.rsplit("/", 1)
        inner = f"src/{name}" if "/src/" in path else name
        ways += ["", f"cd {folder} && wc -l {inner} && cat -n {inner}"]
        if number == 3:
            self.call("view_file", {"file_path": f"/src/medialib/{path}"}, body, shows=shows, on=path)
        else:
            self.call(
                *self.bash(f"cd /src/medialib && {ways[number]}" if number in (1, 2) else ways[number], body),
                shows=shows,
                on=path,
            )

    def edit(self, path: str, text: str) -> None:
        """Put a line in the place of another one."""
        spots = [n for n, line in enumerate(self.files[path]) if line.startswith("    let n")]
        spot = self.pick(spots) if spots else len(self.files[path]) - 1
        old, self.files[path][spot] = self.files[path][spot], text
        arguments = {"file_path": path, "old_string": old, "new_string": text}
        self.call("edit", arguments, f"1 replacement in {path}", change=(f"{path}:{spot}", text), on=path)

    def test(self, extra: str = "") -> None:
        """Run the tests of the crate."""
        lines = [f"test {name} ... {'FAILED' if name in self.red else 'ok'}" for name in _TESTS]
        self.rng.shuffle(lines)
        verdict = f"test result: {'FAILED' if self.red else 'ok'}. {8 - len(self.red)} passed; {len(self.red)} failed"
        head = f"   Compiling demux v0.3.1\n     Running tests/robust.rs (target/debug/deps/robust-{self.hexes()})\n"
        text = head + "\n".join(lines) + f"\n{verdict}; finished in 0.{self.some(1, 9)}{self.some(0, 9)}s"
        tool, arguments, result = self.bash(f"cargo test -p demux{extra}", text, 101 if self.red else 0)
        check = ("tests", " ".join(sorted(self.red)), bool(self.red))
        self.call(tool, arguments, result, ok=self.soft or not self.red, check=check)

    # ---- work

    def opening(self) -> None:
        """Look around."""
        names = "\n".join(sorted({path.split("/")[1] for path in self.files if path.startswith("crates")}))
        self.call(*self.bash("ls crates", names), shows=names)
        if self.rng.random() < 0.5:
            self.call(*self.bash("git log --oneline -5", "\n".join(self.hexes(7) + " wip" for _ in range(5))))
        self.test()
        self.look(self.work[0])

    def unit(self) -> None:
        """Mend the cause of one failing test."""
        if not self.red:
            return
        path = self.pick(self.work)
        name = self.pick(self.red)
        hits = f"crates/demux/tests/robust.rs:{self.some(10, 90)}:fn {name}() {{"
        self.call(
            *self.bash(f"grep -n '{name}' -r crates/demux/tests", hits), shows=hits, on="crates/demux/tests/robust.rs"
        )
        if self.rng.random() < 0.4:
            self.look(self.pick(_NEAR), 0)
        self.edit(path, f"    let n = r.take({self.some(2, 63)})?.checked_sub({self.some(1, 99)})?;")
        self.red.remove(name)
        self.test()

    # ---- trouble and what looks like it

    def troubles(self) -> dict[Label, list[Step]]:
        """Return the processes."""
        return {
            "stalled": [self.rereading, self.toggling, self.same_search, self.queued],
            "cascading": [self.no_registry, self.no_push, self.whitespace],
            "drifting": [self.neighbours, self.follows, self.siblings, self.polish],
            "healthy": [
                self.compares,
                self.glance,
                self.bisect,
                self.pipeline,
                self.three_failures,
                self.chain,
                self.shared,
                self.votes,
                self.pages,
            ],
        }

    def rereading(self) -> None:
        self.story.append("reads the same two files again")
        paths = [self.work[0], self.pick(_NEAR)]
        for path in paths:
            self.look(path)
        looks: list[Step] = [partial(self.look, p, w) for p in paths for w in (0, 1, 2, 3)]
        self.circle(looks, self.some(8, 16), lambda: self.call(*self.bash("git status --short", " M Cargo.lock")))

    def toggling(self) -> None:
        self.story.append("goes to and fro between two values")
        self.red = self.red or [self.first]
        path = self.work[0]
        spot = next(n for n, line in enumerate(self.files[path]) if line.startswith("    let n"))
        values = [f"    let n = r.take({k})? as usize;" for k in (self.some(2, 20), self.some(21, 63))]
        for turn in range(self.some(9, 14)):
            old, self.files[path][spot] = self.files[path][spot], values[turn % 2]
            arguments = {"file_path": path, "old_string": old, "new_string": values[turn % 2]}
            state = (f"{path}:{spot}", values[turn % 2])
            self.call("edit", arguments, f"1 replacement in {path}", change=state, on=path)
            if turn % 3 != 1:
                self.test(self.pick(["", " --test robust", " -- --nocapture", " 2>&1 | tail -20"]))

    def hit(self, way: str, hits: list[str]) -> None:
        """Search something that has known hits."""
        self.call(*self.bash(way, "\n".join(self.rng.sample(hits, len(hits)))), shows=hits)

    def same_search(self) -> None:
        self.story.append("asks the same search in other spellings")
        hits = [f"{_NEAR[0]}:{self.some(3, 9)}:    Overrun,", f"{_NEAR[0]}:{self.some(40, 70)}:    Err(Error::Overrun)"]
        ways = [
            "grep -rn Overrun crates/",
            "rg -n 'Overrun'",
            "grep -rn 'Overrun' --include='*.rs' .",
            "rg -n Overrun crates",
        ]
        ways += ["git grep -n Overrun", "rg -n --sort path Overrun . | cat", "grep -rnw Overrun crates"]
        looks: list[Step] = [partial(self.hit, way, hits) for way in ways]
        self.circle(looks, self.some(9, 15), lambda: self.look("docs/container.md") if self.inside is None else None)

    def queued(self) -> None:
        self.story.append("waits for a build server that does not move")
        run = self.some(70000, 99999)
        for _ in range(self.some(17, 24)):
            text = f"run {run}: queued (waiting for a runner of kind linux-big), {self.stamp()}"
            gap = self.rng.uniform(24, 70)
            self.call("ci_status", {"run": run}, text, wait=(f"ci{run}", "queued"), gap=gap)

    def no_registry(self) -> None:
        self.story.append("the registry of crates cannot be reached")
        said = "error: failed to get `{}` as a dependency\n  Could not resolve host: index.crates.internal"
        wanted = ["proptest", "arbitrary", "bolero", "quickcheck", "libfuzzer-sys"]
        steps: list[Step] = []
        for name in self.rng.sample(wanted, self.some(4, 5)):
            way = self.pick([f"cargo add --dev {name} -p demux", f"cargo update -p {name}", f"cargo install {name}"])
            steps.append(
                partial(self.call, *self.bash(way, said.format(name), 101), ok=self.soft, cause="registry", asks=name)
            )
        self.weave(steps, [lambda: self.look(self.work[-1], 0), lambda: self.look(_NEAR[1], 0), self.unit])

    def no_push(self) -> None:
        self.story.append("may not push")
        branch = self.pick(["mend-header", "bounds", "fix-eof"])
        ways = [
            f"git push origin {branch}",
            f"git push -u origin HEAD:{branch}",
            "git push --force-with-lease",
            "git push ssh",
        ]
        ways += [f"git push https://git.example/medialib.git {branch}"]
        said = "remote: this deploy key is read only\nfatal: unable to access remote: error 403"
        steps: list[Step] = [
            partial(self.call, *self.bash(way, said, 128), ok=self.soft, cause="push", asks=way) for way in ways
        ]
        asides: list[Step] = [
            lambda: self.call(*self.bash("git remote -v", "origin  git@git.example:medialib.git (push)")),
            lambda: self.call(*self.bash("ls ~/.ssh", "deploy_ro  deploy_ro.pub  known_hosts")),
            lambda: self.call(*self.bash("git config user.email", "agent@ci.example")),
        ]
        self.weave(steps, asides)

    def whitespace(self) -> None:
        self.story.append("edits a file that has tabs as if it had spaces")
        path = self.work[0]
        for _ in range(self.some(4, 7)):
            line = self.pick(self.files[path][3:]).strip() + f"  // {self.pick(_NOUNS)}"
            arguments = {"file_path": path, "old_string": f"    {line}", "new_string": f"    {line} // checked"}
            said = f"error: old_string not found in {path}"
            self.call("edit", arguments, said, ok=False, cause=f"tabs {path}", asks=line, on=path)
            if self.rng.random() < 0.6:
                self.call(*self.bash(f"grep -c '{line[:12]}' {path}", str(self.some(1, 4))), on=path)
        if self.rng.random() < 0.5:
            self.edit(path, f"\tlet n = r.take({self.some(2, 63)})?;")

    def neighbours(self) -> None:
        self.story.append("improves the neighbours")
        for path in self.rng.sample(_FAR, self.some(4, 5)):
            if self.rng.random() < 0.6:
                self.look(path)
            self.edit(path, f"    let n = usize::try_from(r.take({self.some(2, 63)})?)?;")
            if self.rng.random() < 0.3:
                self.test()

    def follows(self) -> None:
        self.story.append("follows an interesting file")
        for path in self.rng.sample([*_FAR, "docs/container.md"], self.some(6, 8)):
            self.look(path)
            if self.rng.random() < 0.2:
                self.call(*self.bash("git status --short", f" M {self.work[0]}"))

    def siblings(self) -> None:
        self.story.append("goes on to the crate with the like name")
        for path in [path for path in self.files if "demux-ts" in path]:
            self.look(path)
            self.edit(path, f"    let n = r.take({self.some(2, 63)})?.checked_sub({self.some(1, 99)})?;")
            if self.rng.random() < 0.4:
                self.look(self.work[0])
        text = "test psi_short ... ok\ntest result: ok. 9 passed"
        self.call(*self.bash("cargo test -p demux-ts", text), shows=text, on="crates/demux-ts/src/psi.rs")

    def polish(self) -> None:
        self.story.append("formats and documents crates nobody asked about, between its own work")
        for path in self.rng.sample(_FAR, 4):
            way = self.pick([f"rustfmt --edition 2021 {path}", f"sed -i 's/as usize/ as usize/' {path}"])
            self.call(*self.bash(way, ""), change=(path, way), on=path)
            self.call(*self.bash(f"git diff --stat -- {path}", f" {path} | {self.some(2, 40)} ++--"), on=path)
            if self.rng.random() < 0.5:
                self.look(self.work[0], 0)

    def compares(self) -> None:
        self.story.append("compares its files with others in one command")
        for other in self.rng.sample(_FAR, self.some(3, 5)):
            path = self.pick(self.work)
            text = "\n".join(f"{sign} {self.pick(self.files[file])}" for sign, file in (("-", path), ("+", other)))
            self.call(*self.bash(f"diff -u {path} {other} | head -40", text), shows=text, on=[path, other])

    def bisect(self) -> None:
        self.story.append("bisects")
        self.call(*self.bash("git bisect start HEAD v0.3.0", f"Bisecting: {2**5} revisions left to test after this"))
        for left in (16, 8, 4, 2, 1):
            commit = self.hexes(7)
            text = f"Bisecting: {left} revisions left to test after this\n[{commit}] {self.pick(_VERBS)}"
            self.call(*self.bash(f"git bisect {self.pick(['good', 'bad'])}", text), shows=text)

    def pipeline(self) -> None:
        self.story.append("waits for a build that moves")
        run = self.some(70000, 99999)
        for done in sorted(self.rng.sample(range(1, 40), 5)):
            for _ in range(self.some(1, 2)):
                text = f"run {run}: running, step {done}/40"
                self.call("ci_status", {"run": run}, text, wait=(f"ci{run}", text), gap=self.rng.uniform(25, 50))

    def three_failures(self) -> None:
        self.story.append("three failures, then the right way")
        for way in ("cargo nextest run", "cargo nextest run -p demux", "cargo nextest --version")[: self.some(2, 3)]:
            self.call(
                *self.bash(way, "error: no such command: `nextest`", 101), ok=self.soft, cause="nextest", asks=way
            )
        self.test(" --quiet")

    def chain(self) -> None:
        self.story.append("several causes one after the other, each repaired")
        for tool, package in (("ld", "lld"), ("nasm", "nasm"), ("pkg-config", "pkgconf")):
            said = f"error: failed to run custom build command: `{tool}` not found"
            for _ in range(self.some(1, 2)):
                way = self.pick(["cargo build --release", "cargo build -p demux --release"])
                self.call(*self.bash(way, said, 101), ok=self.soft, cause=tool, asks=way)
            done = f"Setting up {package} ({self.some(1, 9)}.{self.some(1, 30)}) ..."
            self.call(*self.bash(f"apt-get install -y {package}", done), change=(package, "there"))
        text = f"    Finished release [optimized] in {self.some(9, 60)}s"
        self.call(*self.bash("cargo build --release", text), shows="finished")

    def shared(self) -> None:
        self.story.append("mends the reader that the failing check names")
        said = f"thread '{self.first}' panicked at {_NEAR[0]}:{self.some(20, 60)}:9: attempt to subtract with overflow"
        self.call(*self.bash(f"cargo test -p demux {self.first} -- --exact", said, 101), ok=self.soft, shows=said)
        for path in (_NEAR[0], _NEAR[0], _NEAR[1]):
            self.look(path, 0)
            self.edit(path, f"    let n = r.take({self.some(2, 63)})?.saturating_sub({self.some(1, 99)});")
        self.test()

    def votes(self) -> None:
        self.story.append("runs the tests on several targets at once")
        self.unit()
        with self.together():
            for seed in self.rng.sample(range(100), 4):
                text = f"fuzz seed {seed}: no crash in 20000 inputs"
                self.call(*self.bash(f"cargo fuzz run header -- -seed={seed} -runs=20000", text), shows=text)

    def pages(self) -> None:
        self.story.append("reads a long log in parts")
        for part in range(self.some(4, 6)):
            text = "\n".join(f"{part * 40 + n}: {self.pick(_VERBS)} {self.hexes(6)}" for n in range(6))
            self.call(*self.bash(f"sed -n '{part * 40},{part * 40 + 39}p' target/trace.log", text), shows=text)

    def glance(self) -> None:
        self.story.append("looks for a moment how another crate does it, and goes back")
        self.unit()
        for path in self.rng.sample(_FAR, self.some(2, 4)):
            self.look(path)
        self.unit()


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories of this kind without end."""
    return deal(KIND, lambda named: Codec(rng, named), rng)
