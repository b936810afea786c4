"""Geographic data: tables with shapes, a style, tiles that are rendered and served."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.corpus.trace import Trace
from tests.corpus.unseen_kinds._world2 import Place, Scene, Step, produce

KIND = "geographic data and map tiles"
LAYERS = (
    "rivers",
    "footpaths",
    "contours",
    "landuse",
    "buildings",
    "tramlines",
    "parcels",
    "coast",
    "place_names",
    "trees",
)
COLOURS = ("water", "stone", "moss", "sand", "ice", "peat", "heath", "ink")
DSN = "pg://gis-2/atlas"


class Atlas(Scene):
    """Layers of a region; one is repaired and its tiles are rendered anew."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.layer, *rest = rng.sample(LAYERS, 8)
        self.others = rest
        self.region = rng.choice(["north_vale", "isle_of_orm", "lower_marsh", "high_fell"])
        self.x, self.y = rng.randint(500, 540), rng.randint(330, 360)
        self.broken = rng.sample(range(1000, 9900), rng.randint(6, 10))
        self.table = f"{self.region}.{self.layer}"
        self.task = rng.choice(
            [
                (
                    "Layer {l} of {r}: repair the invalid shapes in the table {t}, adjust styles/{l}.json, and render "
                    "its tiles from zoom 8 to 11 again."
                ),
                "Tiles of {l} show holes in {r}. Find the broken features in {t}, mend them, re-render, check.",
                "{t} came with errors from the survey. Clean this layer and bring its tiles up to date.",
            ]
        ).format(l=self.layer, r=self.region, t=self.table)

    def where(self, layer: str) -> Place:
        """The layer of the task, and the projections and palettes to which its style refers."""
        return "in" if layer in (self.layer, "palette") else "out"

    def sql(
        self, statement: str, rows: list[tuple[object, ...]], *facts: str, layer: str, change: bool = False
    ) -> None:
        """A statement and its table."""
        lines = [" | ".join(str(cell) for cell in row) for row in rows]
        tail = f"UPDATE {len(rows)}" if change else f"({len(rows)} rows)"
        text = "\n".join([*([] if change else lines), tail, f"Time: {self.rng.uniform(0.4, 900):.3f} ms"])
        arguments = {"dsn": DSN, "statement": statement}
        self.call("sql", arguments, text, facts=facts, uses=("db",), place=self.where(layer), change=change)

    # Looks.

    def features(self, layer: str, first: int) -> None:
        """A page of features."""
        rng = random.Random(f"{layer}{first}{self.region}")
        rows: list[tuple[object, ...]] = [("fid", "kind", "len_m", "srid")]
        kinds = ("main", "side", "ditch", "trace", "edge")
        rows += [
            (first + n, rng.choice(kinds), round(rng.uniform(4, 4000), 1), rng.choice([25832, 4326])) for n in range(12)
        ]
        statement = (
            f"SELECT fid, kind, len_m, srid FROM {self.region}.{layer} WHERE fid >= {first} ORDER BY fid LIMIT 12"
        )
        self.sql(statement, rows, f"features {layer} {first}", layer=layer)

    def invalid(self, layer: str) -> None:
        """The reasons why shapes are invalid."""
        rng = random.Random(layer)
        ids = self.broken if layer == self.layer else rng.sample(range(1000, 9900), 5)
        why = ("Self-intersection", "Ring crosses itself", "Too few points", "Hole outside shell")
        rows: list[tuple[object, ...]] = [
            (fid, random.Random(fid).choice(why), f"{fid * 31 % 4000}.{fid % 97}") for fid in ids
        ]
        statement = f"SELECT fid, reason(geom), at FROM {self.region}.{layer} WHERE NOT is_valid(geom)"
        self.sql(statement, rows, f"invalid {layer} {ids}", layer=layer)

    def mend(self, fid: int) -> None:
        """Repair a shape of the layer."""
        how = self.pick(["make_valid(geom)", "buffer(geom, 0)", "snap(geom, 0.01)", "rebuild_ring(geom)"])
        statement = f"UPDATE {self.table} SET geom = {how} WHERE fid = {fid}"
        self.broken = [one for one in self.broken if one != fid]
        self.sql(statement, [(fid,)], f"mended {fid}", layer=self.layer, change=True)

    def tile(self, layer: str, zoom: int, dx: int, dy: int) -> None:
        """Fetch a tile's head."""
        shift = 10 - zoom
        x = (self.x >> shift if shift >= 0 else self.x * 2) + dx
        y = (self.y >> shift if shift >= 0 else self.y * 2) + dy
        rng = random.Random(f"{layer}{zoom}{x}{y}")
        text = (
            f"HTTP/2 200\ncontent-type: x-tile\ncontent-length: {rng.randint(200, 48000)}\n"
            f'etag: "{rng.randint(10**8, 10**9):x}"\ndate: {self.stamp()}\nage: {int(self.now)}'
        )
        arguments = {"z": zoom, "x": x, "y": y, "layer": layer}
        self.call(
            "tile_head",
            arguments,
            text,
            facts=(f"tile {layer} {zoom} {x} {y}",),
            uses=("tiles",),
            place=self.where(layer),
        )

    def style(self, layer: str) -> None:
        """A layer's style."""
        rng = random.Random("style" + layer)
        body: dict[str, Any] = {
            "id": layer,
            "paint": {"color": f"@palette/{rng.choice(['water', 'stone', 'moss'])}", "width": rng.randint(1, 9) / 2},
            "minzoom": rng.randint(4, 9),
            "filter": ["==", "kind", rng.choice(["main", "side", "edge"])],
        }
        if layer == self.layer:
            body["ramp"] = [f"@palette/{name}" for name in COLOURS]
        self.call(
            "style_get",
            {"key": f"styles/{layer}.json"},
            json.dumps(body, indent=1),
            facts=(f"style {layer}",),
            place=self.where(layer),
        )

    def restyle(self, layer: str, prop: str, value: float) -> None:
        """Another paint value."""
        arguments = {"key": f"styles/{layer}.json", "set": {f"paint.{prop}": value}}
        text = json.dumps({"ok": True, "rev": self.hexid(7)})
        facts = (f"paint {layer} {prop} {value}",)
        self.call("style_put", arguments, text, facts=facts, place=self.where(layer), change=True)

    def palette(self, name: str) -> None:
        """A colour to which the style refers."""
        rng = random.Random(name)
        text = json.dumps({"name": name, "rgb": [rng.randint(0, 255) for _ in range(3)], "dark": rng.randint(0, 99)})
        self.call("style_get", {"key": f"palette/{name}.json"}, text, facts=(f"colour {name}",), place="in", far=True)

    def render(self, layer: str, zoom: int) -> None:
        """Render a zoom level and watch the count."""
        job, total = f"rd-{self.rng.randint(1000, 9999)}", 4 ** (zoom - 6)
        arguments = {"layer": layer, "bbox": self.region, "zoom": zoom}
        where = self.where(layer)
        self.call(
            "render_start", arguments, f"{job} accepted", facts=(f"render {layer} {zoom}",), place=where, change=True
        )
        done = 0
        while done < total:
            done = min(total, done + max(1, int(total * self.rng.uniform(0.25, 0.6))))
            text = f"{job}: {done} of {total} tiles, {self.rng.uniform(2, 40):.1f}/s"
            gap = self.rng.uniform(9, 40)
            self.call("render_state", {"job": job}, text, facts=(f"{job} {done}",), watch=job, place=where, gap=gap)

    def steps(self) -> list[Step]:
        part = functools.partial
        steps: list[Step] = [("db", part(self.invalid, self.layer)), ("", part(self.style, self.layer))]
        rest: list[Step] = [("db", part(self.features, self.layer, 1000 + 12 * n)) for n in range(5)]
        rest += [("db", part(self.mend, fid)) for fid in list(self.broken)]
        rest += [("tiles", part(self.tile, self.layer, zoom, dx, dx % 2)) for zoom in (8, 9, 10, 11) for dx in range(3)]
        rest += [
            ("", part(self.restyle, self.layer, prop, self.rng.randint(1, 9) / 4))
            for prop in ("width", "opacity", "blur")
        ]
        rest += [("", part(self.palette, name)) for name in ("water", "stone", "moss")]
        rest += [("", part(self.render, self.layer, zoom)) for zoom in (8, 9)]
        return [*steps, *self.some(rest, len(rest)), ("db", part(self.invalid, self.layer))]

    # Troubles.

    def count_in_other_words(self) -> None:
        """How many features are there: the same number by every road."""
        count, fact = self.rng.randint(12000, 80000), (f"count {self.layer}",)
        for number in range(self.rng.randint(9, 15)):
            way = self.rng.randrange(4)
            if way == 0:
                column = self.pick(["*", "1", "fid", "geom"])
                arguments: dict[str, Any] = {"dsn": DSN, "statement": f"select count({column}) from {self.table}"}
                text = f" count\n-------\n {count}\n(1 row)\nTime: {self.rng.uniform(9, 90):.2f} ms"
                self.call("sql", arguments, text, facts=fact, uses=("db",), place="in")
            elif way == 1:
                arguments = {"argv": ["geoinfo", self.pick(["-so", "-summary", "--brief"]), DSN, self.table]}
                self.call("run", arguments, f"Layer: {self.table}\nFeature Count: {count}\n", facts=fact, place="in")
            elif way == 2:
                body = {"layer": self.table, "features": count, "took": round(self.rng.uniform(0.01, 0.4), 3)}
                self.call(
                    "catalog",
                    {"entry": self.pick([self.layer, self.table]), "fields": ["features"]},
                    json.dumps(body),
                    facts=fact,
                    place="in",
                )
            else:
                arguments = {
                    "dsn": DSN,
                    "statement": f"WITH q AS (SELECT fid FROM {self.table}) SELECT max(n) FROM numbered(q) -- {number}",
                }
                self.call("sql", arguments, f"{count}\n(1 row)", facts=fact, uses=("db",), place="in")
            if number == 4 and self.rng.random() < 0.5:
                self.palette("ink")

    def width_to_and_fro(self) -> None:
        """The line width moves within what was tried; the tile has the same holes."""
        widths = self.rng.choice([(1.0, 3.0), (0.5, 2.5), (2.0, 4.0)])
        third = sum(widths) / 2
        for number in range(self.rng.randint(7, 9)):
            arguments: dict[str, Any]
            width = third if number in (4, 7) else widths[number % 2]
            arguments = {"key": f"styles/{self.layer}.json", "set": {"paint.width": width}}
            text = json.dumps({"ok": True, "rev": self.hexid(7)})
            facts = () if width == third else (f"paint {self.layer} width {width}",)
            self.call("style_put", arguments, text, facts=facts, place="in", change=True)
            arguments = {
                "z": 10,
                "x": self.x,
                "y": self.y,
                "layer": self.layer,
                "check": self.pick(["holes", "gaps", "all"]),
            }
            text = f"2 holes (fid missing at 12/40, 200/77) rendered {self.stamp('clock')}"
            self.call(self.pick(["tile_check", "tile_diff"]), arguments, text, facts=self.again("holes"), place="in")

    def failed_render_asked_after(self) -> None:
        """The render job failed for want of memory; that does not change."""
        job, fact = f"rd-{self.rng.randint(1000, 9999)}", (f"render lost {self.layer}",)
        for number in range(self.rng.randint(9, 14)):
            gap = self.rng.uniform(8, 60)
            way = self.rng.randrange(3)
            if way == 0:
                text = f"{job}: FAILED out of memory at tile 871 ({self.stamp('clock')})"
                self.call("render_state", {"job": job}, text, facts=fact, watch=job, final=True, place="in", gap=gap)
            elif way == 1:
                arguments: dict[str, Any] = {"argv": ["renderctl", self.pick(["show", "status", "log"]), job]}
                text = f"exit=0\njob {job} failed; out of memory at tile 871; {self.rng.randint(100, 999)} ms"
                self.call("run", arguments, text, facts=fact, watch=job, final=True, gap=gap)
            else:
                rows = [{"job": job, "state": "failed", "why": "out of memory", "tile": 871}]
                arguments = {"layer": self.layer, "last": number + 1}
                text = json.dumps({"jobs": rows, "asked": self.stamp()})
                self.call("render_list", arguments, text, facts=fact, watch=job, final=True, place="in", gap=gap)

    def cache_that_does_not_empty(self) -> None:
        """The purge stays in the queue for more than a quarter of an hour."""
        purge = f"pg{self.hexid(5)}"
        for number in range(self.rng.randint(17, 24)):
            gap = self.rng.uniform(62, 100)
            if number % 3 == 0:
                arguments: dict[str, Any] = {"purge": purge}
                text = json.dumps({"purge": purge, "state": "queued", "edges": "0/14", "now": self.stamp()})
            elif number % 3 == 1:
                arguments = {"purge": purge, "verbose": True}
                text = f"{purge} queued, 0/14 edges, {int(self.now)} s since start of session"
            else:
                arguments = {"layer": self.layer, "open": True}
                text = f"open purges: 1 ({purge}: queued, edges 0/14)"
            self.call("cdn_purge", arguments, text, facts=("purge queued",), watch="purge", gap=gap, place="in")

    def database_refuses(self) -> None:
        """The base has no connection left, whoever asks whatever."""
        self.blocked.add("db")
        dense = self.rng.random() < 0.3
        for number in range(self.rng.randint(7, 11) if dense else self.rng.randint(4, 8)):
            statement = (
                f"SELECT count(*) FROM {self.table}"
                if dense
                else self.pick(
                    [
                        f"ANALYZE {self.table}",
                        f"SELECT * FROM {self.table} LIMIT {number + 2}",
                        f"SELECT extent({self.layer}.geom)",
                    ]
                )
            )
            tool = "sql" if dense else self.pick(["sql", "sql", "run"])
            arguments: dict[str, Any] = {"dsn": DSN, "statement": statement}
            if tool == "run":
                arguments = {"argv": ["geoinfo", DSN, self.table, f"-limit={number}"]}
            text = f"FATAL: sorry, too many clients already (host gis-2, {self.stamp('clock')})"
            ok = self.rng.random() < 0.4
            facts = () if dense else (f"{tool} {arguments}",)
            self.call(tool, arguments, text, ok=ok, cause="db", place="in", facts=facts)
            if not dense:
                self.work(self.rng.choice((0, 1, 1, 2)))
        if self.rng.random() < 0.4:
            self.blocked.discard("db")
            self.call("run", {"argv": ["pool", "reset", "gis-2"]}, "exit=0\n41 idle sessions closed", facts=("pool",))
            self.features(self.layer, 5000)

    def wrong_axis_order(self) -> None:
        """The clip tool wants longitude first; box after box is given the other way round."""
        self.turned_boxes(self.rng.randint(4, 8))

    def axes_put_right(self) -> None:
        """Three empty clips, then the axes are in order."""
        self.turned_boxes(3)
        arguments = {"layer": self.layer, "bbox": [7.1, 52.2, 7.4, 52.4], "out": "clip_final.gpkg"}
        text = json.dumps({"ok": True, "written": self.rng.randint(90, 9000)})
        self.call("clip", arguments, text, facts=("clipped",), uses=("axis",), place="in", change=True)

    def two_other_styles(self) -> None:
        """How are other lines painted: a few looks, then back."""
        for layer in self.some(self.others, 2):
            self.style(layer)
            self.tile(layer, 9, 0, 0)
        self.work(6)

    def turned_boxes(self, count: int) -> None:
        """So many boxes with the latitude first."""
        for _ in range(count):
            south, west = round(self.rng.uniform(51, 55), 2), round(self.rng.uniform(6, 12), 2)
            box = [south, west, round(south + 0.2, 2), round(west + 0.3, 2)]
            arguments = {"layer": self.layer, "bbox": box, "out": f"clip_{self.hexid(3)}.gpkg"}
            body = {
                "ok": True,
                "written": 0,
                "problem": {"code": "BBOX_ORDER", "hint": "bbox outside of data: check axis order"},
            }
            tool = self.pick(["clip", "clip", "extract"])
            ok = self.rng.random() < 0.7
            self.call(tool, arguments, json.dumps(body), ok=ok, cause="axis", place="in", facts=(f"box {box}",))
            self.work(self.rng.choice((0, 1, 1, 2)))

    def tile_server_gone(self) -> None:
        """The tile server cannot be reached."""
        self.blocked.add("tiles")
        for number in range(self.rng.randint(4, 8)):
            zoom = self.rng.randint(8, 11)
            arguments: dict[str, Any] = {"z": zoom, "x": self.x + number, "y": self.y, "layer": self.layer}
            tool, text = "tile_head", "HTTP/2 502\nserver: edge\n\nno upstream (tiles-1:8081)"
            if self.rng.random() < 0.3:
                tool, arguments = (
                    "run",
                    {"argv": ["curl", "-sI", f"http://tiles-1:8081/{self.layer}/{zoom}/{self.x}/{number}.pbf"]},
                )
                text = "exit=7\ncurl: (7) Failed to connect to tiles-1 port 8081"
            self.call(
                tool, arguments, text, ok=self.rng.random() < 0.5, cause="tiles", place="in", facts=(f"{arguments}",)
            )
            self.work(self.rng.choice((0, 1, 1, 2)))

    def other_layers_repaired(self) -> None:
        """Shapes in the tables of other layers are changed."""
        dense = self.rng.random() < 0.4
        for layer in self.some(self.others, self.rng.randint(4, 6)):
            if dense:
                self.invalid(layer)
                self.features(layer, 1000)
            fid = self.rng.randint(1000, 9900)
            statement = f"UPDATE {self.region}.{layer} SET geom = make_valid(geom) WHERE fid = {fid}"
            self.sql(statement, [(fid,)], f"mended {layer} {fid}", layer=layer, change=True)
            self.work(1 if dense else 2)

    def styles_of_the_whole_map(self) -> None:
        """The paint of layers that nobody spoke of."""
        for layer in self.some(self.others, self.rng.randint(4, 7)):
            if self.rng.random() < 0.3:
                self.style(layer)
            self.restyle(layer, self.pick(["width", "opacity"]), self.rng.randint(1, 9) / 4)
            self.work(self.rng.choice((1, 2)))

    def tiles_of_all_layers(self) -> None:
        """Tiles and features of other layers are looked at, one after the other."""
        for layer in self.some(self.others, self.rng.randint(4, 5)):
            self.tile(layer, 10, 0, 0)
            self.features(layer, 1000)
            self.style(layer)

    # Look-alikes.

    def neighbouring_tiles(self) -> None:
        """Tiles whose addresses differ in one digit."""
        for number in range(self.rng.randint(6, 9)):
            self.tile(self.layer, 11, 4 + number, 5)

    def renderer_warms_up(self) -> None:
        """Nothing moves for some looks, then it does."""
        arguments = {"pool": "blue"}
        for _ in range(self.rng.randint(4, 8)):
            text = f"pool blue: starting, 0 workers ({self.stamp('clock')})"
            self.call(
                "render_pool", arguments, text, facts=("pool starts",), watch="pool", gap=self.rng.uniform(24, 75)
            )
        self.call("render_pool", arguments, "pool blue: 4 workers", facts=("pool runs",), gap=33)

    def lock_retries(self) -> None:
        """The table is locked; longer pauses, then it works."""
        gap, arguments = 4.0, {"dsn": DSN, "statement": f"REINDEX TABLE {self.table}"}
        for _ in range(self.rng.randint(3, 4)):
            text = "ERROR: lock timeout"
            self.call("sql", arguments, text, ok=False, cause="lock", gap=gap, place="in")
            gap *= self.rng.uniform(1.7, 2.4)
        self.call(
            "sql", arguments, "REINDEX", facts=("reindexed",), uses=("lock", "db"), gap=gap, place="in", change=True
        )

    def bisecting_the_import(self) -> None:
        """Which survey sheet broke the layer."""
        low, high = 1, 256
        bad = self.rng.randint(1, 255)
        while low < high:
            middle = (low + high) // 2
            fine = bad > middle
            text = f"sheets {low}-{middle}: {'valid' if fine else 'invalid'}"
            self.call("sheet_check", {"from": low, "to": middle}, text, facts=(text,), ok=fine)
            low, high = (middle + 1, high) if fine else (low, middle)

    def syntax_and_more(self) -> None:
        """Three failures of three causes."""
        arguments = {"dsn": DSN, "statement": f"SELEC extent FROM {self.table}"}
        self.call("sql", arguments, 'ERROR: syntax error at "SELEC"', ok=False, cause="typo", place="in")
        arguments = {"dsn": DSN, "statement": f"SELECT extent FROM {self.table}"}
        self.call("sql", arguments, "ERROR: column extent does not exist", ok=False, cause="column", place="in")
        arguments = {"dsn": DSN, "statement": f"SELECT st_extent(geom) FROM {self.table} WHERE srid = 'x'"}
        self.call("sql", arguments, "ERROR: invalid integer: x", ok=False, cause="integer", place="in")
        arguments = {"dsn": DSN, "statement": f"SELECT st_extent(geom) FROM {self.table}"}
        self.call("sql", arguments, "BOX(6.1 51.2,9.4 53.8)", facts=("extent",), uses=("db",), place="in")

    def colours_referred_to(self) -> None:
        """The palette entries that styles use."""
        if f"style {self.layer}" not in self.seen:
            self.style(self.layer)
        for name in self.some(COLOURS, self.rng.randint(5, 7)):
            self.palette(name)

    def zooms_in_one_turn(self) -> None:
        """Five probes at once with the same verdict."""
        with self.turn():
            for zoom in range(7, 12):
                arguments = {"layer": self.layer, "zoom": zoom}
                self.call("tile_probe", arguments, "ok", facts=(f"probe {zoom}",), place="in")

    def what_is_there(self) -> None:
        """The map's other layers before the work begins."""
        for layer in self.some(self.others, self.rng.randint(5, 7)):
            self.style(layer)

    def episodes(self) -> dict[str, list[Callable[[], None]]]:
        return {
            "stalled": [
                self.count_in_other_words,
                self.width_to_and_fro,
                self.failed_render_asked_after,
                self.cache_that_does_not_empty,
            ],
            "cascading": [self.database_refuses, self.wrong_axis_order, self.tile_server_gone],
            "drifting": [self.other_layers_repaired, self.styles_of_the_whole_map, self.tiles_of_all_layers],
            "alike": [
                self.neighbouring_tiles,
                self.renderer_warms_up,
                self.lock_retries,
                self.bisecting_the_import,
                self.syntax_and_more,
                self.colours_referred_to,
                self.zooms_in_one_turn,
                self.axes_put_right,
                self.two_other_styles,
            ],
            "opening": [self.what_is_there],
        }


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Runs of an agent that looks after a map."""
    return produce(rng, KIND, Atlas)
