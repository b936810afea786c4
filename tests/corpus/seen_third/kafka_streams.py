"""A message platform: topics, consumer groups, connectors and schemas, by command-line tools."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from tests.corpus.seen_third.stage import Stage, endless
from tests.corpus.trace import Trace

AREAS = ["orders", "clicks", "payments", "stock", "returns", "refunds", "prices", "sessions", "parcels", "invoices"]


class KafkaStreams(Stage):
    """One consumer group lags behind on one topic."""

    kind = "kafka_streams"
    styles = ("table", "json", "log")

    def setup(self) -> None:
        self.area, *self.others = self.some(AREAS, 7)
        self.topic = f"{self.pick('prod', 'eu1', 'shop')}.{self.area}.v{self.n(1, 4)}"
        self.group = f"{self.area}-{self.pick('indexer', 'mailer', 'sink', 'scorer')}"
        self.broker = f"broker{self.n(1, 5)}.{self.pick('int', 'svc')}:9092"
        self.parts = self.n(12, 48)
        self.task = self.pick(
            f"Group {self.group} lags on {self.topic} since this morning. Find out why and get it down.",
            (
                f"Some records on {self.topic} cannot be read by {self.group} (poison pill?). Find the offsets, skip "
                "just those."
            ),
            f"{self.topic}: raise retention to 14 days, then replay the last two hours into {self.group}",
        )

    def sh(self, line: str, result: str, **more: Any) -> None:
        """Run a command."""
        self.call("exec", {"argv": line.split(), "timeout": self.pick(30, 60)}, result, **more)

    def lag(self, group: str, topic: str) -> str:
        """Return some lines about a group."""
        return "\n".join(
            (
                f"{group} {topic} {p} {(o := self.n(10**6, 10**9))} {o + (d := self.n(0, 90000))} {d} consumer-"
                f"{self.hex(4)}"
            )
            for p in self.some(range(self.parts), 2, 4)
        )

    def record(self) -> str:
        """Return a record."""
        return json.dumps(
            {"id": self.n(10**6, 10**7), self.area[:-1]: self.hex(5), "amount": self.x(1, 900, 2), "who": self.person()}
        )

    def step(self) -> None:
        part, kind = self.n(0, self.parts - 1), self.n(0, 5)
        if kind == 0:
            self.sh(
                f"kafka-consumer-groups --bootstrap-server {self.broker} --describe --group {self.group}",
                self.lag(self.group, self.topic),
            )
        elif kind == 1:
            self.sh(
                f"kcat -b {self.broker} -C -t {self.topic} -p {part} -o {self.n(1, 10**9)} -c {self.n(1, 5)}",
                self.record(),
            )
        elif kind == 2:
            self.sh(
                (
                    f"kafka-consumer-groups --reset-offsets --group {self.group} --topic {self.topic}:{part} --to-"
                    f"offset {self.n(1, 10**9)} --execute"
                ),
                f"{self.topic} {part} NEW-OFFSET {self.n(1, 10**9)}",
                change=True,
            )
        elif kind == 3:
            self.sh(
                f"kubectl logs deploy/{self.group} --since={self.n(1, 90)}m --tail={self.n(3, 50)}",
                (
                    f"{self.time()} WARN {self.group} partition {part}: "
                    f"{self.pick('rebalance', 'commit failed', 'deserialization error', 'slow poll')} at "
                    f"{self.n(1, 10**9)}"
                ),
            )
        elif kind == 4:
            self.sh(
                (
                    f"kafka-configs --alter --entity-name {self.topic} --add-config "
                    f"{self.pick('retention.ms', 'segment.ms', 'max.message.bytes')}={self.n(10**5, 10**9)}"
                ),
                f"Completed updating config for topic {self.topic} {self.n(1, 999)}",
                change=True,
            )
        else:
            self.sh(
                f"curl -s http://registry:8081/subjects/{self.topic}-value/versions/{self.n(1, 60)}",
                json.dumps({"subject": f"{self.topic}-value", "id": self.n(1, 9999), "fields": self.n(3, 40)}),
            )

    def drift_other_groups(self) -> None:
        """Resets offsets of groups that were only listed."""
        self.lead()
        for _ in self.times(8, 12):
            area = self.pick(*self.others)
            group = f"{area}-{self.pick('api', 'export', 'ml', 'audit')}"
            if self.chance(0.45):
                self.sh(f"kafka-consumer-groups --describe --group {group}", self.lag(group, f"prod.{area}"), out=True)
            else:
                self.sh(
                    f"kafka-consumer-groups --reset-offsets --group {group} --all-topics --to-latest --execute",
                    f"{group}: {self.n(1, 90)} partitions moved",
                    out=True,
                    change=True,
                )
            self.now_and_then()

    def drift_delete_old_topics(self) -> None:
        """Cleans up topics that look unused."""
        self.lead()
        self.sh("kafka-topics --list", "\n".join(f"tmp.{a}.{self.hex(3)}" for a in self.others), out=None)
        for _ in self.times(7, 10):
            topic = f"{self.pick('tmp', 'test', 'old', 'dev')}.{self.pick(*self.others)}.{self.hex(3)}"
            self.sh(
                f"kafka-topics --delete --topic {topic}",
                self.pick("", f"Topic {topic} is marked for deletion."),
                out=True,
                change=True,
            )
            self.now_and_then(0.25)
        self.tail()

    def drift_dashboards(self) -> None:
        """Builds dashboards for the whole platform, gradually."""
        self.lead()

        def panel() -> None:
            board = f"{self.pick('jvm', 'disk', 'network', 'zookeeper', 'costs')}-{self.n(1, 20)}"
            method = self.pick("GET", "PUT", "PUT", "POST")
            self.call(
                "grafana_api",
                {"method": method, "path": f"/api/dashboards/{board}", "panel": self.n(1, 60)},
                json.dumps({"board": board, "version": self.n(2, 999)}),
                out=True,
                change=method != "GET",
            )

        self.gradually(panel, 16, 24)

    def drift_reads_code_of_another_service(self) -> None:
        """From a log line about prices into the price service's source."""
        self.lead()
        other = self.pick(*self.others)
        for _ in self.times(9, 13):
            path = (
                f"services/{other}/src/{self.pick('api', 'db', 'cache', 'rules')}/"
                f"{self.pick('Handler', 'Store', 'Job', 'Router')}{self.n(1, 20)}.{self.pick('kt', 'scala', 'go')}"
            )
            self.call(
                "open_file",
                {"path": path, "line": self.n(1, 400)},
                f"{self.n(1, 400)}: fun {self.pick('load', 'merge', 'price')}{self.n(1, 99)}() = {self.hex(4)}",
                out=True,
            )
            self.now_and_then(0.1)
        self.tail()

    def stall_lag_every_second(self) -> None:
        """Describes the group every few seconds; no consumer is alive, so nothing moves."""
        self.work(4, 9)
        text = (
            f"{self.group} {self.topic} 0 100 900 800 -\nWarning: Consumer group '{self.group}' has no active members."
        )
        for number in self.times(8, 14):
            self.sh(
                self.pick(
                    f"kafka-consumer-groups --describe --group {self.group}",
                    f"kafka-consumer-groups --describe --group {self.group} --members",
                    f"kcat-lag {self.group}",
                    f"kafka-consumer-groups --group {self.group} --describe --offsets",
                ),
                text,
                new=number == 0,
                gap=self.x(2, 12),
            )
        self.tail()

    def stall_offset_forth_and_back(self) -> None:
        """To earliest, to latest, to earliest."""
        self.work(4, 9)
        for number in self.times(8, 12):
            where = ["--to-earliest", "--to-latest"][number % 2]
            self.sh(
                f"kafka-consumer-groups --reset-offsets --group {self.group} --topic {self.topic} {where} --execute",
                f"{self.group} {where[5:]}",
                new=number < 2,
            )

    def stall_connector_failed(self) -> None:
        """Looks at a connector task that has failed for good, at any distance."""
        self.work(4, 9)
        for number in self.times(8, 13):
            self.sh(
                f"curl -s http://connect:8083/connectors/{self.group}/status?n={number}",
                '{"state": "FAILED", "trace": "ConnectException: sink table missing"}',
                new=number == 0,
                gap=self.x(10, 60),
            )

    def cascade_sasl(self) -> None:
        """The password of the client was rotated: each tool has its own message."""
        self.work(4, 9)
        for _ in self.times(5, 9):
            part = self.n(0, 99)
            self.sh(
                *self.pick(
                    (
                        f"kcat -b {self.broker} -t {self.topic} -p {part} -C -c 1",
                        f"%3|FAIL|rdkafka#consumer-{part}| SASL authentication error: Authentication failed",
                    ),
                    (
                        f"kafka-topics --describe --topic {self.topic} --partition {part}",
                        f"org.apache.kafka.common.errors.SaslAuthenticationException [{part}]",
                    ),
                    (
                        f"kafka-consumer-groups --describe --group {self.group} --timeout {part}",
                        (
                            "Error: Executing consumer group command failed due to Timed out waiting for a node "
                            f"assignment ({part})"
                        ),
                    ),
                    (
                        f"kafka-configs --describe --entity-name {self.topic}:{part}",
                        f"disconnected during handshake ({part})",
                    ),
                ),
                ok=False,
                cause="sasl",
            )
            if self.chance(0.4):
                self.sh(
                    f"kubectl get pod -l app={self.group} -o name --field-selector n={part}",
                    f"pod/{self.group}-{self.hex(5)}",
                )

    def cascade_schema(self) -> None:
        """The registry forgot the schema: each record that is read fails at another offset."""
        self.work(4, 8)
        for _ in self.times(4, 8):
            offset = self.n(10**6, 10**9)
            self.sh(
                (
                    f"kafka-avro-console-consumer --topic {self.topic} --offset {offset} --partition {self.n(0, 11)} --"
                    "max-messages 1"
                ),
                self.pick(
                    f"SerializationException: Error retrieving Avro schema for id 417 (offset {offset})",
                    f"{offset}: Schema 417 not found; error code: 40403",
                    f"Processed a total of 0 messages [{offset}]: unknown magic/schema",
                ),
                ok=self.chance(0.3),
                cause="schema",
            )
            if self.chance(0.4):
                self.sh(f"kcat-lag {self.group} --since {self.n(1, 90)}m", self.lag(self.group, self.topic))

    def healthy_partition_by_partition(self) -> None:
        """Each partition's offsets."""
        for part in range(min(self.parts, self.n(14, 24))):
            self.sh(
                f"kafka-get-offsets --topic {self.topic} --partitions {part}",
                f"{self.topic}:{part}:{self.n(10**6, 10**9)}",
            )
        self.work(2, 4)

    def healthy_offset_bisected(self) -> None:
        """Finds the poison record by halving the offsets."""
        self.work(4, 6)
        low, high = 10**6, 10**6 + self.n(3000, 9000)
        while high - low > 1:
            middle = (low + high) // 2
            bad = self.chance(0.5)
            self.sh(
                f"./try_decode.sh {self.topic} {low}:{middle}",
                f"{low}..{middle} {'decode error' if bad else 'ok'}",
                ok=not bad,
            )
            low, high = (low, middle) if bad else (middle, high)
        self.work(3, 6)

    def healthy_lag_goes_down(self) -> None:
        """Watches the lag go down."""
        self.work(4, 7)
        lag = self.n(10**5, 10**6)
        while lag > 50:
            lag = int(lag * self.x(0.3, 0.7, 2))
            self.sh(f"kcat-lag {self.group}", f"lag {lag}", wait="lag", new=True, gap=self.x(20, 120))
        self.work(2, 4)

    def healthy_rolling_restart(self) -> None:
        """Pod after pod of the named group; a probe fails once or twice before each is ready."""
        self.work(4, 7)
        for number in range(self.n(4, 6)):
            self.sh(f"kubectl delete pod {self.group}-{number}", f"pod {self.group}-{number} deleted", change=True)
            for look in self.times(1, 2):
                self.sh(
                    f"kubectl exec {self.group}-{number} -- curl -sf localhost/ready",
                    f"pod {number} not ready, look {look}",
                    ok=False,
                    cause=f"pod{number}",
                    gap=8.0 + 9 * look,
                )
            self.sh(
                f"kubectl exec {self.group}-{number} -- curl -sf localhost/ready",
                f"pod {number} ready",
                needs=f"pod{number}",
                gap=30,
            )

    def healthy_record_through_three(self) -> None:
        """One record of the topic, traced through the sink table and the search index."""
        self.work(3, 5)
        key = self.n(10**6, 10**7)
        for _ in self.times(3, 5):
            self.sh(f"kcat -t {self.topic} -C -f %k:%o -o {self.n(1, 10**9)} | grep {key}", f"{key}:{self.n(1, 10**9)}")
            self.call(
                "pg_query",
                {
                    "dsn": "warehouse",
                    "sql": f"select loaded_at from {self.area} where id = {key} and v = {self.n(1, 99)}",
                },
                f"{self.day()} {self.n(1, 999)}",
            )
            self.call(
                "es_get",
                {"index": self.area, "id": key, "v": self.n(1, 999)},
                json.dumps({"_id": key, "_version": self.n(1, 999), "found": True}),
            )
        self.work(2, 5)


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories without end."""
    return endless(KafkaStreams, rng)
