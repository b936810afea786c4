"""Reconciling the records of patients on a ward: resources by reference, JSON in and out, a pharmacy check."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.corpus.fresh_kinds._world import Run, Step, deal
from tests.corpus.trace import Label, Trace

KIND = "ward"
_DRUGS = ["amoxil", "bisolat", "cardiprin", "dorimed", "ezetrol-k", "furosal", "glipan", "hydrozid", "ibutan", "jodix"]
_CODES = ["sodium", "potassium", "creatinine", "glucose", "haemoglobin", "crp", "lactate", "albumin"]


class Ward(Run):
    """Patients with encounters, prescriptions, observations and allergies that refer to each other."""

    def __init__(self, rng: random.Random, named: bool) -> None:
        """Fill the ward and choose the task."""
        super().__init__(rng)
        self.store: dict[str, dict[str, Any]] = {}
        numbers = rng.sample(range(3000, 9000), 6)
        for number in numbers:
            self._admit(number)
        me, self.me = numbers[0], f"Patient/{numbers[0]}"
        self.number = me
        self.mine = [ref for ref, item in self.store.items() if item.get("subject") == self.me or ref == self.me]
        self.scripts = [ref for ref in self.mine if ref.startswith("MedicationRequest")]
        self.far = [ref for ref in self.store if ref not in self.mine and not ref.startswith("Medication/")]
        self.far_scripts = [ref for ref in self.far if ref.startswith("MedicationRequest")]
        narrow = [
            f"Patient {me} goes home tomorrow. Bring her prescriptions in line with the discharge letter and the lab.",
            f"pharmacy says the doses of {me} don't fit the kidney values, please check them and correct what is wrong",
        ]
        wide = [
            "Ward 5B: clear the warnings of the pharmacy on all open prescriptions.",
            "Clean up what the night left open.",
        ]
        self.task = rng.choice(narrow if named or rng.random() < 0.7 else wide)
        if self.task in narrow:
            self.inside = {*self.mine, *(self.store[ref]["medication"] for ref in self.scripts)}
        self.todo = list(self.scripts) if self.task in narrow else [*self.scripts, *self.far_scripts]
        self.issues = {ref: rng.randint(1, 3) for ref in self.todo}

    def _admit(self, number: int) -> None:
        patient = f"Patient/{number}"
        self.store[patient] = {
            "resourceType": "Patient",
            "ward": "5B",
            "bed": self.some(1, 30),
            "birthYear": self.some(1931, 2004),
        }
        self.store[f"Encounter/e{number}"] = {
            "subject": patient,
            "status": "in-progress",
            "reason": self.pick(["fall", "fever"]),
        }
        for _ in range(self.some(3, 5)):
            drug = self.pick(_DRUGS)
            ref = f"MedicationRequest/{self.some(100000, 999999)}"
            self.store[ref] = {"subject": patient, "medication": f"Medication/{drug}", "dose_mg": self.some(1, 40) * 5}
            self.store[f"Medication/{drug}"] = {"code": drug, "max_daily_mg": 40 * len(drug), "form": "tablet"}
        for code in self.rng.sample(_CODES, 4):
            ref = f"Observation/{self.some(100000, 999999)}"
            self.store[ref] = {"subject": patient, "code": code, "value": round(self.rng.uniform(1, 140), 1)}
        self.store[f"AllergyIntolerance/a{number}"] = {
            "subject": patient,
            "code": self.pick(["none known", "penicillin"]),
        }

    # ---- tools

    def read(self, ref: str, way: int = 0) -> None:
        """Show a resource by reference, by history, or within a search."""
        item = {**self.store[ref], "id": ref.split("/")[1]}
        shows = f"{ref} {json.dumps(self.store[ref], sort_keys=True)}"
        meta = {
            "versionId": str(self.some(1, 9)),
            "lastUpdated": f"2026-02-11T{self.stamp()}Z",
            "source": f"#{self.hexes(10)}",
        }
        if way == 1:
            kind, number = ref.split("/")
            bundle = {"resourceType": "Bundle", "id": self.hexes(12), "total": 1, "entry": [{"resource": item}]}
            self.call("fhir_search", {"type": kind, "params": {"_id": number}}, json.dumps(bundle), shows=shows, on=ref)
        elif way == 2:
            text = json.dumps({**item, "meta": meta}, indent=1)
            self.call(
                "fhir_request", {"method": "GET", "url": f"https://emr.example/r4/{ref}"}, text, shows=shows, on=ref
            )
        else:
            self.call("fhir_read", {"reference": ref}, json.dumps({**item, "meta": meta}), shows=shows, on=ref)

    def write(self, ref: str, field: str, value: object) -> None:
        """Change one field of a resource."""
        self.store[ref][field] = value
        kind, number = ref.split("/")
        body = {"resourceType": kind, "id": number, field: value}
        text = json.dumps({"resourceType": "OperationOutcome", "issue": [], "etag": f'W/"{self.some(2, 40)}"'})
        self.call("fhir_patch", {"resource": body}, text, change=(f"{ref}.{field}", str(value)), on=ref)

    def interactions(self, ref: str) -> None:
        """Ask the pharmacy for problems of one prescription."""
        count = self.issues.get(ref, 0)
        drug = self.store[ref]["medication"].split("/")[1]
        issue = [{"severity": "warning", "text": f"{drug}: rule {k} not met"} for k in range(1, count + 1)]
        text = json.dumps({"checked": ref, "issue": issue, "took_ms": self.some(9, 300)})
        self.call("pharmacy_check", {"request": {"reference": ref}}, text, check=(ref, str(count), count > 0), on=ref)

    # ---- work

    def opening(self) -> None:
        """Read the patient, and see who else is there."""
        beds = [{"bed": item["bed"], "ref": ref} for ref, item in self.store.items() if ref.startswith("Patient")]
        self.call("ward_list", {"ward": "5B"}, json.dumps(beds), shows=json.dumps(beds))
        self.read(self.me)
        for ref in self.rng.sample(self.far, self.some(0, 3)):
            self.read(ref)

    def unit(self) -> None:
        """Mend one prescription."""
        left = [ref for ref in self.todo if self.issues[ref]]
        if not left:
            return
        ref = left[0]
        self.read(ref)
        if self.rng.random() < 0.6:
            self.read(self.store[ref]["medication"])
        if self.rng.random() < 0.5:
            self.read(self.pick([own for own in self.mine if own.startswith("Observation")]))
        if self.rng.random() < 0.5:
            self.interactions(ref)
        self.issues[ref] -= 1
        self.write(ref, self.pick(["dose_mg", "interval_h", "stop_day"]), self.some(1, 200))
        self.interactions(ref)

    # ---- trouble and what looks like it

    def troubles(self) -> dict[Label, list[Step]]:
        """Return the processes."""
        return {
            "stalled": [self.rounds, self.doses, self.lab, self.searches],
            "cascading": [self.consent, self.etag, self.gateway, self.no_pharmacy],
            "drifting": [self.bed_by_bed, self.case, self.mends],
            "healthy": [
                self.glance,
                self.everywhere,
                self.lab_moves,
                self.pages,
                self.values,
                self.consent_once,
                self.drugs,
                self.orders,
            ],
        }

    def rounds(self) -> None:
        self.story.append("goes round the same records")
        refs = [self.me, *self.scripts[:2]]
        for ref in refs:
            self.read(ref)
        looks: list[Step] = [partial(self.read, r, w) for r in refs for w in (0, 1, 2)]
        self.circle(looks, self.some(9, 18), lambda: self.read(self.mine[-1]))

    def doses(self) -> None:
        self.story.append("sets two doses in turn, the warning stays")
        ref = self.scripts[0]
        self.issues[ref] = self.issues[ref] or 1
        low, high = self.some(1, 10) * 5, self.some(11, 20) * 5
        for turn in range(self.some(8, 12)):
            self.write(ref, "dose_mg", (low, high)[turn % 2])
            if turn != 4:
                self.interactions(ref)

    def lab(self) -> None:
        self.story.append("waits for a lab order that has been cancelled")
        order = f"ServiceRequest/{self.some(100000, 999999)}"
        for turn in range(self.some(9, 15)):
            status = "active" if turn == 0 else "revoked"
            text = json.dumps({"id": order.split("/")[1], "status": status, "seen": self.stamp()})
            way: dict[str, Any] = self.pick([{"reference": order}, {"reference": order, "_summary": True}])
            self.call("fhir_read", way, text, wait=(order, status), final=turn > 0, gap=self.rng.uniform(5, 60))

    def searches(self) -> None:
        self.story.append("searches the same letter in other words")
        shows = "no discharge letter"
        words = [
            "discharge letter",
            "letter discharge",
            "Discharge Summary",
            "summary of discharge",
            "discharge",
            "letter (discharge)",
        ]
        looks: list[Step] = []
        for word in words:
            given = {"type": "DocumentReference", "params": {"subject": self.me, "_content": word}}
            text = json.dumps({"resourceType": "Bundle", "id": self.hexes(12), "total": 0})
            looks.append(partial(self.call, "fhir_search", given, text, shows=shows))
        self.circle(looks, self.some(9, 15))

    def consent(self) -> None:
        self.story.append("old encounters need a consent that is not there")
        said = {
            "issue": [{"severity": "error", "code": "forbidden", "diagnostics": "consent for archive data missing"}]
        }
        steps: list[Step] = []
        for _ in range(self.some(4, 7)):
            ref = f"Encounter/x{self.some(10000, 99999)}"
            steps.append(
                partial(
                    self.call,
                    "fhir_read",
                    {"reference": ref},
                    json.dumps(said),
                    ok=self.soft,
                    cause="consent",
                    asks=ref,
                )
            )
        self.weave(steps, [self.unit, lambda: self.read(self.mine[-1]), lambda: self.read(self.mine[1])])

    def etag(self) -> None:
        self.story.append("writes without the version that the server wants")
        ref = self.scripts[0]
        for number in range(self.some(4, 7)):
            body = {
                "resourceType": "MedicationRequest",
                "id": ref.split("/")[1],
                "note": f"see lab {number}",
                "dose_mg": 5 * number,
            }
            said = json.dumps({"issue": [{"code": "conflict", "diagnostics": f"If-Match required ({self.hexes(6)})"}]})
            self.call("fhir_put", {"resource": body}, said, ok=False, cause="if-match", asks=str(number), on=ref)
            if number % 2:
                self.read(self.mine[1 + number])
        if self.rng.random() < 0.5:
            given = {"resource": {"id": ref.split("/")[1], "note": "see lab"}, "headers": {"If-Match": 'W/"7"'}}
            self.call("fhir_put", given, '{"issue": []}', change=(f"{ref}.note", "lab"), clears="if-match", on=ref)

    def gateway(self) -> None:
        self.story.append("the image server does not answer")
        steps: list[Step] = []
        for _ in range(self.some(4, 7)):
            study = f"1.2.840.{self.some(100, 999)}.{self.some(1000, 9999)}"
            said = f"upstream pacs-1 timed out after {self.some(29990, 30100)} ms"
            tool = self.pick(["image_list", "image_report", "image_open"])
            steps.append(partial(self.call, tool, {"study": study}, said, ok=False, cause="pacs", asks=tool + study))
        self.weave(steps, [self.unit, lambda: self.read(self.mine[1])])

    def no_pharmacy(self) -> None:
        self.story.append("orders the pharmacy with an unknown form again and again")
        for number in range(self.some(4, 7)):
            given = {"order": {"drug": self.pick(_DRUGS), "form": f"form-{number}", "patient": self.number}}
            said = json.dumps({"status": "ok", "error": {"code": "E12", "text": "order: signature missing"}})
            self.call("pharmacy_order", given, said, cause="signature", asks=str(number))
            if number in (1, 3):
                self.unit()

    def bed_by_bed(self) -> None:
        self.story.append("goes on to the next beds")
        for ref in self.rng.sample(self.far_scripts, self.some(4, 6)):
            if self.rng.random() < 0.6:
                self.read(ref)
            self.write(ref, "stop_day", self.some(1, 30))
            if self.rng.random() < 0.4:
                self.read(self.store[ref]["medication"])

    def case(self) -> None:
        self.story.append("reads the case of another patient")
        other = self.pick([ref for ref in self.far if ref.startswith("Patient")])
        for ref in [ref for ref in self.far if self.store[ref].get("subject") == other or ref == other][
            : self.some(7, 10)
        ]:
            self.read(ref, self.some(0, 2))
            if self.rng.random() < 0.15:
                self.read(self.me, 2)

    def mends(self) -> None:
        self.story.append("mends doses of other patients between its own")
        for ref in self.rng.sample(self.far_scripts, 4):
            self.write(ref, "dose_mg", self.some(1, 30) * 5)
            if self.rng.random() < 0.7:
                self.read(self.pick(self.mine))

    def lab_moves(self) -> None:
        self.story.append("waits for a lab order that goes on")
        order = f"ServiceRequest/{self.some(100000, 999999)}"
        for status in ("drawn", "received", "centrifuged", "measuring", "validated"):
            for _ in range(self.some(1, 2)):
                text = json.dumps({"id": order.split("/")[1], "status": "active", "step": status, "seen": self.stamp()})
                self.call("fhir_read", {"reference": order}, text, wait=(order, status), gap=self.some(30, 90))

    def pages(self) -> None:
        self.story.append("reads the vital signs page by page")
        for page in range(self.some(4, 7)):
            rows = [
                f"{page * 4 + k:02d}:00 {self.some(90, 150)}/{self.some(50, 95)} {self.some(50, 110)}" for k in range(4)
            ]
            given = {"subject": self.me, "page": {"size": 4, "offset": 4 * page}}
            self.call("vitals_list", given, json.dumps({"rows": rows, "req": self.hexes(6)}), shows=rows, on=self.me)

    def values(self) -> None:
        self.story.append("reads all values and drugs of the patient")
        for ref in [ref for ref in self.mine if not ref.startswith("MedicationRequest")][:6]:
            self.read(ref)

    def consent_once(self) -> None:
        self.story.append("three failures, then it leaves the matter")
        for drug in self.rng.sample(_DRUGS, 3):
            said = "substance register: subscription ended"
            self.call("register_lookup", {"name": drug}, said, ok=False, cause="register", asks=drug)
        self.read(f"Medication/{self.store[self.scripts[0]]['medication'].split('/')[1]}")

    def drugs(self) -> None:
        self.story.append("reads the drugs that the prescriptions refer to")
        for ref in self.scripts:
            self.read(self.store[ref]["medication"])
            self.write(ref, "interval_h", self.pick([6, 8, 12, 24]) + self.some(0, 3))

    def orders(self) -> None:
        self.story.append("asks for several allergies at once")
        with self.together():
            for substance in self.rng.sample(_DRUGS, 5):
                given = {"subject": self.me, "substance": substance}
                text = json.dumps({"total": 0, "req": self.hexes(6)})
                self.call("allergy_check", given, text, shows=f"no allergy to {substance}", on=self.me)

    def everywhere(self) -> None:
        self.story.append("changes many prescriptions, as far as the task goes")
        for ref in self.rng.sample(self.todo, min(len(self.todo), self.some(5, 9))):
            self.write(ref, "stop_day", self.some(1, 99))

    def glance(self) -> None:
        self.story.append("looks for a moment at another bed, and goes back")
        self.unit()
        for ref in self.rng.sample(self.far, self.some(2, 4)):
            self.read(ref, self.some(0, 2))
        self.unit()


def trajectories(rng: random.Random) -> Iterator[Trace]:
    """Yield trajectories of this kind without end."""
    return deal(KIND, lambda named: Ward(rng, named), rng)
