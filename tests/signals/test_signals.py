"""The rules and the dashboard of deploy/, held to what the processes really export."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from router.metrics import prediction_outcome
from tests.processes import ROOT
from tests.signals.exported import Exported, exported_by_a_fleet
from tests.signals.promql import Selector, named_in

RULES = ROOT / "deploy/prometheus/pointsman-rules.yaml"
RULES_TEST = ROOT / "deploy/prometheus/pointsman-rules-test.yaml"
DASHBOARD = ROOT / "deploy/grafana/pointsman.json"
PAGE = ROOT / "docs/practices/signals.md"

# What Prometheus adds to each sample, and makes by itself.
PROMETHEUS_LABELS = {"job", "instance"}
PROMETHEUS_METRICS = {"up"}
# What a small healthy fleet does not come to; these words are taken from where they are made.
OTHER_VALUES = {
    ("pointsman_predictions_total", "outcome"): {
        prediction_outcome(*pair) for pair in ((1, 1), (2, 1), (1, 2))
    },
    ("pointsman_prompt_token_counts_total", "outcome"): {"equal", "different"},
}


class Rule(msgspec.Struct, forbid_unknown_fields=True):
    """As Prometheus reads it; a misspelt key is an error there too."""

    expr: str
    record: str | None = None
    alert: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for_: str | None = msgspec.field(default=None, name="for")


class Group(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    rules: list[Rule]
    interval: str | None = None


class RuleFile(msgspec.Struct, forbid_unknown_fields=True):
    groups: list[Group]


def rules() -> list[Rule]:
    groups = msgspec.yaml.decode(RULES.read_bytes(), type=RuleFile).groups
    assert len({group.name for group in groups}) == len(groups)
    return [rule for group in groups for rule in group.rules]


def alerts() -> list[str]:
    return [rule.alert for rule in rules() if rule.alert is not None]


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Where it stands, and the expression as Prometheus is asked."""
    for rule in rules():
        yield f"rule {rule.alert or rule.record}", rule.expr
    for panel in panels():
        for target in panel["targets"]:
            yield f"panel {panel['title']!r}", as_asked(target["expr"])
    for annotation in dashboard()["annotations"]["list"]:
        if "target" in annotation:
            yield f"annotation {annotation['name']!r}", as_asked(annotation["target"]["expr"])


def as_asked(expression: str) -> str:
    """With Grafana's variables replaced as it does."""
    return expression.replace("$__rate_interval", "5m").replace("$job", ".*")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return exported_by_a_fleet(tmp_path_factory.mktemp("fleet"))


def test_every_metric_and_label_that_is_asked_for_exists(exported: Exported) -> None:
    """A metric that is renamed, or loses a label, fails here and not silently in production."""
    recorded = {rule.record for rule in rules()}
    wrong = []
    for where, expression in expressions():
        named = named_in(expression)
        assert named.selectors, where
        labels = set(PROMETHEUS_LABELS)
        for selector in named.selectors:
            if selector.name not in PROMETHEUS_METRICS | recorded:
                wrong += [f"{where}: {what}" for what in missing(selector, exported)]
            labels |= exported.metrics.get(selector.name, {}).keys()
        unknown = any(s.name in exported.without_samples for s in named.selectors)
        if named.grouped_by - labels - {"le"} and not unknown:
            wrong.append(f"{where}: no metric has {named.grouped_by - labels}")
    assert wrong == []


def missing(selector: Selector, exported: Exported) -> Iterator[str]:
    if selector.name in exported.without_samples:
        return
    if selector.name not in exported.metrics:
        yield f"there is no {selector.name}"
        return
    labels = exported.metrics[selector.name]
    for label, operator, value in selector.matchers:
        if label in PROMETHEUS_LABELS:
            continue
        if label not in labels:
            yield f"{selector.name} has no label {label}"
        known = labels.get(label, set()) | OTHER_VALUES.get((selector.name, label), set())
        if operator in ("=", "!=") and value not in known:
            yield f"{selector.name} has no {label} {value!r}, but {sorted(known)}"


def test_a_metric_that_is_gone_is_noticed() -> None:
    """The check itself: a name, a label, a value."""
    exported = Exported()
    exported.add('# TYPE up_to gauge\nup_to{a="1"} 1\n# TYPE later counter\n')
    asked = {
        'rate(gone_total{a="1"}[5m])': ["there is no gone_total"],
        'sum by (a) (up_to{b="1"})': ["up_to has no label b", "up_to has no b '1', but []"],
        'up_to{a="2"} > 1': ["up_to has no a '2', but ['1']"],
        'up_to{a!="1"} and on (a) later_total{x="y"}': [],
    }
    for expression, says in asked.items():
        found = [what for s in named_in(expression).selectors for what in missing(s, exported)]
        assert found == says, expression


def test_the_rules_are_what_prometheus_reads() -> None:
    """No unknown key, no duplicate one; each rule is a record or an alert that says what to do."""
    found = rules()
    assert len(found) > 10 and len(set(alerts())) == len(alerts())
    for rule in found:
        assert (rule.record is None) != (rule.alert is None)
        if rule.alert is not None:
            assert set(rule.annotations) == {"summary", "description"}, rule.alert
            assert rule.labels["severity"] in ("critical", "warning")
    for path in (RULES, RULES_TEST):
        yaml.load(path.read_text(), Loader=NoDuplicates)


class NoDuplicates(yaml.SafeLoader):
    """Of two keys of one name the last would win, which nobody means."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(set(keys)) == len(keys), f"twice the same key, {node.start_mark}"
        return super().construct_mapping(node, deep)


def test_every_alert_has_a_case_in_the_rules_test_and_a_place_on_the_page() -> None:
    """What nobody has seen fire may not fire, and what nobody explains is switched off."""
    cases = yaml.safe_load(RULES_TEST.read_text())["tests"]
    fired = {
        case["alertname"]
        for test in cases
        for case in test.get("alert_rule_test", ())
        if case["exp_alerts"]
    }
    assert set(alerts()) <= fired
    page = PAGE.read_text()
    assert [name for name in alerts() if f"`{name}`" not in page] == []


def promtool() -> str:
    """Named by POINTSMAN_PROMTOOL, or on the PATH; without it, there is nothing to run."""
    found = os.environ.get("POINTSMAN_PROMTOOL") or shutil.which("promtool")
    if not found:
        pytest.skip("promtool is not here (Debian has it in `prometheus`); POINTSMAN_PROMTOOL")
    return found


@pytest.mark.parametrize("words", [("check", RULES.name), ("test", RULES_TEST.name)])
def test_promtool_takes_the_rules_and_their_test_passes(words: tuple[str, str]) -> None:
    """Prometheus's own word on both."""
    command = (promtool(), words[0], "rules", words[1])
    done = subprocess.run(command, cwd=RULES.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    """As rules, since it reads nothing else."""
    made = [
        {"record": f"panel:{number}", "expr": expression}
        for number, (_, expression) in enumerate(expressions())
    ]
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": made}]}))
    command = (promtool(), "check", "rules", str(file))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_a_model_that_grafana_loads() -> None:
    """Unique ids, panels that do not overlap, targets with names of their own, and no data source
    of ours: the one that is chosen at the top.
    """
    model, taken = dashboard(), set[tuple[int, int]]()
    assert model["title"] == "pointsman" and model["schemaVersion"] >= 39
    assert "id" not in model, "an id is given by the Grafana that loads it"
    ids = [panel["id"] for panel in model["panels"]]
    assert len(set(ids)) == len(ids) and min(ids) > 0
    for panel in model["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert all(0 <= x < 24 for x, _ in cells) and not cells & taken, panel["title"]
        taken |= cells
    for panel in panels():
        assert panel["type"] in ("stat", "timeseries", "state-timeline")
        assert panel["title"] and panel["description"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_the_dashboard_uses_the_variables_that_it_declares() -> None:
    """And asks for the jobs by metrics that exist in every version."""
    variables = {each["name"]: each for each in dashboard()["templating"]["list"]}
    assert set(variables) == {"datasource", "job"}
    text = DASHBOARD.read_text()
    assert '"${datasource}"' in text and "$job" in text
    for metric in ("pointsman_engine_up", "pointsman_indexer_queue_full"):
        assert metric in variables["job"]["query"]["query"]
