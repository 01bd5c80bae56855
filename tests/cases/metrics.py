"""Tests `omniverbd --metrics`: what traffic makes of the numbers, and scrapers that are slow, wrong
or many."""

import contextlib
import http.client
import re
import socket
import time

from harness import client_server, process
from harness.case import WAITS, Case, Group, check
from harness.containers import Pair

_SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\n"])*",?)*)\})? (\d+(?:\.\d+)?)')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\[\\n"])*)"')
_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_SENT = "omniverb_port_data_transmitted_bytes_total"
# A process may have so many queue pairs: one more is refused.
_SETTINGS = "[process]\nqueue_pairs = 8\n"


def free_port():
    """A TCP port of the host's loopback addresses that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def request(port, method="GET", path="/metrics"):
    """The answer's status, its type and its text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type"), answer.read().decode()


def parsed(text):
    """The samples of a text in the OpenMetrics format, which must be right."""
    kinds, samples, current = {}, {}, None
    lines = text.split("\n")
    check(lines[-2:] == ["# EOF", ""], f"ends with {lines[-2:]}")
    for line in lines[:-2]:
        if line.startswith("# HELP "):
            current = line.split(" ")[2]
            check(current not in kinds, f"{current} twice")
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            check(name == current and kind in ("counter", "gauge"), line)
            kinds[current] = kind
        else:
            found = _SAMPLE.fullmatch(line)
            check(found, f"no sample: {line!r}")
            name, labels, value = found.groups()
            suffix = "_total" if kinds[current] == "counter" else ""
            check(name == current + suffix, f"{name} stands below {current}")
            key = name, tuple(_LABEL.findall(labels or ""))
            check(key not in samples, f"{key} twice")
            samples[key] = float(value)
    return samples


def total(samples, name, **labels):
    """The sum of a metric over all that have these labels."""
    wanted = set(labels.items())
    return sum(value for (one, found), value in samples.items()
               if one == name and wanted <= set(found))


class _Scene:
    """One host with two containers, and its metrics."""

    def __init__(self, stage):
        self.port = free_port()
        settings = stage.folder("metrics", 0, 0o755) / "omniverbd.toml"
        settings.write_text(f'metrics = "127.0.0.1:{self.port}"\n{_SETTINGS}')
        self.pair = Pair(stage, daemon_arguments=["--config", settings])
        self.daemon = self.pair.daemon
        for place in (self.pair.server, self.pair.client):
            place.run("ibv_devices")
            # What was given something stays without a process.
            self.daemon.set_vnic(place.namespace, "--adoption", "trusting")
        process.until(lambda: _answers(self.port), 20, "metrics")

    def scrape(self):
        """All metrics: (name, labels) and their values."""
        text = process.run(["curl", "-sS", "--fail", "-i", f"http://127.0.0.1:{self.port}/metrics"])
        head, _, body = text.partition("\n\n")
        check(f"Content-Type: {_TYPE}" in head, head)
        return parsed(body)

    def total(self, name, **labels):
        """The sum of a metric now."""
        return total(self.scrape(), name, **labels)

    def vnic(self, place):
        """The name of a container's vNIC."""
        return self.daemon.vnic(place.namespace)["name"]


def _answers(port):
    try:
        return request(port)[0] == 200
    except OSError:
        return False


@contextlib.contextmanager
def _fixture(stage):
    scene = _Scene(stage)
    try:
        yield scene
    finally:
        scene.pair.close()


def _never_back(before, after):
    back = [key for key, value in before.items()
            if key[0].endswith("_total") and after.get(key, value) < value]
    check(not back, f"{back} went back")


def _grows(scene):
    """While a program runs its numbers grow, on the path that it has."""
    with client_server.going_on(scene.pair, "ib_write_bw", "-s", "65536"):
        process.until(lambda: scene.total(_SENT, path="direct") > 0, 30, "bytes of a direct link")
        before = scene.scrape()
        vnic = scene.vnic(scene.pair.client)
        for name in ("queue_pairs", "memory_regions", "links", "processes"):
            check(total(before, f"omniverb_{name}", vnic=vnic) >= 1, name)
        check(total(before, "omniverb_queue_pairs", path="direct") == 2, "two ends of a link")
        check(total(before, "omniverb_encryption", vnic=vnic, state="none") == 1, "encryption")
        sent = total(before, _SENT, vnic=vnic, path="direct")
        process.until(lambda: scene.total(_SENT, vnic=vnic, path="direct") > sent, 20, "more")
        after = scene.scrape()
        _never_back(before, after)
        count = sum(total(after, "omniverb_operations_total", vnic=vnic, execution=word)
                    for word in ("mapped", "mediated"))
        check(count > 0, "no operation is counted")


def _exact(scene):
    """A known number of bytes is what is counted, also behind the end of the program."""
    vnic, far = scene.vnic(scene.pair.client), scene.vnic(scene.pair.server)
    time.sleep(1.1)  # what is served is up to a second old
    before = scene.scrape()
    client_server.run(scene.pair, "ib_write_bw", "-F", "-s", "65536", "-n", "1000")
    # What is served of both is up to a second old, and may come later on a busy machine.
    process.until(lambda: scene.total(_SENT, vnic=vnic) - total(before, _SENT, vnic=vnic) >=
                  1000 * 65536, 20, "bytes of the first program")
    process.settled(lambda: scene.total("omniverb_port_data_received_bytes_total", vnic=far), 2.2)
    between = scene.scrape()
    client_server.run(scene.pair, "ib_send_bw", "-F", "-s", "4096", "-n", "500")
    expected = 1000 * 65536 + 500 * 4096

    def sent():
        return scene.total(_SENT, vnic=vnic) - total(before, _SENT, vnic=vnic)
    name = "omniverb_port_data_received_bytes_total"

    def heard():
        return scene.total(name, vnic=far) - total(between, name, vnic=far)
    # Of WRITEs a target hears of those only that it copies itself.
    process.until(lambda: sent() >= expected and heard() >= 500 * 4096, 20,
                  lambda: f"{expected} bytes, not {sent()}; {heard()} bytes received")
    time.sleep(1.1)
    after = scene.scrape()
    check(sent() == expected, f"{sent()} bytes, not {expected}")
    check(heard() == 500 * 4096, f"{heard()} bytes received")
    name = "omniverb_tenant_data_transmitted_bytes_total"
    more = total(after, name, tenant="default") - total(before, name, tenant="default")
    check(more == expected, f"{more} bytes of the tenant")
    _never_back(before, after)


def _groups(scene):
    """Tenants and policies have sums and limits; forwarded packets and lost ones are counted."""
    scene.daemon.omniverb("tenant", "create", "blue", "--rate", "8gbit", "--ops", "2m")
    scene.daemon.omniverb("policy", "create", "gold", "--mode", "shared", "--rate", "4gbit",
                          "--ops", "1.5m")
    for place in (scene.pair.server, scene.pair.client):
        scene.daemon.set_vnic(place.namespace, "--tenant", "blue", "--policy", "gold",
                              "--rate", "2gbit", "--ops", "1m", "--faults", "loss=1%")
    time.sleep(1.1)
    before = scene.scrape()
    client_server.run(scene.pair, "ib_write_bw", "-F", "-s", "4096", "-n", "2000")

    def more(name, **labels):
        return total(after, name, **labels) - total(before, name, **labels)

    def sent():
        nonlocal after
        after = scene.scrape()
        return more("omniverb_tenant_data_transmitted_bytes_total", tenant="blue")

    after = before
    process.until(lambda: sent() >= 2000 * 4096, 20, "bytes of the tenant")
    time.sleep(1.1)
    check(sent() == 2000 * 4096, "bytes of the tenant")
    check(more(_SENT, tenant="blue") == 2000 * 4096, "bytes of the vNICs")
    name = "omniverb_policy_data_transmitted_bytes_total"
    check(more(name, policy="gold") == 2000 * 4096, name)
    check(more("omniverb_policy_packets_transmitted_total", policy="gold") > 2000, "packets")
    check(total(after, "omniverb_port_packets_transmitted_total", path="direct") == 0,
          "packets of direct links")
    check(total(after, "omniverb_tenant_limit_bits_per_second", tenant="blue") == 8e9, "tenant")
    check(total(after, "omniverb_policy_limit_bits_per_second", policy="gold") == 4e9, "policy")
    check(total(after, "omniverb_vnic_limit_bits_per_second", tenant="blue") == 4e9, "two vNICs")
    ops = "limit_operations_per_second"
    check(total(after, f"omniverb_tenant_{ops}", tenant="blue") == 2e6, "tenant")
    check(total(after, f"omniverb_policy_{ops}", policy="gold") == 1.5e6, "policy")
    check(total(after, f"omniverb_vnic_{ops}", tenant="blue") == 2e6, "two vNICs")
    check(total(after, "omniverb_policy_vnics", policy="gold") == 2, "vNICs of the policy")
    check(total(after, "omniverb_resent_packets_total", tenant="blue") > 0, "resent packets")
    # The engine counts these for as long as the device is open.
    with client_server.going_on(scene.pair, "ib_write_bw", "-s", "4096"):
        process.until(lambda: scene.total("omniverb_dropped_packets_total", tenant="blue",
                                          reason="fault_loss") > 0, 20, "lost packets")


def _refusals(scene):
    """What the daemon refuses programs is counted by the error."""
    name = "omniverb_refused_calls_total"
    both = client_server.Duet(scene.pair, ["ib_write_bw", "-F", "-q", "9"])
    try:
        process.until(lambda: both.client.poll() is not None, 20, "the end of a program")
        check(both.client.returncode != 0, "it has more queue pairs than its quota")
    finally:
        both.abort()
    process.until(lambda: scene.total(name, vnic=scene.vnic(scene.pair.client), error="ENOMEM"),
                  20, "a refused call")


def _hostile(scene):
    """Other requests get other answers, and what is no request gets no metrics."""
    check(request(scene.port, "HEAD")[::2] == (200, ""), "HEAD")
    check(request(scene.port, path="/")[0] == 404, "/")
    check(request(scene.port, "POST")[0] == 405, "POST")
    for line, status in ((b"\xff\r\n\r\n", b"400"), (b"GET\r\n\r\n", b"400"),
                         (b"GET /metrics SIP/2.0\r\n\r\n", b"400"), (b"x" * 4096, b"431")):
        with socket.create_connection(("127.0.0.1", scene.port), 20) as one:
            one.sendall(line)
            check(one.recv(12) == b"HTTP/1.1 " + status, f"{line[:20]}")
    with socket.create_connection(("127.0.0.1", scene.port), 20) as slow:
        for byte in b"GET /metrics HTTP/1.1\r\n\r\n":
            slow.send(bytes([byte]))
            time.sleep(0.01)
        check(slow.recv(15) == b"HTTP/1.1 200 OK", "a slow request")
    with socket.create_connection(("127.0.0.1", scene.port), 20) as gone:
        gone.sendall(b"GET /metr")
    with socket.create_connection(("127.0.0.1", scene.port), 20) as one:
        one.sendall(b"GET /metrics HTTP/1.1\r\n")
        one.settimeout(30)
        check(one.recv(1) == b"", "half a request has no end")
    check(request(scene.port)[0] == 200, "metrics are served no more")


def _many(scene):
    """Silent scrapers keep no other from metrics, and are disconnected."""
    with contextlib.ExitStack() as all_of_them:
        silent = [all_of_them.enter_context(
            socket.create_connection(("127.0.0.1", scene.port), 20)) for _ in range(60)]
        check(request(scene.port)[0] == 200, "an answer beside silent ones")
        for one in silent:
            one.settimeout(30)
            with contextlib.suppress(ConnectionError):
                check(one.recv(1000) == b"", "a silent one was answered")
    process.until(lambda: scene.total("omniverb_scrapes_refused_total") > 0, 20, "a refused one")
    scene.pair.server.run("ibv_devinfo")


def _address(scene):
    """Metrics stay on the host; an address in use ends no daemon."""
    program = scene.pair.stage.dist / "bin" / "omniverbd"
    said = process.run([program, "--metrics", "0.0.0.0:9469"], accept=(1,))
    check("loopback" in said, said)
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        pair = Pair(scene.pair.stage, count=1,
                    daemon_arguments=["--metrics", f"127.0.0.1:{port}"])
    with pair:
        process.until(lambda: _answers(port), 30, "metrics at an address that was in use")
        check("trying again" in pair.daemon.log(), pair.daemon.log())


def groups():
    """One host, two containers."""
    return [Group("metrics", [
        Case("metrics.grows", _grows, 120),
        Case("metrics.exact", _exact, 120),
        Case("metrics.refusals", _refusals, 60),
        Case("metrics.hostile", _hostile, 90),
        Case("metrics.many", _many, 90),
        Case("metrics.address", _address, 60),
        Case("metrics.groups", _groups, 120),
    ], _fixture, weight=WAITS)]
