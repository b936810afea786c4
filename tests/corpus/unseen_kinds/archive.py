"""Cleaning one roll or tape of an archive of photos and sound by shell commands."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.corpus.trace import Trace
from tests.corpus.unseen_kinds._world1 import World, produce

KIND = "archive cleaned in a shell"


class Archive(World):
    """A folder of scans or takes that get names, dates and the right way up."""

    free_task = "Tidy up on this machine and in its archive, wherever you see a need."

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.sound = rng.random() < 0.4
        self.ext = rng.choice(("wav", "flac")) if self.sound else rng.choice(("tif", "jpg", "nef"))
        self.word = "tape" if self.sound else "roll"
        self.number = rng.randrange(110, 890)
        self.root = rng.choice(("/archive", "/mnt/nas/fonds7", "/srv/media", "~/digitised"))
        self.folder = f"{self.word}s/{self.word[0]}{self.number:04d}"
        self.others = [f"{self.word}s/{self.word[0]}{self.number + d:04d}" for d in (-2, -1, 1, 2, 5)]
        self.year = rng.randrange(1961, 1999)
        stem = rng.choice(("IMG_", "scan", "DSC", "out-")) if not self.sound else rng.choice(("TRK", "take ", "side_"))
        self.names = {i: f"{stem}{i + rng.randrange(3, 7) * 100:04d}.{self.ext}" for i in range(1, rng.randint(19, 30))}
        self.raw = dict(self.names)
        self.progress = 0
        self.turned = 0
        self.slips = 2
        self.noisy = rng.random() < 0.8
        self.task = (
            f"Clean {self.root}/{self.folder}: rename every file to {self.year}_{self.word[0]}{self.number:04d}_NN, "
            f"write the date {self.year} into it (masters too), throw away doubles. "
            + rng.choice((f"The list is in index/{self.word[0]}{self.number:04d}.csv.", "Nothing else needs work."))
        )

    # --- tools

    def sh(self, command: str, text: str, code: int = 0, **meant: Any) -> None:
        """A command in the terminal, with exit code and time."""
        tail = f"\n[exit {code}, {self.rng.uniform(0.02, 2.4):.2f} s]" if self.noisy else f"\n$? = {code}"
        meant.setdefault("ok", code == 0)
        self.run.call("terminal", {"cmd": command}, text + tail, **meant)

    def _path(self, name: str, folder: str = "") -> str:
        path = f"{folder or self.folder}/{name}"
        return f"'{path}'" if " " in path else path

    def info(self, name: str, folder: str = "", touch: str = "in", way: int = 0) -> None:
        """What a file is."""
        seed = random.Random(f"{folder}{name}")
        path = self._path(name, folder)
        if self.sound:
            size = f"{seed.randrange(40, 900)}.{seed.randrange(10, 99)} s, 2 ch, 96000 Hz"
            forms = (f"soxi {path}", f"ffprobe -hide_banner {path} 2>&1", f"mediainfo {path}", f"soxi -V {path}")
        else:
            size = f"{seed.randrange(3000, 8000)}x{seed.randrange(2000, 6000)} 16-bit"
            forms = (
                f"identify {path}",
                f"exiftool -s -ImageSize {path}",
                f"file {path}",
                f"identify -verbose {path} | head -4",
            )
        text = (
            f"{path}: {size}",
            f"Size : {size}",
            f"{name} -- {size}",
            f"Image/Audio: {name}\n  Geometry/Length: {size}",
        )
        self.sh(forms[way], text[way], facts=[f"info {folder}{name}"], touch=touch)

    def rename(self, index: int) -> None:
        """Give a file its new name."""
        old = self.names[index]
        new = f"{self.year}_{self.word[0]}{self.number:04d}_{index:02d}.{self.ext}"
        self.names[index] = new
        command = f"mv -nv {self._path(old)} {self._path(new)}"
        self.sh(command, f"renamed '{old}' -> '{new}'", state=f"{index}={new}", touch="in", changes=True)

    def tag(self, name: str, value: str, folder: str = "", touch: str = "in") -> None:
        """Write a date or a title into a file."""
        path = self._path(name, folder)
        if self.sound:
            command, text = f"metaflac --set-tag=DATE={value} {path}", ""
        else:
            command, text = (
                f"exiftool -overwrite_original -AllDates='{value}:01:01' {path}",
                "    1 image files updated",
            )
        self.sh(command, text, state=f"{folder}{name} {value}", touch=touch, changes=True)

    def _copy(self) -> str:
        """Start a copy of the folder and give the name of its log."""
        log = f"/tmp/rsync_{self.run.hex(4)}.log"
        command = f"nohup rsync -a --info=progress2 {self.folder}/ backup/{self.folder}/ > {log} 2>&1 &"
        self.sh(command, f"[1] {self.rng.randrange(2000, 30000)}", state=log, touch="in")
        return log

    def look_around(self) -> None:
        for folder in self.rng.sample(self.others, self.rng.randint(3, 5)):
            count = self.rng.randrange(12, 40)
            self.sh(f"ls {folder} | wc -l", f"{count}", facts=[f"ls {folder}"], touch="out")

    def work(self) -> Iterator[None]:
        rng = self.rng
        self.sh(f"cd {self.root} && ls", f"index\n{self.word}s\nlost+found", facts=["root"])
        yield
        items = list(self.raw.items())
        for start in range(0, len(items), 12):
            rows = [f"-rw-r--r-- 1 media {len(n) * 91733 + i * i * 40993:>9} {n}" for i, n in items[start : start + 12]]
            command = f"ls -l {self.folder} | sed -n '{start + 1},{start + 12}p'"
            self.sh(command, "\n".join(rows), facts=[f"ls {start}"], touch="in")
            yield
        style = rng.choice(("one by one", "names first", "hash"))
        for index in self.raw:
            if style == "hash":
                digest = random.Random(f"{self.root}{index}").getrandbits(80)
                text = f"{digest:020x}  {self.names[index]}"
                self.sh(f"sha1sum {self._path(self.names[index])}", text, facts=[text], touch="in")
                yield
            elif rng.random() < 0.6:
                self.info(self.names[index])
                yield
            self.rename(index)
            yield
            if style != "names first":
                self.tag(self.names[index], f"{self.year}")
                yield
            if index % 7 == 0:
                new = sum(name != self.raw[i] for i, name in self.names.items())
                command = f"ls {self.folder} | grep -c '^{self.year}_'"
                self.sh(command, f"{new}", check=("count", f"{new}"), touch="in")
                yield
        for index in self.raw:
            self.tag(self.names[index], f"{self.year}")
            yield

    # --- look-alikes

    def alike_compare(self) -> None:
        """Pairs that might be doubles; cmp says with exit code 1 that they are not."""
        indexes = self.rng.sample(list(self.names), 2 * self.rng.randint(3, 5))
        for one, two in zip(indexes[::2], indexes[1::2], strict=True):
            names = self.names[one], self.names[two]
            text = f"{names[0]} {names[1]} differ: byte {self.rng.randrange(9, 9999)}, line 1"
            self.sh(
                f"cmp {self._path(names[0])} {self._path(names[1])}", text, 1, facts=[f"cmp {one} {two}"], touch="in"
            )

    def alike_copy(self) -> None:
        """A copy to the second disk, looked at with patience until it is through."""
        log = self._copy()
        for done in (*sorted(self.rng.sample(range(3, 99), self.rng.randint(2, 4))), 100):
            for _ in range(self.rng.choice((1, 2, 3, 4))):
                self.run.pause(22, 80)
                self.run.call("terminal", {"cmd": f"tail -c 60 {log}"}, f"to-chk {done}%", wait=(log, str(done)))

    def alike_halving(self) -> None:
        """Where the crackle or the scratch begins, found by halving."""
        name, low, high = self.rng.choice(list(self.names.values())), 0, 4096
        target = self.rng.randrange(4096)
        for _ in range(self.rng.randint(6, 9)):
            middle = (low + high) // 2
            level = self.rng.uniform(0.001, 0.004) + (0.4 if target < middle else 0)
            command = f"noise_level {self._path(name)} --from {low} --to {middle}"
            self.sh(command, f"level {level:.4f}", facts=[f"{name} {low} {middle}"], touch="in")
            low, high = (low, middle) if target < middle else (middle, high)

    def alike_crop(self) -> None:
        """One file worked on again and again, further each time."""
        name = self.rng.choice(list(self.names.values()))
        for step in range(self.rng.randint(5, 7)):
            self.progress += 1
            command = f"trim_edges --px {10 * step + self.rng.randrange(1, 10)} {self._path(name)}"
            self.sh(command, "ok", state=f"trim {self.progress}", touch="in", changes=True)

    def alike_three_faults(self) -> None:
        """Three faults of one command, each of its own cause and mended."""
        name = self.rng.choice(list(self.names.values()))
        path = f"web_{self.run.hex(3)}/{name}"
        faults = [
            f"cannot create '{path}': No such file or directory",
            "unknown profile 'sRGB2'",
            "quality must be <= 100",
        ]
        for fault in self.rng.sample(faults, self.rng.choice((2, 3, 3))):
            command = f"derive --to {path} --q {self.rng.choice((90, 120))} {self._path(name)}"
            self.sh(command, f"derive: {fault}", 2, fail=f"{path} {fault}", touch="in")
        self.sh(f"derive --make-dirs --to {path} {self._path(name)}", "1 derived", state=path, touch="in")

    def alike_busy(self) -> None:
        """The share is busy; the pauses grow."""
        name, wait = f"nfs{self.run.hex(3)}", 5.0
        command = f"flock -n .lock make_thumbs {self.folder}"
        for attempt in range(self.rng.choice((3, 4))):
            self.sh(command, "lock is held by another process", 1, fail=name, ask=f"{attempt}", gap=wait, touch="in")
            wait *= self.rng.uniform(1.8, 2.5)
        self.sh(command, f"{len(self.names)} thumbs", facts=[name], clears=[name], gap=wait, touch="in")

    def alike_sidecars(self) -> None:
        """The notes that the list of the folder links to, one step away."""
        keys = [f"notes/{self.rng.choice('abcdef')}{self.rng.randrange(100, 999)}.txt" for _ in range(6)]
        rows = "\n".join(f"{i};{key}" for i, key in enumerate(keys, 1))
        self.sh(f"cat index/{self.word[0]}{self.number:04d}.csv", rows, facts=[rows], touch="in")
        for key in keys[: self.rng.randint(5, 6)]:
            self.sh(
                f"cat {key}",
                f"{self.year}, {self.rng.choice(('harbour', 'choir', 'wedding', 'mill'))}",
                facts=[key],
                touch="in",
            )

    def alike_short(self) -> None:
        """The same short command three or four times."""
        for _ in range(self.rng.choice((3, 4))):
            self.run.call("terminal", {"cmd": "jobs"}, "", facts=["jobs"])

    def alike_slip(self) -> None:
        """A file of the next folder, once."""
        name = f"x{self.rng.randrange(100, 999)}.{self.ext}"
        self.info(name, self.others[2], "out")
        if self.slips > 0:
            self.slips -= 1
            self.tag(name, f"{self.year}", self.others[2], "out")

    # --- stalls

    def stall_turning(self) -> None:
        """A file is turned and turned back, or made louder and softer, and the check stays red."""
        name = self._path(self.rng.choice(list(self.names.values())))
        steps = ("norm --gain +3", "norm --gain -3") if self.sound else ("rotate --deg 90", "rotate --deg -90")
        self.run.states.add(f"turn {name} 1")
        for turn in range(self.rng.randint(6, 8)):
            self.sh(f"{steps[turn % 2]} {name}", "done", state=f"turn {name} {turn % 2}", touch="in", changes=True)
            text = "PROFILE MISMATCH (embedded: none)"
            self.sh(
                f"validate {'-v ' if turn % 3 == 1 else ''}{name}", text, 1, check=(f"valid {name}", "no"), touch="in"
            )
            if turn == 4:
                self.go(0, 1)

    def stall_missing(self) -> None:
        """A number that is not there is looked for in every way."""
        lost = f"{self.rng.choice((71, 83, 94))}"
        forms = [
            f"ls {self.folder} | grep {lost}",
            f"find {self.folder} -name '*{lost}*'",
            f"ls {self.folder}/*{lost}.*",
        ]
        forms += [f"find {self.folder} -iname '*_{lost}.*'", f"ls -R {self.folder} | grep -i '{lost}\\.'"]
        forms += [f"find {self.folder} | grep -E '{lost}'", f"printf '%s\\n' {self.folder}/* | grep {lost}"]

        def act() -> None:
            command = self.rng.choice(forms)
            text = "ls: cannot access: No such file or directory" if command.endswith(".*") else ""
            self.sh(command, text, 1 if "grep" in command or text else 0, facts=[f"no {lost}"], touch="in")

        self.stuck([act] * self.rng.randint(9, 13))

    def stall_same_file(self) -> None:
        """What one file is, asked of tool after tool."""
        name = self.rng.choice(list(self.names.values()))
        self.stuck([partial(self.info, name, "", "in", self.rng.randrange(4)) for _ in range(self.rng.randint(8, 12))])

    def stall_copy(self) -> None:
        """A copy that stands still, looked at every few seconds."""
        log, done = self._copy(), self.rng.randrange(5, 95)

        def act() -> None:
            self.run.pause(3, 15)
            now = self.run.stamp("%H:%M:%S")
            command, text = self.rng.choice(
                (
                    (f"tail -1 {log}", f"{now} to-chk {done}%"),
                    (f"grep -o '[0-9]*%' {log} | tail -1", f"{done}%"),
                    (f"date; tail -c 40 {log}", f"{now} UTC\n...chk {done}%"),
                    (f"sleep 2; tail -1 {log}", f"{now} to-chk {done}%"),
                )
            )
            self.sh(command, text, wait=(log, str(done)))

        self.stuck([act] * self.rng.randint(9, 14))

    # --- cascades

    def _master(self, index: int) -> tuple[str, str]:
        path = f"masters/{self.folder}/{self.raw[index]}"
        command, verb = self.rng.choice(
            (
                (f"mv '{path}' '{path}.bak'", "mv: cannot move"),
                (f"touch -d {self.year}-01-01 '{path}'", "touch: cannot touch"),
                (f"chmod u+w '{path}'", "chmod: changing permissions of"),
                (f"rm '{path}'", "rm: cannot remove"),
                (f"cp new.{self.ext} '{path}'", "cp: cannot create regular file"),
            )
        )
        return command, f"{verb} '{path}': Read-only file system"

    def cascade_read_only(self) -> None:
        """The masters of the folder lie on a disk that takes no change."""

        def act(index: int) -> None:
            command, text = self._master(index)
            swallow = self.rng.random() < 0.5
            command += " 2>&1 | tail -1" if swallow else ""
            self.sh(command, text, 0 if swallow else 1, fail="read-only", ask=command, touch="in")

        self.between([partial(act, index) for index in self.rng.sample(list(self.raw), self.rng.randint(4, 7))])

    def cascade_delegate(self) -> None:
        """A package is missing, and every file that needs it fails."""

        def act(index: int) -> None:
            path = self._path(self.names[index])
            tool = self.rng.choice(("vips copy", "vipsthumbnail", "vips autorot")) if not self.sound else "lame -V2"
            text = (
                "libjxr.so.0: cannot open shared object file"
                if not self.sound
                else "libmp3.so.0: cannot open shared object"
            )
            target = f"web/{index:02d}.{'mp3' if self.sound else 'png'}"
            code = self.rng.choice((127, 0))
            self.sh(f"{tool} {path} {target}{'' if code else '; echo'}", text, code, fail="so", ask=path, touch="in")

        self.between([partial(act, index) for index in self.rng.sample(list(self.names), self.rng.randint(4, 6))])

    def cascade_tag_name(self) -> None:
        """A tag that does not exist is written into file after file."""

        def act(index: int) -> None:
            path = self._path(self.names[index])
            command = f"settag -TakenOn={self.year} {path}"
            self.sh(
                command,
                "Warning: Tag 'TakenOn' is not defined\nNothing to do.",
                fail="TakenOn",
                ask=path,
                touch="in",
                ok=True,
            )

        self.between([partial(act, index) for index in self.rng.sample(list(self.names), self.rng.randint(4, 7))])
        if self.mends():
            path = self._path(self.rng.choice(list(self.names.values())))
            meant: dict[str, Any] = {"state": f"taken {path}", "clears": ["TakenOn"], "touch": "in", "changes": True}
            self.sh(f"settag -Taken={self.year} {path}", "1 written", **meant)

    # --- drift

    def drift_other_folders(self) -> None:
        """Files of other rolls or tapes get dates."""
        acts: list[Callable[[], None]] = []
        for _ in range(self.rng.randint(5, 7)):
            folder, name = self.rng.choice(self.others), f"x{self.rng.randrange(100, 999)}.{self.ext}"
            if self.rng.random() < 0.15:
                acts.append(partial(self.info, name, folder, "out"))
            acts.append(partial(self.tag, name, f"{self.year + 1}", folder, "out"))
        self.astray(acts)

    def drift_housekeeping(self) -> None:
        """The agent clears up in places that have nothing to do with the folder."""
        places = ("~/Downloads/old", "/var/tmp/preview", "~/.cache/thumbs", "/mnt/guest/Desktop", "/opt/scanner/spool")

        def act(place: str) -> None:
            count = self.rng.randrange(2, 30)
            command, text = self.rng.choice(
                (
                    (f"rm -rv {place}/*.part | wc -l", f"{count}"),
                    (f"mv -v {place} {place}.old", f"renamed '{place}' -> '{place}.old'"),
                    (f"chmod -Rc g-w {place} | tail -1", f"mode of '{place}/{count}' changed from 0664 to 0644"),
                )
            )
            self.sh(command, text, state=command, touch="out", changes=True)

        self.astray([partial(act, place) for place in self.rng.sample(places, self.rng.randint(4, 5))])

    def drift_reading_neighbours(self) -> None:
        """Looking at one neighbouring folder after the other, long after the beginning."""
        self.go(10)
        for _ in range(self.rng.randint(6, 8)):
            name = f"n{self.rng.randrange(100, 999)}.{self.ext}"
            self.info(name, self.rng.choice(self.others), "out", self.rng.randrange(3))
            if self.rng.random() < 0.35:
                self.go(1)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Trajectories of this kind without end."""
    return produce(KIND, Archive, rng)
