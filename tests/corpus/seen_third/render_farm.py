"""An animation studio: shots of a film, scene files, a render farm and its queue."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace


class RenderFarm(Stage):
    """One shot, its layers and its assets."""

    kind = "render_farm"
    styles = ("json", "log", "yaml")

    def setup(self) -> None:
        self.seq = f"sq{self.n(10, 90) * 10:04}"
        self.shot = f"{self.seq}_sh{self.n(1, 40) * 10:04}"
        self.film = self.pick("otter", "moonmill", "glasshaus", "ember")
        self.assets = self.some(
            ["fox", "lantern", "boat", "kitchen", "cloak", "ladder", "teapot", "bridge", "snow", "mask"], 4
        )
        self.strange = [
            a for a in ("dragon", "castle", "market", "horse", "wagon", "throne", "forest") if a not in self.assets
        ]
        self.first = self.n(1001, 1040)
        self.task = self.pick(
            (
                f"Shot {self.shot} of {self.film}: flicker on the {self.assets[0]} from frame {self.first + 20}. Fix "
                "and re-render."
            ),
            f"Render {self.shot} layers beauty, shadow, z for dailies. Frames {self.first}-{self.first + 90}",
            f"{self.film}/{self.shot}: swap the {self.assets[1]} for the new publish and check every tenth frame",
        )

    def step(self) -> None:
        asset, frame, kind = self.pick(*self.assets), self.first + self.n(0, 90), self.n(0, 5)
        if kind == 0:
            self.call(
                "scene_query",
                {"file": f"/{self.film}/{self.shot}/lighting.blend", "object": f"{asset}_{self.n(1, 60)}"},
                self.one(object=asset, samples=self.n(16, 4096), clamp=self.x(0, 9), seed=self.n(0, 99)),
            )
        elif kind == 1:
            self.call(
                "scene_set",
                {"file": f"/{self.film}/{self.shot}/lighting.blend", "path": f"{asset}.light{self.n(1, 40)}.power"},
                f"{asset}: {self.x(1, 900)} W",
                change=True,
            )
        elif kind == 2:
            self.call(
                "farm_submit",
                {
                    "shot": self.shot,
                    "frames": f"{frame}-{frame + self.n(1, 9)}",
                    "layer": self.pick("beauty", "shadow", "z"),
                },
                f"job {self.n(10000, 99999)} queued",
                change=True,
            )
        elif kind == 3:
            self.call(
                "image_diff",
                {"a": f"{self.shot}.{frame}.exr", "b": f"{self.shot}.{frame + 1}.exr"},
                f"rms {self.x(0, 2, 4)}, worst pixel {self.n(0, 2048)},{self.n(0, 858)}",
            )
        elif kind == 4:
            self.call(
                "farm_log",
                {"shot": self.shot, "frame": frame, "tail": self.n(5, 50)},
                f"Fra:{frame} Mem:{self.n(900, 64000)}M Sample {self.n(1, 512)}/512 {asset}",
            )
        else:
            self.call(
                "asset_versions",
                {"asset": asset, "since": self.day()},
                self.one(asset=asset, version=self.n(2, 90), by=self.person()),
            )

    def drift_next_shots(self) -> None:
        """Renders and relights the shots before and after."""
        self.lead()
        for _ in self.times(9, 13):
            shot = f"{self.seq}_sh{self.n(41, 90) * 10:04}"
            tool, args, change = self.pick(
                ("farm_submit", {"shot": shot, "frames": f"1001-{self.n(1010, 1100)}"}, True),
                (
                    "scene_set",
                    {"file": f"/{self.film}/{shot}/lighting.blend", "path": f"key{self.n(1, 40)}.power"},
                    True,
                ),
                (
                    "scene_query",
                    {"file": f"/{self.film}/{shot}/lighting.blend", "object": f"rim{self.n(1, 60)}"},
                    False,
                ),
            )
            self.call(tool, args, f"{shot} {self.n(1000, 99999)}", out=True, change=change)
            self.now_and_then()

    def drift_asset_library(self) -> None:
        """Remodels assets that the shot does not have."""
        self.lead()
        for _ in self.times(8, 12):
            asset = self.pick(*self.strange)
            self.call(
                self.pick("mesh_edit", "uv_unwrap", "texture_paint", "rig_bind"),
                {"asset": f"/lib/{asset}/v{self.n(1, 60):03}"},
                f"{asset}: {self.n(400, 99000)} faces",
                out=True,
                change=True,
            )
            self.now_and_then()
        self.tail()

    def drift_farm_nodes(self) -> None:
        """Becomes the farm's administrator."""
        self.lead()

        def administer() -> None:
            node = f"rn{self.n(1, 200):03}"
            if self.chance(0.5):
                self.call(
                    "node_info",
                    {"node": node},
                    self.one(node=node, gpu=self.n(1, 8), temp=self.n(30, 95), driver=f"5{self.n(10, 99)}"),
                    out=True,
                )
            else:
                self.call(
                    "node_set",
                    {"node": node, "state": self.pick("drain", "on", "reboot")},
                    f"{node} done ({self.n(1, 999)})",
                    out=True,
                    change=True,
                )

        self.gradually(administer, 18, 26)

    def drift_old_dailies(self) -> None:
        """Watches notes and films of other shows."""
        self.lead()
        for _ in self.times(9, 14):
            show = self.pick("kelpie", "tinworld", "nocturne", "pip")
            self.call(
                self.pick("review_notes", "playblast"),
                {"show": show, "day": self.day()},
                f"{show} {self.n(1, 99)}: '{self.pick('warmer', 'slower', 'love it', 'eyes!')}' {self.person()}",
                out=True,
            )
            self.now_and_then(0.1)
        self.tail()

    def stall_frame_reread(self) -> None:
        """Measures the same two frames with every tool."""
        self.work(5, 9)
        a = self.first + 20
        rms = self.x(0, 2, 4)
        for number in self.times(7, 12):
            tool = self.pick("image_diff", "oiiotool", "flicker_check", "image_stats")
            self.call(
                tool,
                {"a": f"{self.shot}.{a}.exr", "b": f"{self.shot}.{a + 1}.exr", "mode": self.pick("rms", "abs", "max")},
                self.pick(f"rms {rms}", f"difference {rms}", self.one(rms=rms)),
                new=number == 0,
            )
        self.tail()

    def stall_samples_swap(self) -> None:
        """512 samples, 1024 samples, 512 samples, and the same flicker."""
        self.work(4, 9)
        for number in self.times(8, 12):
            samples = [512, 1024][number % 2]
            self.call(
                "scene_set",
                {"file": f"/{self.film}/{self.shot}/lighting.blend", "path": "cycles.samples", "value": samples},
                f"samples = {samples}",
                new=number < 2,
            )

    def stall_queue_position(self) -> None:
        """The job keeps its place in the queue, for longer than anyone should wait."""
        self.work(4, 9)
        place, job = self.n(20, 400), self.n(10000, 99999)
        for number in self.times(14, 25):
            self.call(
                "farm_job",
                {"job": job},
                f"job {job} waiting, position {place}, updated {self.time()}",
                new=number == 0,
                wait="queue",
                gap=self.x(30, 120),
            )

    def cascade_texture_mount(self) -> None:
        """The texture volume is not mounted: frames fail, each at another texture."""
        self.work(4, 9)
        for _ in self.times(5, 9):
            frame, asset = self.first + self.n(0, 90), self.pick(*self.assets)
            tool, args = self.pick(
                ("farm_frame", {"shot": self.shot, "frame": frame}),
                ("texture_info", {"path": f"/tex/{asset}.tx"}),
                ("scene_open", {"file": f"/{self.film}/{self.shot}/{asset}.blend"}),
            )
            self.call(
                tool,
                args,
                self.pick(
                    f"frame {frame}: pink (missing /tex/{asset}_{self.n(1, 9)}.tx)",
                    f"Image file '/tex/{asset}.tx' does not exist [{frame}]",
                    f"[Errno 107] Transport endpoint is not connected: '/tex' {frame}",
                ),
                ok=self.chance(0.3),
                cause="mount",
            )
            if self.chance(0.3):
                self.call(
                    "asset_versions",
                    {"asset": asset, "since": self.day()},
                    self.one(asset=asset, version=self.n(2, 90)),
                )

    def cascade_licence(self) -> None:
        """No licence is left for the renderer."""
        self.work(4, 9)
        for _ in self.times(5, 8):
            frame = self.first + self.n(0, 90)
            self.call(
                self.pick("farm_submit", "render_local", "farm_retry"),
                {"shot": self.shot, "frames": f"{frame}"},
                self.pick(
                    f"{frame}: license checkout failed (-4,132)",
                    f"Frame {frame} done with WATERMARK, licence server says 0 of 40",
                    f"exit 101 after {frame}, see lic.log",
                ),
                ok=self.chance(0.4),
                cause="licence",
            )
            if self.chance(0.4):
                self.call("image_diff", {"a": f"{frame}.exr", "b": "ref.exr"}, f"rms {self.x(0, 2, 4)}, {frame}")

    def healthy_every_tenth_frame(self) -> None:
        """A frame at a time."""
        for frame in range(self.first, self.first + 90, self.n(5, 8)):
            self.call(
                "image_diff",
                {"a": f"{self.shot}.{frame}.exr", "b": f"{self.shot}.{frame + 1}.exr"},
                f"frame {frame} rms {self.x(0, 2, 4)}",
            )
        self.work(1, 4)

    def healthy_render_counts_up(self) -> None:
        """Waits for frames, which arrive."""
        self.work(4, 7)
        done, total = 0, self.n(60, 120)
        while done < total:
            done = min(total, done + self.n(5, 15))
            self.call(
                "farm_job",
                {"job": self.n(1, 9)},
                f"{done}/{total} frames",
                wait="render",
                new=True,
                gap=self.x(20, 400),
            )
        self.work(3, 6)

    def healthy_linked_assets(self) -> None:
        """Follows the shot's references to the assets, their textures and shaders."""
        self.work(2, 4)
        for asset in self.assets:
            self.call(
                "scene_links",
                {"file": f"/{self.film}/{self.shot}/lighting.blend", "name": asset},
                f"{asset} -> /lib/{asset}/publish/v{self.n(1, 90):03}.blend",
            )
            self.call(
                "scene_query",
                {"file": f"/lib/{asset}/publish/v{self.n(1, 90):03}.blend", "object": asset},
                self.one(object=asset, shader=f"sh_{self.hex(4)}"),
            )
            self.call(
                "texture_info",
                {"path": f"/tex/{asset}.tx"},
                f"{asset}.tx {self.n(1, 8)}k mip {self.pick('ok', 'missing')} {self.n(1, 999)}",
            )
        self.work(2, 5)

    def healthy_value_search(self) -> None:
        """Halves a value until the flicker ends."""
        self.work(2, 4)
        clamp = self.x(50, 100)
        for _ in self.times(8, 12):
            clamp = round(clamp / 2, 4)
            self.call(
                "scene_set",
                {"file": f"/{self.film}/{self.shot}/lighting.blend", "path": "cycles.clamp", "value": clamp},
                f"clamp = {clamp}",
                change=True,
            )
            self.call("flicker_check", {"shot": self.shot}, f"score {self.x(0, 9, 3)}")

    def healthy_plain(self) -> None:
        """Nothing special."""
        self.work(12, 28)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(RenderFarm, rng)
