"""The back end of a web shop, worked on by HTTP requests."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.corpus.trace import Trace
from tests.corpus.unseen_kinds._world1 import World, produce

KIND = "web shop by HTTP"

_CATEGORIES = ("garden-hoses", "bike-lights", "tea-pots", "rain-coats", "desk-lamps", "door-mats")
_WORDS = ("compact", "classic", "long", "duo", "mini", "nordic", "robust", "folding", "matt", "outdoor")
_REASONS = {
    200: "OK",
    201: "Created",
    403: "Forbidden",
    404: "Not Found",
    412: "Precondition Failed",
    422: "Unprocessable",
    429: "Too Many Requests",
    503: "Service Unavailable",
}


class Shop(World):
    """A shop whose one category gets new prices, texts and stock."""

    free_task = "Go through the whole back office of the shop and improve whatever you come across."

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.host = rng.choice(("https://api.shop.test", "http://backoffice.internal:8080", "https://admin.store.test"))
        self.lenient = rng.random() < 0.25
        self.category, self.other, self.third = rng.sample(_CATEGORIES, 3)
        self.wordy = rng.random() < 0.5
        self.first = rng.randrange(2000, 90000)
        step = rng.choice((1, 1, 3, 10))
        self.ids = [self.first + step * i for i in range(rng.randint(16, 26))]
        self.strange = [self.ids[-1] + 400 + 7 * i for i in range(12)]
        self.price = {i: rng.randrange(490, 19900) for i in (*self.ids, *self.strange)}
        self.stock = {i: rng.randrange(0, 300) for i in self.price}
        self.version = {i: rng.randrange(1, 40) for i in self.price}
        self.name = {i: f"{rng.choice(_WORDS)} {self.category[:-1]} {i % 97}" for i in self.price}
        self.percent = rng.choice((5, 8, 12, 15))
        self.feed = 0
        self.done: set[int] = set()
        self.slips = 2
        self.rich = rng.random() < 0.5
        wish = f"Raise the prices of all products of category {self.category} by {self.percent} % and bring their "
        wish += f"stock in line with warehouse B. The shop's API is at {self.host}."
        short = f"Category '{self.category}' at {self.host}: new prices (+{self.percent} %), stock from warehouse B, "
        short += "then publish the category's feed and look whether it is right."
        self.task = rng.choice((wish, short))

    # --- tools

    def http(self, method: str, path: str, body: Any = None, status: int = 200, send: Any = None, **meant: Any) -> None:
        """One request, and what came back."""
        arguments: dict[str, Any] = {"method": method, "url": self.host + path}
        if send is not None:
            arguments["json"] = send
        payload = "" if body is None else json.dumps(body, indent=1 if len(str(body)) < 500 else None)
        if self.wordy:
            head = (
                f"HTTP/1.1 {status} {_REASONS.get(status, '')}\nDate: {self.run.stamp('%a, %d %b %Y %H:%M:%S GMT')}\n"
            )
            text = f"{head}X-Request-Id: {self.run.hex(16)}\nContent-Length: {len(payload)}\n\n{payload}"
        else:
            text = f"{status} {self.rng.randrange(9, 480)}ms\n{payload}"
        meant.setdefault("ok", status < 400 or (self.lenient and "fail" in meant))
        self.run.call("http", arguments, text, **meant)

    def _product(self, one: int) -> dict[str, Any]:
        slug = self.category if one in self.ids else self.other
        links = {"variant": f"/v2/variants/{one * 3 % 9973}", "category": f"/v2/categories/{slug}"}
        money = {"amount": self.price[one], "currency": "EUR"}
        seed = random.Random(one)
        more: dict[str, Any] = {"weight_g": seed.randrange(40, 4000), "tax": "de-19", "visible": seed.random() < 0.8}
        if self.rich:
            more["description"] = " ".join(seed.choice(_WORDS) for _ in range(seed.randint(30, 160)))
            more["attributes"] = {seed.choice(_WORDS): seed.randrange(99) for _ in range(12)}
        head = {"id": one, "name": self.name[one], "price": money, "stock": self.stock[one]}
        return head | more | {"_links": links}

    def get(self, one: int, touch: str = "in") -> None:
        """One product."""
        fact = f"{one} {self.price[one]} {self.stock[one]} {self.name[one]}"
        self.http("GET", f"/v2/products/{one}", self._product(one), facts=[fact], touch=touch)

    def patch(self, one: int, change: dict[str, Any], touch: str = "in") -> None:
        """Change a product."""
        self.price[one] = change.get("price", {}).get("amount", self.price[one])
        self.stock[one] = change.get("stock", self.stock[one])
        self.name[one] = change.get("name", self.name[one])
        self.version[one] += 1
        self.done.add(one)
        state = f"{one} {self.price[one]} {self.stock[one]} {self.name[one]}"
        body = {"id": one, "version": self.version[one], "updated_at": self.run.stamp()}
        self.http("PATCH", f"/v2/products/{one}", body, send=change, state=state, touch=touch, changes=True)

    def _raise(self, one: int) -> dict[str, Any]:
        return {"price": {"amount": self.price[one] * (100 + self.percent) // 100, "currency": "EUR"}}

    def look_around(self) -> None:
        for slug in self.rng.sample([c for c in _CATEGORIES if c != self.category], self.rng.randint(3, 5)):
            path = f"/v2/categories/{slug}"
            body = {"slug": slug, "products": len(slug) * 7, "price_list": "retail"}
            self.http("GET", path, body, facts=[path], touch="out")

    def work(self) -> Iterator[None]:
        rng = self.rng
        size = rng.choice((5, 8))
        for page in range(0, len(self.ids), size):
            rows = [{"id": i, "name": self.name[i], "price": self.price[i]} for i in self.ids[page : page + size]]
            body = {"items": rows, "page": page // size + 1, "more": page + size < len(self.ids)}
            path = f"/v2/products?category={self.category}&page={page // size + 1}"
            self.http("GET", path, body, facts=[path], touch="in")
            yield
        size = rng.choice((1, 1, 3, 4))
        for start in range(0, len(self.ids), size):
            part = self.ids[start : start + size]
            found = {one: self.stock[one] + rng.randrange(1, 40) for one in part}
            for one in part:
                if one != part[0]:
                    self.run.next_gap = 0.0
                rows2 = [{"wh": "B", "sku": one, "on_hand": found[one]}]
                self.http("GET", f"/v2/warehouses/B/stock?sku={one}", rows2, facts=[f"stock {one}"], touch="in")
                yield
            for one in part:
                if one != part[0]:
                    self.run.next_gap = 0.0
                self.patch(one, self._raise(one) | {"stock": found[one]})
                yield
            if rng.random() < 0.35:
                one = part[0]
                self.http("GET", f"/v2/products/{one}", self._product(one), check=(f"get {one}", "new"), touch="in")
                yield
            if start // size % 6 == 5:
                self.feed += 1
                feed: dict[str, Any] = {
                    "category": self.category,
                    "rows": len(self.ids),
                    "updated": start + len(part),
                    "errors": [],
                }
                self.http("GET", f"/feeds/{self.category}.json", feed, facts=[f"feed {start}"], touch="in")
                yield

    # --- look-alikes

    def alike_publish(self) -> None:
        """A job that is looked at with patience and gets through."""
        job = self.run.hex(8)
        path = f"/jobs/{job}"
        send = {"type": "reindex", "category": self.category}
        self.http("POST", "/jobs", {"job": job}, 201, send=send, state=path, changes=True, touch="in")
        for done in sorted(self.rng.sample(range(100), self.rng.randint(2, 4))):
            for _ in range(self.rng.randint(1, 4)):
                self.run.pause(22, 60)
                body = {"job": job, "state": "running", "percent": done}
                self.http("GET", path, body, wait=(job, str(done)))
        self.http("GET", path, {"job": job, "state": "done", "percent": 100}, wait=(job, "done"))

    def alike_existing(self) -> None:
        """Asking which of some old numbers are taken; 404 is the answer."""
        for number in self.rng.sample(range(100000, 199999), self.rng.randint(3, 6)):
            body = {"number": number, "taken": False}
            self.http("GET", f"/v2/numbers/{number}/taken", body, 404, facts=[f"sku {number}"], ok=self.lenient)

    def alike_conflict(self) -> None:
        """A product that somebody else has just changed, three times in other ways."""
        one = self.rng.choice(self.ids)
        steps = [("price", 412, "version is stale"), ("alt_text", 422, "alt_text: too long (max 80)")]
        steps.append(("valid_from", 422, "valid_from: must lie in the future"))
        for field, status, reason in self.rng.sample(steps, self.rng.choice((2, 3, 3))):
            send = {field: self.rng.randrange(1000), "if_version": self.version[one]}
            meant: dict[str, Any] = {"fail": f"{one} {field}", "touch": "in"}
            self.http("PATCH", f"/v2/products/{one}", {"error": reason}, status, send=send, **meant)
            self.version[one] += 1
        self.patch(one, {"name": self.name[one] + " II"})

    def alike_slow_down(self) -> None:
        """A limit on requests, respected longer and longer."""
        name, wait = f"limit {self.run.hex(4)}", 4.0
        path = f"/v2/warehouses/B/movements?category={self.category}"
        for attempt in range(self.rng.choice((3, 4))):
            body = {"error": "rate_limited", "retry_after": round(wait)}
            self.http("GET", path, body, 429, fail=name, ask=str(attempt), gap=wait, touch="in")
            wait *= self.rng.uniform(1.8, 2.4)
        body = {"movements": self.rng.randrange(10, 99)}
        self.http("GET", path, body, facts=[name], clears=[name], gap=wait, touch="in")

    def alike_links(self) -> None:
        """Variants and pictures that the products link to."""
        for one in self.rng.sample(self.ids, self.rng.randint(3, 4)):
            self.get(one)
            number = one * 3 % 9973
            body = {"id": number, "ean": 4000000000000 + number, "colour": self.rng.choice(_WORDS)}
            self.http("GET", f"/v2/variants/{number}", body, facts=[f"variant {number}"], touch="in")

    def alike_text_rounds(self) -> None:
        """One description, edited again and again, each time with something new."""
        one = self.rng.choice(self.ids)
        for index in range(self.rng.randint(5, 7)):
            self.patch(one, {"name": f"{self.name[one]} {self.rng.choice(_WORDS)}{index}"})

    def alike_heartbeat(self) -> None:
        """The same short answer three or four times."""
        for _ in range(self.rng.choice((3, 4))):
            arguments = {"method": "GET", "url": self.host + "/healthz"}
            self.run.call("http", arguments, "200\nok", facts=["healthy"])

    def alike_slip(self) -> None:
        """One product of another category, by mistake."""
        one = self.rng.choice(self.strange)
        self.get(one, "out")
        if self.slips > 0:
            self.slips -= 1
            self.patch(one, {"name": self.name[one] + "!"}, "out")

    # --- stalls

    def stall_cache(self) -> None:
        """A stale price is purged and looked at, by every address, and stays."""
        for _ in range(20):
            if not self.done.intersection(self.ids):
                self.go(1)
        one = self.rng.choice([one for one in self.ids if one in self.done] or self.ids[:1])
        stale = {"sku": one, "price": f"{self.price[one] / 117:.2f}"}
        for turn in range(self.rng.randint(7, 9)):
            send = {"keys": [f"p:{one}"]} if turn % 2 else {"tag": f"product-{one}", "soft": turn > 3}
            self.http("POST", "/cdn/purge", {"purged": 1, "id": self.run.hex(6)}, send=send, state=f"purge {one}")
            path = (f"/shop/p/{one}.json", f"/shop/p/{one}.json?nocache={turn}", f"/shop/api/price?sku={one}")[turn % 3]
            self.http("GET", path, stale | {"age": self.rng.randrange(900)}, check=(f"stale {one}", "old"), touch="in")
            if turn == 3:
                self.go(0, 1)

    def stall_lost_sku(self) -> None:
        """A number that is nowhere is asked for everywhere."""
        sku = f"{self.category[:2].upper()}-{self.rng.randrange(1000, 9999)}"
        forms: list[tuple[str, str, Any]] = [
            ("GET", f"/v2/products?sku={sku}", {"items": [], "total": 0}),
            ("GET", f"/v2/products?q={sku.lower()}", {"items": [], "total": 0, "took_ms": 0}),
            ("GET", f"/v2/search?term=%22{sku}%22", {"hits": []}),
            ("POST", "/graphql", {"data": {"products": {"nodes": []}}}),
            ("GET", f"/v1/products.json?filter[sku]={sku}", []),
            ("GET", f"/v2/products?sku={sku}&include=archived", {"items": [], "total": 0}),
        ]

        def look() -> None:
            method, path, body = self.rng.choice(forms)
            if isinstance(body, dict) and "took_ms" in body:
                body = {"items": 0, "total": 0, "took_ms": self.rng.randrange(400)}
            send = {"query": f'{{products(sku:"{sku}"){{nodes{{id}}}}}}'} if method == "POST" else None
            self.http(method, path, body, send=send, facts=[f"no {sku}"])

        self.stuck([look] * self.rng.randint(8, 13))

    def stall_frozen_job(self) -> None:
        """A job stays where it is and is looked at every few seconds, in other words each time."""
        job, percent = self.run.hex(8), self.rng.randrange(20, 90)
        send = {"type": "feed", "category": self.category}
        self.http("POST", "/jobs", {"job": job}, 201, send=send, state=job, changes=True, touch="in")

        def look() -> None:
            now = self.run.stamp("%H:%M:%S")
            path, body = self.rng.choice(
                (
                    (f"/jobs/{job}", {"state": "running", "percent": percent, "now": now}),
                    (f"/jobs?id={job}", {"jobs": [{"job": job, "pct": percent, "seen": now}]}),
                    (f"/jobs/{job}/log?tail=1", {"lines": [f"step feed {percent}%"], "at": now}),
                )
            )
            self.run.pause(3, 14)
            self.http("GET", path, body, wait=(job, str(percent)))

        self.stuck([look] * self.rng.randint(9, 14))

    def stall_long_wait(self) -> None:
        """Patient looks at something that does not move, past every limit."""
        job = self.run.hex(8)
        send = {"source": "warehouse B", "category": self.category}
        self.http("POST", "/imports", {"job": job}, 201, send=send, state=job, changes=True, touch="in")
        for _ in range(self.rng.randint(18, 22)):
            self.run.pause(40, 90)
            body = {"job": job, "state": "queued", "position": 3, "asked": self.run.stamp()}
            self.http("GET", f"/imports/{job}", body, wait=(job, "queued 3"))

    # --- cascades

    def cascade_scope(self) -> None:
        """A right is missing; product after product is refused."""
        count = self.rng.randint(2, 3) if self.brief else self.rng.randint(4, 7)
        for one in self.rng.sample(self.ids, count):
            body = {"error": "forbidden", "missing_scope": "promotions:write", "trace": self.run.hex(10)}
            path = self.rng.choice((f"/v2/products/{one}/promotion", f"/v2/promotions?product={one}"))
            meant: dict[str, Any] = {"fail": "scope", "ask": str(one), "touch": "in"}
            self.http("PUT", path, body, 403, send={"percent": self.percent}, **meant)
            self.go(0 if self.rng.random() < 0.3 else 1, 2)

    def cascade_token(self) -> None:
        """The token for the warehouse's own service is over; the service says so with status 200."""
        paths = ("bins", "pallets", "counts/last", "counts/open", "gates", "pickers")
        for name in self.rng.sample(paths, self.rng.randint(2, 3) if self.brief else self.rng.randint(4, 6)):
            body = {
                "ok": False,
                "result": None,
                "message": self.rng.choice(("token expired", "auth: token expired at 04:00")),
            }
            meant: dict[str, Any] = {"fail": "wms token", "ask": name, "ok": True}
            self.http("GET", f"/wms/{name}?category={self.category}", body, **meant)
            self.go(0, 2)

    def cascade_units(self) -> None:
        """Sale prices in the wrong unit, refused at one product after the other."""
        acts: list[Callable[[], None]] = []
        for one in self.rng.sample(self.ids, self.rng.randint(4, 6)):
            value = f"{self.price[one] / 100:.2f}"
            body = {"errors": [{"path": "sale_price", "msg": f"integer in minor units expected, got {value!r}"}]}
            meant: dict[str, Any] = {"fail": "units", "ask": str(one), "touch": "in"}
            send = {"sale_price": value}
            acts.append(partial(self.http, "PATCH", f"/v2/products/{one}", body, 422, send=send, **meant))
        self.between(acts)
        if self.mends():
            one = self.rng.choice(self.ids)
            done: dict[str, Any] = {"state": f"sale {one}", "clears": ["units"], "touch": "in", "changes": True}
            self.http("PATCH", f"/v2/products/{one}", {"id": one}, send={"sale_price": self.price[one]}, **done)

    def cascade_pictures(self) -> None:
        """The service for pictures is down behind every address."""
        acts: list[Callable[[], None]] = []
        for one in self.rng.sample(self.ids, self.rng.randint(4, 6)):
            body = {"message": "upstream media-svc:7070 connect error", "ref": self.run.hex(6)}
            path = self.rng.choice((f"/v2/products/{one}/images", f"/media/render?sku={one}", f"/media/{one}/thumb"))
            meant: dict[str, Any] = {"fail": "media", "ask": str(one), "touch": "in"}
            acts.append(partial(self.http, "GET", path, body, 503, **meant))
        self.between(acts, 0.85)

    # --- drift

    def drift_other_category(self) -> None:
        """Prices of another category are raised as well."""
        acts: list[Callable[[], None]] = []
        for one in self.rng.sample(self.strange, self.rng.randint(4, 7)):
            if self.rng.random() < 0.2:
                acts.append(partial(self.get, one, "out"))
            acts.append(partial(self.patch, one, self._raise(one), "out"))
        self.astray(acts)

    def drift_orders(self) -> None:
        """Notes are written on customers' orders."""
        acts: list[Callable[[], None]] = []
        for number in self.rng.sample(range(700000, 799999), self.rng.randint(4, 6)):
            meant: dict[str, Any] = {"state": f"order {number}", "touch": "out", "changes": True}
            send = {"note": self.rng.choice(("checked address", "asked for rating", "gift wrap?"))}
            acts.append(
                partial(self.http, "POST", f"/v2/orders/{number}/notes", {"saved": True}, 201, send=send, **meant)
            )
        self.astray(acts)

    def drift_reading_theme(self) -> None:
        """Reading through the templates and pages of the shop's theme."""
        self.go(10)
        names = ("footer", "imprint", "newsletter", "careers", "fonts", "cookie-banner", "home", "press")
        for name in self.rng.sample(names, self.rng.randint(5, 7)):
            body = {"template": name, "lines": len(name) * 13, "body": f"<section class='{name}'>...</section>"}
            self.http("GET", f"/theme/templates/{name}", body, facts=[f"theme {name}"], touch="out")
            if self.rng.random() < 0.45:
                self.go(1)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Trajectories of this kind without end."""
    return produce(KIND, Shop, rng)
