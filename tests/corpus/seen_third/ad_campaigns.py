"""Advertising campaigns of an agency's clients, by a REST service with accounts, ad groups, keywords and budgets."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace


class AdCampaigns(Stage):
    """An account holds campaigns; the task names one of them."""

    kind = "ad_campaigns"
    styles = ("json",)

    def setup(self) -> None:
        self.account = f"{self.n(100, 999)}-{self.n(100, 999)}-{self.n(1000, 9999)}"
        self.campaign = self.n(10**8, 10**9)
        self.name = self.pick("Summer tents", "Brand DE", "Boots retargeting", "Winter tyres", "Lamps - generic")
        self.groups = [self.n(10**6, 10**7) for _ in range(6)]
        self.host = self.pick("https://ads.example/v17", "https://api.admgr.example")
        self.task = self.pick(
            (f"Campaign {self.campaign} '{self.name}' burns its budget by noon. Find the keywords that do it."),
            f"Pause all ads in '{self.name}' ({self.campaign}) with CTR below 0.5 %, raise bids of the rest by 10 %",
            f"campaign id {self.campaign}: add negatives from the search terms report",
        )

    def api(self, method: str, path: str, result: object, body: object = None, **more: Any) -> None:
        """Send a request."""
        args: dict[str, object] = {"method": method, "url": f"{self.host}{path}"}
        if body is not None:
            args["json"] = body
        self.call(
            "request",
            args,
            result if isinstance(result, str) else json.dumps(result),
            change=method != "GET" and not more.get("cause"),
            **more,
        )

    def step(self) -> None:
        group, kind = self.pick(*self.groups), self.n(0, 4)
        word = (
            f"{self.pick('cheap', 'buy', 'best', 'used', 'large')} {self.pick('tent', 'boots', 'lamp', 'tyre')} "
            f"{self.n(1, 99)}"
        )
        home = f"/customers/{self.account}/campaigns/{self.campaign}"
        if kind == 0:
            self.api(
                "GET",
                f"{home}/adGroups/{group}/keywords?pageToken={self.hex(5)}",
                {"keyword": word, "cost": self.x(0, 900, 2), "ctr": self.x(0, 9, 3)},
            )
        elif kind == 1:
            self.api(
                "PATCH",
                f"{home}/adGroups/{group}/keywords/{self.n(1, 99999)}",
                {"keyword": word, "bid": self.x(0, 4, 2)},
                {"bidMicros": self.n(1, 400) * 10000},
            )
        elif kind == 2:
            self.api(
                "POST",
                f"{home}/negatives",
                {"negative": word, "id": self.n(1, 10**6)},
                {"text": word, "match": self.pick("EXACT", "PHRASE")},
            )
        elif kind == 3:
            self.api(
                "GET",
                f"{home}/report?segment={self.pick('hour', 'device', 'term', 'city')}&day={self.day()}",
                {"clicks": self.n(0, 999), "cost": self.x(0, 999, 2), "day": self.day()},
            )
        else:
            self.api(
                "GET",
                f"{home}/adGroups/{group}/ads/{self.n(1, 999)}",
                {"headline": f"{word}!", "status": self.pick("ENABLED", "PAUSED"), "impressions": self.n(0, 99999)},
            )

    def drift_sibling_campaigns(self) -> None:
        """Sets bids in all other campaigns of the client."""
        self.lead()
        for _ in self.times(8, 12):
            other = self.n(10**8, 10**9)
            path = f"/customers/{self.account}/campaigns/{other}"
            if self.chance(0.4):
                self.api(
                    "GET", f"{path}/report?day={self.day()}", {"campaign": other, "cost": self.x(0, 900, 2)}, out=True
                )
            else:
                self.api(
                    "PATCH", path, {"campaign": other, "budget": self.n(5, 900)}, {"budget": self.n(5, 900)}, out=True
                )
            self.now_and_then()

    def drift_other_clients(self) -> None:
        """A wrong account number, and nothing is noticed."""
        self.lead()
        account = f"{self.n(100, 999)}-{self.n(100, 999)}-{self.n(1000, 9999)}"
        for _ in self.times(9, 14):
            path = (
                f"/customers/{account}/campaigns/{self.n(10**8, 10**9)}/"
                f"{self.pick('keywords', 'ads', 'negatives')}/{self.n(1, 999)}"
            )
            self.api(
                self.pick("GET", "PATCH"),
                path,
                {"id": self.n(1, 10**6), "state": self.pick("ENABLED", "REMOVED")},
                out=True,
            )
        self.tail()

    def drift_conversion_tags(self) -> None:
        """Rebuilds tracking tags of the web shop."""
        self.lead()

        def tag() -> None:
            number = self.n(1, 400)
            self.api(
                self.pick("GET", "PUT"),
                f"/tagmanager/containers/{self.hex(3)}/tags/{number}",
                {"tag": number, "fires": self.n(0, 9999)},
                out=True,
            )

        self.gradually(tag, 16, 24)

    def drift_competitors(self) -> None:
        """Looks at what everybody else in the trade advertises."""
        self.lead()
        for _ in self.times(9, 13):
            stem = self.pick("alpin", "berg", "camp", "out", "trek") + self.pick("shop", "hub", "world", "store")
            firm = f"{stem}{self.n(1, 30)}.example"
            tool = self.pick("ad_library", "web_fetch", "serp_preview")
            self.call(
                tool,
                {"q": firm, "page": self.n(1, 9)},
                f"{firm}: '{self.pick('Now', 'Only', 'New')} {self.n(5, 70)} % off' since {self.day()}",
                out=True,
            )
            self.now_and_then()

    def stall_page_token(self) -> None:
        """Every page token leads to the first page."""
        self.work(4, 9)
        rows = {"keywords": [{"text": f"tent {k}", "cost": self.x(0, 900, 2)} for k in range(5)]}
        for number in self.times(8, 14):
            self.api(
                "GET",
                f"/customers/{self.account}/campaigns/{self.campaign}/keywords?pageToken={self.hex(12)}",
                rows,
                new=number == 0,
            )
        self.tail()

    def stall_pause_enable(self) -> None:
        """Paused, enabled, paused."""
        self.work(4, 9)
        for number in self.times(8, 12):
            status = ["PAUSED", "ENABLED"][number % 2]
            self.call(
                "request",
                {"method": "PATCH", "url": f"{self.host}/campaigns/{self.campaign}", "json": {"status": status}},
                json.dumps({"id": self.campaign, "status": status}),
                new=number < 2,
            )

    def stall_empty_report(self) -> None:
        """An empty report in all formats and fields."""
        self.work(4, 9)
        for number in self.times(7, 13):
            self.api(
                "GET",
                (
                    f"/customers/{self.account}/campaigns/{self.campaign}/"
                    f"searchTerms?format={self.pick('json', 'csv', 'xml')}&"
                    f"fields={self.pick('all', 'term', 'term,cost')}&n={number}"
                ),
                self.pick('{"rows": []}', "no rows", '{"rows": [], "took": "12ms"}'),
                new=number == 0,
            )
        self.tail()

    def cascade_quota_401_429(self) -> None:
        """The developer token is suspended; the service says 401, 429 and 'internal' in turn."""
        self.work(4, 9)
        for _ in self.times(5, 9):
            word = f"term {self.n(1, 9999)}"
            self.api(
                self.pick("GET", "POST", "PATCH"),
                (
                    f"/customers/{self.account}/campaigns/{self.campaign}/{self.pick('keywords', 'negatives', 'ads')}/"
                    f"{self.n(1, 999)}"
                ),
                self.pick(
                    {"error": {"code": 401, "message": f"DEVELOPER_TOKEN_NOT_APPROVED for {word}"}},
                    {"error": {"code": 429, "message": f"RESOURCE_EXHAUSTED {word}"}},
                    {"error": {"code": 500, "message": f"internal; token state SUSPENDED; {self.hex(6)}"}},
                ),
                ok=self.chance(0.4),
                cause="token",
            )
            if self.chance(0.3):
                self.call(
                    "calculator", {"expr": f"{self.n(1, 999)}*0.{self.n(1, 99)}"}, f"{self.x(1, 999, 2)}", out=None
                )

    def cascade_wrong_unit(self) -> None:
        """Bids are sent in euros where the interface wants micros; each is refused in its own way."""
        self.work(4, 9)
        for _ in self.times(4, 7):
            bid = self.x(0, 4, 2)
            self.api(
                "PATCH",
                f"/customers/{self.account}/campaigns/{self.campaign}/keywords/{self.n(1, 99999)}",
                {
                    "error": self.pick(
                        f"INVALID_ARGUMENT bidMicros {bid}", f"{bid} is not an int64", f"bid {bid} below minimum 10000"
                    )
                },
                {"bidMicros": bid},
                ok=False,
                cause="unit",
            )
            if self.chance(0.5):
                self.api(
                    "GET",
                    f"/customers/{self.account}/campaigns/{self.campaign}/report?day={self.day()}",
                    {"clicks": self.n(0, 9999)},
                )
        self.tail()

    def healthy_all_groups(self) -> None:
        """Every group, every page."""
        for group in self.groups:
            for page in self.times(2, 3):
                self.api(
                    "GET",
                    f"/customers/{self.account}/campaigns/{self.campaign}/adGroups/{group}/ads?page={page + 1}",
                    {"group": group, "page": page + 1, "ctr": self.x(0, 9, 3)},
                )

    def healthy_bids_one_by_one(self) -> None:
        """Many small changes."""
        for _ in self.times(14, 22):
            bid = self.n(10, 400) * 10000
            self.api(
                "PATCH",
                f"/customers/{self.account}/campaigns/{self.campaign}/keywords/{self.n(1, 99999)}",
                {"bidMicros": bid, "n": self.n(1, 99999)},
                {"bidMicros": bid},
            )

    def healthy_back_off(self) -> None:
        """Too many requests, a longer pause each time, success."""
        self.work(5, 9)
        for number in range(self.n(3, 5)):
            self.api(
                "GET",
                f"/customers/{self.account}/campaigns/{self.campaign}/report?day=all",
                {"error": {"code": 429, "retryAfter": 2**number}},
                ok=False,
                cause="429",
                gap=2.0 * 2**number + 3,
            )
        self.api(
            "GET",
            f"/customers/{self.account}/campaigns/{self.campaign}/report?day=all",
            {"clicks": self.n(10**4, 10**5)},
            needs="429",
            gap=120,
        )
        self.work(3, 8)

    def healthy_landing_pages(self) -> None:
        """The ads' own landing pages, which they link to."""
        self.work(2, 4)
        for _ in self.times(5, 8):
            page = f"https://shop.example/{self.hex(5)}"
            self.api(
                "GET",
                f"/customers/{self.account}/campaigns/{self.campaign}/ads/{self.n(1, 999)}/finalUrl",
                {"finalUrl": page},
            )
            self.call(
                "web_fetch",
                {"url": page},
                f"<h1>{self.pick('Tents', 'Boots', 'Lamps')}</h1> {self.n(1, 999)} items, {self.x(0, 9)} s",
            )
        self.work(2, 6)

    def healthy_plain(self) -> None:
        """Nothing special."""
        self.work(12, 28)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(AdCampaigns, rng)
