"""An observatory at night: a plan of fields, a dome, a camera, frames that are reduced."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace


class TelescopeNights(Stage):
    """One target in one night, its standards and its flats."""

    kind = "telescope_nights"
    styles = ("log", "table")
    paces = (6.0, 12.0, 17.0)

    def setup(self) -> None:
        self.target = self.pick(
            f"NGC {self.n(100, 7800)}",
            f"TIC {self.n(10**6, 10**8)}",
            f"SN 2026{self.pick('ab', 'cq', 'kx')}",
            f"({self.n(100, 999)}) Iris",
        )
        self.night = f"2026{self.n(1, 12):02}{self.n(1, 28):02}"
        self.bands = self.some(["g", "r", "i", "z", "Ha", "B", "V"], 3)
        self.task = self.pick(
            f"Observe {self.target} in {', '.join(self.bands)} tonight, 20 frames each, seeing permitting.",
            f"Light curve of {self.target} from night {self.night}: reduce, measure, list the bad frames",
            f"{self.target}: focus drifts during the sequence of {self.night}. Find the temperature term.",
        )

    def frame(self) -> str:
        """Return a frame's name."""
        return f"{self.night}/{self.target.replace(' ', '')}_{self.pick(*self.bands)}_{self.n(1, 400):04}.fits"

    def step(self) -> None:
        kind = self.n(0, 5)
        if kind == 0:
            self.call(
                "camera_expose",
                {"target": self.target, "band": self.pick(*self.bands), "s": self.n(5, 300)},
                f"{self.frame()} fwhm {self.x(0, 4, 2)} sky {self.n(200, 9000)}",
                change=True,
            )
        elif kind == 1:
            self.call(
                "fits_header",
                {"file": self.frame()},
                (
                    f"OBJECT={self.target} AIRMASS={self.x(1, 2, 3)} FOCUS={self.n(10000, 30000)} CCDTEMP=-"
                    f"{self.x(90, 110)}"
                ),
            )
        elif kind == 2:
            self.call(
                "photometry",
                {"file": self.frame(), "aperture": self.n(3, 20)},
                f"{self.target} mag {self.x(9, 19, 3)} +- {self.x(0, 0.2, 3)}",
            )
        elif kind == 3:
            self.call(
                "focus_set",
                {"um": self.n(10000, 30000)},
                f"focus {self.n(10000, 30000)}, fwhm {self.x(0, 4, 2)}",
                change=True,
            )
        elif kind == 4:
            self.call(
                "shell",
                {"cmd": f"reduce.py {self.frame()} --flat {self.pick(*self.bands)}"},
                f"bias {self.n(900, 1100)} flat ok rms {self.x(0, 3, 3)} -> red/{self.n(1, 9999)}",
                change=True,
            )
        else:
            self.call(
                "weather",
                {},
                f"{self.time()} hum {self.n(20, 90)} % wind {self.n(0, 60)} km/h seeing {self.x(0, 3, 2)}",
                out=None,
            )

    def drift_other_targets(self) -> None:
        """Points at other objects that are nicely placed."""
        self.lead()
        for _ in self.times(9, 13):
            other = f"{self.pick('M', 'IC', 'UGC', 'HD')} {self.n(100, 9999)}"
            tool, text = self.pick(
                ("telescope_point", f"on {other}, offset {self.x(0, 9)} arcsec"),
                ("camera_expose", f"{other} frame {self.n(1, 9999)} fwhm {self.x(0, 4, 2)}"),
                ("ephemeris", f"{other} alt {self.n(20, 90)} moon {self.n(10, 170)}"),
            )
            self.call(tool, {"target": other}, text, out=True, change=tool != "ephemeris")
            self.now_and_then()

    def drift_archive_nights(self) -> None:
        """Reduces nights of other years, other people's proposals."""
        self.lead()
        for _ in self.times(9, 13):
            path = (
                f"{self.n(2009, 2025)}{self.n(1, 12):02}{self.n(1, 28):02}/P{self.n(10, 99)}_{self.n(1, 400):04}.fits"
            )
            tool, text, change = self.pick(
                ("fits_header", f"OBJECT=HIP{self.n(1, 99999)} PI={self.person()}", False),
                ("shell", f"reduced {path} rms {self.x(0, 3, 3)}", True),
                ("photometry", f"mag {self.x(9, 19, 3)} {path[:8]}", False),
            )
            self.call(tool, {"file": path}, text, out=True, change=change)
            self.now_and_then(0.1)
        self.tail()

    def drift_dome_logbook(self) -> None:
        """Improves the web page of the dome camera, one thing after another."""
        self.lead()

        def improve() -> None:
            path = f"/var/www/allsky/{self.pick('index.html', 'style.css', 'timelapse.sh', 'cron.txt', 'map.js')}"
            self.call(
                "edit",
                {"path": path, "line": self.n(1, 300)},
                f"{path}: line {self.n(1, 300)} changed",
                out=True,
                change=True,
            )

        self.gradually(improve, 16, 24)

    def drift_papers(self) -> None:
        """Papers, and the papers that they cite."""
        self.lead()
        for _ in self.times(10, 14):
            code = f"{self.n(1962, 2025)}A&A...{self.n(100, 700)}..{self.n(1, 99)}{self.pick(*'ABCDEFG')}"
            self.call(
                "ads_abstract",
                {"bibcode": code},
                (
                    f"{self.person()}: "
                    f"{self.pick('Quasars', 'Pulsars', 'Dust', 'Galaxy bars', 'Comet tails', 'Solar flares')} "
                    f"{self.n(1, 99)}, cites {self.n(2, 120)}"
                ),
                out=True,
            )
            self.now_and_then(0.1)

    def stall_clouds(self) -> None:
        """Waits for the sky without movement for half a night."""
        self.work(4, 8)
        for number in self.times(16, 26):
            self.call(
                "weather",
                {"station": "dome"},
                f"overcast, {self.time()}",
                new=number == 0,
                wait="sky",
                gap=self.x(50, 240),
            )

    def stall_focus_pendulum(self) -> None:
        """Between two focus values that were both measured."""
        self.work(4, 8)
        values = [self.n(10000, 19000), self.n(20000, 30000)]
        for number in self.times(8, 13):
            self.call("focus_set", {"um": values[number % 2]}, f"focus {values[number % 2]}, fwhm 2.9", new=number < 2)
        self.tail()

    def stall_header_again(self) -> None:
        """One header by three programs."""
        self.work(4, 9)
        name = self.frame()
        for number in self.times(9, 14):
            tool, args, text = [
                ("fits_header", {"file": name}, "EXPTIME = 0"),
                ("shell", {"cmd": f"fitsinfo {name} | grep EXP"}, "EXPTIME=0"),
                ("python", {"code": f"getval('{name}', 'EXPTIME')"}, "0"),
            ][number % 3]
            self.call(tool, args, text, new=number == 0)

    def cascade_mount_lost(self) -> None:
        """The mount's controller lost its time; pointing, tracking, parking fail."""
        self.work(4, 9)
        for _ in self.times(5, 8):
            self.call(
                self.pick("telescope_point", "telescope_track", "telescope_offset", "camera_expose"),
                {"target": self.target, "dx": self.n(-90, 90)},
                self.pick(
                    f"ERR {self.n(30, 60)} encoder reference lost",
                    f"slew aborted at {self.x(0, 90, 2)} deg: no reference",
                    f"not tracking; {self.n(1, 99)} commands ignored",
                ),
                ok=self.chance(0.3),
                cause="mount",
            )
            if self.chance(0.4):
                self.call(
                    "weather",
                    {},
                    f"hum {self.n(20, 90)} % wind {self.n(0, 60)} km/h seeing {self.x(0, 3, 2)}",
                    out=None,
                )

    def cascade_catalogue_host(self) -> None:
        """The catalogue service is down; solving, matching, calibrating all depend on it."""
        self.work(4, 9)
        for _ in self.times(4, 8):
            name = self.frame()
            self.call(
                *self.pick(
                    ("photometry", {"file": name, "calibrate": True}),
                    ("solve_plate", {"file": name}),
                    ("catalog_query", {"around": self.target, "r": self.n(1, 90)}),
                ),
                self.pick(
                    f"ConnectTimeout vizier.example ({name})",
                    f"{name}: 0 reference stars (service returned 503)",
                    f"plate solving gave up for {name}: no catalogue",
                ),
                ok=self.chance(0.3),
                cause="vizier",
            )
            if self.chance(0.4):
                self.call("fits_header", {"file": name}, f"AIRMASS={self.x(1, 2, 4)} {name}")

    def healthy_sequence(self) -> None:
        """Frame after frame."""
        for number in self.times(16, 28):
            self.call(
                "camera_expose",
                {"target": self.target, "band": self.bands[number % len(self.bands)], "s": 60},
                f"frame {number + 1:04} fwhm {self.x(0, 4, 2)}",
                change=True,
            )

    def healthy_standards_and_flats(self) -> None:
        """Calibration of the target's bands belongs to it; the plan names the standard fields."""
        self.work(2, 4)
        fields = [f"SA{self.n(90, 115)}-{self.n(100, 999)}" for _ in range(5)]
        self.call(
            "plan_show",
            {"target": self.target},
            f"{self.target}: standards {', '.join(fields)}; flats {', '.join(self.bands)}",
        )
        for field in fields:
            self.call("telescope_point", {"target": field}, f"on {field}", change=True)
            self.call(
                "camera_expose",
                {"target": field, "band": self.pick(*self.bands)},
                f"{field} zero point {self.x(20, 26, 3)}",
                change=True,
            )
        self.work(3, 8)

    def healthy_focus_run(self) -> None:
        """A curve with a minimum, in equal steps."""
        self.work(2, 4)
        start = self.n(10000, 20000)
        for number in self.times(9, 14):
            self.call(
                "focus_set",
                {"um": start + 150 * number},
                f"focus {start + 150 * number}, fwhm {abs(number - 5) * 0.3 + 1:.2f}",
                change=True,
            )
        self.work(3, 6)

    def healthy_cooling(self) -> None:
        """The camera gets colder while the agent waits."""
        self.work(1, 3)
        temp = self.n(10, 20)
        while temp > -100:
            temp -= self.n(8, 15)
            self.call("camera_state", {}, f"CCD {temp} C", wait="ccd", new=True, gap=self.x(30, 200))
        self.work(4, 8)

    def healthy_few_looks_at_clouds(self) -> None:
        """Clouds for ten minutes, then work."""
        self.work(3, 6)
        for number in self.times(5, 8):
            self.call("weather", {"station": "dome"}, "overcast", new=number == 0, wait="sky", gap=self.x(40, 90))
        self.call("weather", {"station": "dome"}, f"clear, seeing {self.x(0, 3, 2)}", wait="sky", new=True, gap=50)
        self.work(5, 10)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(TelescopeNights, rng)
