"""The files of deploy/: what they name exists, what they start ends in order, what they render is what Kubernetes reads."""
import json
import re
import shutil
import socket
import subprocess

import harness
import jsonschema
import pytest
import yaml
from harness import CHAT, ROOT, binary, parse_metrics, wait_until
from test_process import deepinfer
from wire import body

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/deepinfer"


# ---- dashboard and alert rules ----

@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """Labels of each series of a server that has answered."""
    server = harness.Server(tmp_path_factory.mktemp("deploy"), "--engine", "mock:tokens=2")
    server.json("POST", CHAT, body("chat", "hello"))
    server.error({"model": 1})
    found = {}
    for name, labels, _ in server.metrics():
        found.setdefault(name, set()).update(labels)
    assert server.stop() == 0
    return found


def expressions():
    panels = json.loads((DEPLOY / "grafana/deepinfer.json").read_text())["panels"]
    for panel in panels:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    rules = yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
            assert rule["annotations"]["summary"] and rule["labels"]["severity"] in ("warning", "critical")


NAME = re.compile(r"\b((?:vllm:|deepinfer:|process_)\w+)(?:\{([^}]*)\})?")


def test_every_series_that_is_asked_for_exists(series):
    asked = 0
    for title, expression in expressions():
        names = NAME.findall(expression)
        assert names or expression.startswith("up"), title
        labels = set()
        for name, matchers in names:
            asked += 1
            assert name in series, f"{title}: no series {name}"
            labels |= series[name]
            for label in re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", matchers):
                assert label in series[name] | {"instance", "job"}, f"{title}: {name} has no label {label}"
        for group in re.findall(r"by \(([^)]*)\)", expression):
            for label in group.split(","):
                assert label.strip() in labels | {"instance"}, f"{title}: no label {label}"
    assert asked > 30


needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (make deploy-check)")


@needs_promtool
def test_the_rules_as_prometheus_reads_them():
    result = subprocess.run(["promtool", "check", "rules", DEPLOY / "prometheus/rules.yaml"], capture_output=True, text=True)
    assert result.returncode == 0 and "8 rules found" in result.stdout, result.stdout + result.stderr
    result = subprocess.run(["promtool", "check", "config", "--syntax-only", DEPLOY / "prometheus/prometheus.yaml"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


# Names that vLLM's dashboards ask for, and milliseconds; its linter has other ideas of names.
LINT = re.compile(r"metric names should not contain ':'"
                  r"|vllm:iteration_tokens_total non-counter metrics should not have"
                  r"|metric names should not contain abbreviated units")


@needs_promtool
def test_the_metrics_as_prometheus_reads_them(tmp_path):
    server = harness.Server(tmp_path, "--engine", "mock:tokens=2")
    server.json("POST", CHAT, body("chat", "hello"))
    text = server.request("GET", "/metrics")[2]
    assert server.stop() == 0
    result = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    complaints = [line for line in (result.stdout + result.stderr).decode().splitlines() if not LINT.search(line)]
    assert not complaints and result.returncode in (0, 3), complaints  # 1: it cannot be read; 3: the linter speaks


def test_the_dashboard_is_whole():
    board = json.loads((DEPLOY / "grafana/deepinfer.json").read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) and {one["name"] for one in board["templating"]["list"]} == {"datasource", "model"}
    spots = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]
    assert len(spots) == len(set(spots)) and all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in board["panels"])


# ---- systemd ----

def test_the_unit_is_one():
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = DEPLOY / "systemd/deepinfer@.service"
    result = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    complaints = [line for line in result.stderr.splitlines() if "deepinfer@" in line and "not executable" not in line]
    assert not complaints, result.stderr


def test_the_units_options_are_options(tmp_path):
    unit = (DEPLOY / "systemd/deepinfer@.service").read_text()
    command = re.search(r"^ExecStart=\S+ (.*)$", unit, re.M).group(1).split()
    help_text = deepinfer("serve", "--help").stdout
    assert command[0] == "serve" and all(one in help_text for one in command if one.startswith("--"))
    stop = int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.M).group(1))
    assert stop > 5 + 120, "longer than --drain-delay and --drain-timeout"


@pytest.mark.parametrize("abstract", [False, True])
def test_what_a_service_manager_is_told(tmp_path, monkeypatch, abstract):
    address = "\0deepinfer-test-" + tmp_path.name if abstract else str(tmp_path / "notify")
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(address)
    manager.settimeout(60)
    monkeypatch.setenv("NOTIFY_SOCKET", "@" + address[1:] if abstract else address)
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    server = harness.Server(tmp_path, "--engine", "mock", ready=False)
    assert manager.recv(100) == b"READY=1", "nothing is said before the model is there"
    assert server.request("GET", "/readyz")[0] == 200
    assert [manager.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
    server.process.terminate()
    said = []
    while b"STOPPING=1" not in said:
        said.append(manager.recv(100))
    assert server.process.wait(60) == 0


# ---- container image ----

def dockerfile():
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    return [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]


def test_the_image_is_built_as_said(series):
    lines = dockerfile()
    assert [word for word, _ in lines if word == "FROM"] == ["FROM", "FROM"], "the compiler stays behind"
    assert ("USER", "10001:10001") in [tuple(line) for line in lines]
    health = next(rest for word, rest in lines if word == "HEALTHCHECK")
    assert health.rstrip('"]').endswith("/livez")
    for word, rest in lines:
        if word == "COPY" and not rest.startswith("--from") and rest.split()[0] != ".":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert not any(rest.split()[0].startswith(tuple(ignored)) for word, rest in lines if word == "COPY" and not rest.startswith("--"))
    # Built as ./run builds, which installs the same packages; and of all that the build names nothing is held back.
    build = re.search(r"^tools/build\.sh .*$", (ROOT / "run").read_text(), re.M).group()
    assert any(word == "RUN" and rest.startswith(build + " ") for word, rest in lines), build
    cmake = (ROOT / "CMakeLists.txt").read_text()
    named = {one.split("/")[0] for one in re.findall(r"add_subdirectory\(([\w/]+)\)", cmake) + re.findall(r"\b([\w/]+/\w+\.cc)\b", cmake)}
    assert {"src", "tests", "bench"} <= named and not named & set(ignored), named & set(ignored)
    command = json.loads(next(rest for word, rest in lines if word == "CMD"))
    assert command[0] == "serve" and command[2] in deepinfer("serve", "--help").stdout


def test_the_image_has_every_library_of_the_program():
    packages = set(next(rest for word, rest in dockerfile() if word == "RUN" and "libssl3" in rest).split())
    linked = subprocess.run(["ldd", str(binary())], capture_output=True, text=True).stdout
    paths = subprocess.run(["realpath", *re.findall(r"=> (/\S+)", linked)], capture_output=True, text=True).stdout.split()
    owners = {line.split(":")[0] for line in subprocess.run(["dpkg-query", "-S", *paths], capture_output=True, text=True).stdout.splitlines()}
    assert owners, "a program without libraries of packages"
    # The C library and what comes with it are in every image; so are the sanitizers' in none.
    missing = {one for one in owners - packages - {"libc6", "libgcc-s1"} if not re.match(r"lib(a|ub|t)san", one)}
    assert not missing, missing


# ---- Helm chart ----

class Chart:
    """As much of Helm's template language as the chart uses; anything else is an error."""

    def __init__(self, **values):
        self.values = yaml.safe_load((CHART / "values.yaml").read_text())
        for path, value in values.items():
            at = self.values
            *outer, last = path.split("__")
            for key in outer:
                at = at[key]
            assert last in at, path
            at[last] = value
        jsonschema.validate(self.values, json.loads((CHART / "values.schema.json").read_text()))

    def documents(self):
        for path in sorted((CHART / "templates").glob("*.yaml")):
            for document in yaml.safe_load_all(self.render(path.read_text())):
                if document:
                    yield document

    def render(self, text):
        text = re.sub(r"[ \t]*\n?[ \t]*\{\{-", "{{", re.sub(r"\n[ \t]*\{\{-", "{{", text))
        tokens = re.split(r"\{\{(.*?)\}\}", text)
        out, stack, dot = "", [], None
        for i, token in enumerate(tokens):
            live = all(on for on, _ in stack)
            if i % 2 == 0:
                out += token if live else ""
                continue
            words = token.strip()
            if words.startswith("if not "):
                stack.append((not self.value(words[7:], dot), dot))
            elif words.startswith("if "):
                stack.append((bool(self.value(words[3:], dot)), dot))
            elif words.startswith("with "):
                value = self.value(words[5:], dot)
                stack.append((bool(value), dot))
                dot = value
            elif words == "end":
                dot = stack.pop()[1]
            elif live:
                out += self.text(words, dot)
        assert not stack
        return out

    def value(self, path, dot):
        if path == ".":
            return dot
        if path == ".Release.Name":
            return "demo"
        at = self.values
        assert path.startswith(".Values."), path
        for key in path[len(".Values."):].split("."):
            at = at[key]  # a name that values.yaml does not have is an error
        return at

    def text(self, words, dot):
        if match := re.fullmatch(r"toYaml (\S+) \| nindent (\d+)", words):
            lines = yaml.safe_dump(self.value(match[1], dot)).rstrip().splitlines()
            return "".join("\n" + " " * int(match[2]) + line for line in lines)
        if match := re.fullmatch(r"(add|mul) (.*)", words):
            numbers = [int(word) if word.isdigit() else self.value(word, dot) for word in match[2].split()]
            return str(sum(numbers) if match[1] == "add" else numbers[0] * numbers[1])
        if match := re.fullmatch(r'required "([^"]*)" (\S+)', words):
            assert self.value(match[2], dot), match[1]
            return str(self.value(match[2], dot))
        return str(self.value(words, dot))


EVERYTHING = {"keysSecret": "keys", "model__existingClaim": "weights", "args": ["--max-num-seqs=8"], "serviceMonitor": True, "keda__enabled": True,
              "keda__prometheus": "http://prometheus:9090", "allowedPods": {"app": "gateway"}, "nodeSelector": {"disk": "fast"},
              "tolerations": [{"key": "gpu", "operator": "Exists"}]}


def fits_kubernetes(documents):
    """Against the schemas of Kubernetes, unknown members refused, where they are installed (make deploy-check); the resources of
    Prometheus' operator and of KEDA have none there."""
    try:
        import kubernetes_validate
    except ImportError:
        return
    for kind, document in documents.items():
        if kind not in ("ServiceMonitor", "ScaledObject"):
            kubernetes_validate.validate(document, "1.37", strict=True)


def test_the_schemas_see_a_mistake():
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed (make deploy-check)")
    documents = {one["kind"]: one for one in Chart().documents()}
    fits_kubernetes(documents)
    documents["Deployment"]["spec"]["replcas"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        fits_kubernetes(documents)


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["as it is", "everything"])
def test_what_the_chart_renders(values):
    documents = {one["kind"]: one for one in Chart(**values).documents()}
    assert set(documents) == {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"} | (
        {"ServiceMonitor", "ScaledObject"} if values else set())
    fits_kubernetes(documents)
    pod = documents["Deployment"]["spec"]["template"]
    container, = pod["spec"]["containers"]
    labels = pod["metadata"]["labels"]
    for selector in (documents["Deployment"]["spec"]["selector"]["matchLabels"], documents["Service"]["spec"]["selector"],
                     documents["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
                     documents["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= labels.items()
    assert pod["spec"]["terminationGracePeriodSeconds"] > 5 + 5 + 120
    assert container["startupProbe"]["httpGet"]["path"] == container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"] == 1800
    assert container["securityContext"]["readOnlyRootFilesystem"] and pod["spec"]["securityContext"]["runAsUser"] == 10001
    mounted = {one["name"] for one in container["volumeMounts"]}
    assert mounted == {one["name"] for one in pod["spec"]["volumes"]}
    ports = {one["name"] for one in container["ports"]}
    assert documents["Service"]["spec"]["ports"][0]["targetPort"] in ports
    assert documents["NetworkPolicy"]["spec"]["ingress"][0]["ports"][0]["port"] in ports
    # KEDA and a fixed number of replicas would undo each other's work.
    assert ("replicas" in documents["Deployment"]["spec"]) == (not values)
    if values:
        assert "--max-num-seqs=8" in container["args"] and "--require-auth" in container["args"]
        assert documents["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == documents["Deployment"]["metadata"]["name"]


def test_the_charts_options_start_a_server(tmp_path):
    documents = {one["kind"]: one for one in Chart(keysSecret="keys", drainDelay=1).documents()}
    arguments = documents["Deployment"]["spec"]["template"]["spec"]["containers"][0]["args"]
    (tmp_path / "keys").write_text("secret:team:inference\n")
    told = [one.replace("/etc/deepinfer", str(tmp_path)) for one in arguments[2:] if not one.startswith(("--port", "--host"))]
    server = harness.Server(tmp_path, "--engine", "mock:tokens=2", *told, ready=False)
    wait_until(server.is_ready, "ready")
    assert server.request("POST", CHAT, body("chat", "hi"))[0] == 401
    assert server.request("POST", CHAT, body("chat", "hi"), {"Authorization": "Bearer secret"})[0] == 200
    assert server.stop() == 0


def test_values_that_cannot_be():
    for wrong in ({"replicas": -1}, {"image": ""}, {"sessionAffinity": "Sometimes"}, {"keda__minReplicas": "two"}):
        with pytest.raises(jsonschema.ValidationError):
            Chart(**wrong)
    with pytest.raises(AssertionError, match="keda.prometheus"):
        list(Chart(keda__enabled=True).documents())
