"""Objects of a cluster: what is applied in etcd holds on a host soon, what is deleted there is
gone, and whatever is stopped, killed, damaged or compacted, what the host has stays until etcd says
otherwise."""

import contextlib
import json
import shutil
import signal

from harness import process
from harness.case import WAITS, Case, Failure, Group, check
from harness.daemon import Daemon, environment
from harness.network import Namespace

_URL = "http://127.0.0.1:2379"
_FIRST = """
[tenant.blue]
adoption = "exact"

[policy.gold]
rate = "5gbit"

[vnic.web]
tenant = "blue"
policies = ["gold"]
attach = "/run/netns/web"

[host.h2.vnic.other]
"""


class Etcd:
    """A member of etcd that is alone."""

    def __init__(self, stage, enter, url=_URL, more=()):
        self.enter, self.url, self.more = enter, url, more
        self.folder = stage.folder("etcd", mode=0o700)
        self.process = None
        self.start()

    def start(self):
        """Starts it, and waits until it answers."""
        log = open(self.folder / "log", "ab")  # noqa: SIM115 - the child keeps it
        self.process = process.start(
            [*self.enter, "etcd", "--data-dir", self.folder / "data", "--unsafe-no-fsync",
             "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
             "--listen-peer-urls", "http://127.0.0.1:2380", *self.more],
            stdout=log, stderr=log, env=environment())
        log.close()
        process.until(lambda: self.process.poll() is not None or self._answers(), 30, "etcd")

    def _answers(self):
        try:
            self.ctl("get", "x")
            return True
        except Failure as failure:
            # It answers, but not us.
            return "user name is empty" in str(failure)

    def ctl(self, *words):
        """Runs etcdctl."""
        line = ["etcdctl", "--endpoints", self.url, *self.client(), *words]
        return process.run([*self.enter, *line], env=environment(ETCDCTL_API=3))

    def client(self):
        """Options that etcdctl needs."""
        return []

    def kill(self):
        """kill -9."""
        self.process.kill()
        self.process.wait(10)

    def wiped(self):
        """Everything that it had is lost."""
        self.kill()
        shutil.rmtree(self.folder / "data")
        self.start()


class Agent:
    """One `omniverb-agent cluster`."""

    def __init__(self, scene, *words):
        self.log = scene.folder / f"agent-{scene.count()}"
        log = open(self.log, "ab")  # noqa: SIM115 - the child keeps it
        # It is asked by its user: it is no child of nsenter's that would be left alone.
        self.process = process.start(
            [*scene.enter, scene.dist / "bin" / "omniverb-agent", "cluster", *words],
            stdout=log, stderr=log,
            env=environment(OMNIVERB_OPERATOR_SOCKET=scene.operators))
        log.close()

    def text(self):
        """What it has said."""
        return self.log.read_text(errors="replace")

    def says(self, word, limit=20):
        """Waits until it has said this."""
        process.until(lambda: word in self.text(), limit, lambda: f"{word!r} in\n{self.text()}")

    def kill(self):
        """kill -9."""
        self.process.kill()
        self.process.wait(10)


class _Scene:
    """etcd, a daemon and an agent, in a network namespace."""

    def __init__(self, stage):
        self.stage, self.dist = stage, stage.dist
        self.folder = stage.folder("cluster", mode=0o700)
        self.numbers = 0
        self.stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            self.namespace = Namespace()
            stack.callback(self.namespace.close)
            self.enter = self.namespace.enter()
            self.etcd = Etcd(stage, self.enter)
            stack.callback(lambda: process.end(self.etcd.process))
            self.daemon = Daemon(stage, enter=self.enter)
            stack.callback(self.daemon.close)
            folder = self.daemon.folder
            self.operators = folder.with_name(f"{folder.name}-operator") / "omniverbd.sock"
            self.agents = []
            stack.callback(lambda: [process.end(agent.process) for agent in self.agents])
            self.stack = stack.pop_all()

    def count(self):
        """A number that nothing else here has."""
        self.numbers += 1
        return self.numbers

    def agent(self, *words, host="h1"):
        """Starts an agent."""
        etcd = [] if "--file" in words else ["--etcd-endpoints", _URL]
        agent = Agent(self, "--host", host, *etcd, *words)
        self.agents.append(agent)
        return agent

    def cluster(self, *words, accept=(0,)):
        """`omniverb cluster`, as people run it."""
        return process.run([*self.enter, self.dist / "bin" / "omniverb", "cluster", *words,
                            "--etcd-endpoints", _URL], accept=accept, env=environment())

    def apply(self, text, *words):
        """Applies a file with this text."""
        file = self.folder / "cluster.toml"
        file.write_text(text)
        return self.cluster("apply", "-f", file, *words)

    def rows(self):
        """All objects of the daemon: kind and name, with where they come from and fields."""
        found = {}
        for kind in ("tenant", "policy"):
            for row in json.loads(self.daemon.omniverb(kind, "list", "--json")):
                found[f"{kind} {row['name']}"] = row
        return found

    def vnic(self, name):
        """The fields of a vNIC, if it is described."""
        text = self.daemon.omniverb("vnic", "show", name, "--json", accept=(0, 1))
        return json.loads(text) if text.startswith("{") else None

    def until(self, condition, what):
        """Waits until the daemon has something."""
        process.until(condition, 20, lambda: f"{what}\n{self.rows()}\n{self.agents[-1].text()}")

    def has(self, tenant, limit=20):
        """Waits until the daemon has this tenant."""
        process.until(lambda: f"tenant {tenant}" in self.rows(), limit,
                      lambda: f"tenant {tenant}\n{self.agents[-1].text()}")

    def has_not(self, tenant):
        """Waits until it does not."""
        self.until(lambda: f"tenant {tenant}" not in self.rows(), f"no tenant {tenant}")

    def end_agents(self):
        """No agent is left."""
        for agent in self.agents:
            process.end(agent.process)
        self.agents.clear()

    def close(self):
        """Takes all of it away."""
        self.stack.close()


def _fixture(stage):
    return contextlib.closing(_Scene(stage))


def _fresh(scene):
    """Nothing is there, of the cluster and of operators."""
    scene.end_agents()
    scene.apply("", "--prune")
    agent = scene.agent()
    scene.until(lambda: not scene.rows() and not scene.vnic("web"), "nothing")
    return agent


def _apply(scene):
    """Objects are applied, changed, and deleted; those of operators are left alone."""
    agent = scene.agent()
    check("+ vnic web" in scene.apply(_FIRST), "what is new is printed")
    scene.until(lambda: scene.vnic("web"), "the vNIC")
    web = scene.vnic("web")
    check(web["source"] == "cluster" and web["fields"]["tenant"] == "blue", f"{web}")
    check(scene.vnic("other") is None, "what is for another host")
    check(scene.rows()["policy gold"]["fields"]["rate"] == "5000000000bit", f"{scene.rows()}")
    check("nothing to change" in scene.apply(_FIRST), "it is there already")
    scene.daemon.omniverb("tenant", "create", "mine")
    # What has changed is changed; what is not in the file stays unless it is pruned.
    changed = '[policy.gold]\nrate = "1gbit"\n'
    (scene.folder / "changed.toml").write_text(changed)
    diff = scene.cluster("diff", "-f", scene.folder / "changed.toml", accept=(1,))
    check(diff == '~ policy gold: rate "5gbit" -> "1gbit"\n', diff)
    scene.apply(changed)
    scene.until(lambda: scene.rows()["policy gold"]["fields"]["rate"] == "1000000000bit", "a rate")
    check(scene.vnic("web") is not None, "what the file does not name")
    got = scene.cluster("get")
    check("[host.h2.vnic.other]" in got and 'adoption = "exact"' in got, got)
    (scene.folder / "got.toml").write_text(got)
    scene.cluster("diff", "-f", scene.folder / "got.toml", "--prune")
    check("- vnic web" in scene.apply("[tenant.blue]\n", "--prune"), "prune")
    scene.until(lambda: scene.vnic("web") is None, "no vNIC")
    scene.cluster("delete", "tenant", "blue")
    scene.has_not("blue")
    scene.cluster("delete", "tenant", "blue", accept=(2,))
    check(scene.rows()["tenant mine"]["source"] == "command", "an operator's own")
    scene.daemon.omniverb("tenant", "delete", "mine")
    check("error" not in agent.text(), agent.text())


def _commands(scene):
    """A command decides before the cluster, and what it hides comes back."""
    _fresh(scene)
    scene.apply('[tenant.blue]\n[vnic.web]\ntenant = "blue"\nrate = "8mbit"\n')
    scene.until(lambda: scene.vnic("web"), "the vNIC")
    refusal = scene.daemon.omniverb("vnic", "delete", "web", accept=(1,))
    check("the cluster's" in refusal, refusal)
    scene.daemon.omniverb("vnic", "set", "web", "--rate", "16mbit")
    scene.apply('[vnic.web]\ntenant = "blue"\nrate = "32mbit"\n[tenant.last]\n')
    scene.has("last")
    web = scene.vnic("web")
    check((web["source"], web["hides"]) == ("command", "cluster"), f"{web}")
    check(web["fields"]["rate"] == "16000000bit", f"{web}")
    # An agent that comes later does not undo it either.
    scene.end_agents()
    scene.agent().says("applied")
    check(scene.vnic("web")["fields"]["rate"] == "16000000bit", "it was undone")
    scene.daemon.omniverb("vnic", "delete", "web")
    check(scene.vnic("web")["fields"]["rate"] == "32000000bit", f"{scene.vnic('web')}")
    # What a command names cannot go; the reason is said once, and it goes when that is over.
    scene.daemon.omniverb("vnic", "create", "own", "--tenant", "blue")
    scene.apply("", "--prune")
    agent = scene.agents[-1]
    agent.says("tenant blue: vnic \"own\"")
    scene.daemon.omniverb("vnic", "delete", "own")
    scene.has_not("blue")
    check(agent.text().count("tenant blue: vnic") == 1, agent.text())


def _away(scene):
    """While etcd is gone nothing changes; when it is back, what has changed is applied."""
    agent = _fresh(scene)
    scene.apply(_FIRST)
    scene.until(lambda: scene.vnic("web"), "the vNIC")
    scene.etcd.kill()
    agent.says("stays as it is")
    check(scene.vnic("web")["source"] == "cluster", "what the host has")
    failed = scene.cluster("get", accept=(2,))
    check("etcd" in failed, failed)
    scene.etcd.start()
    scene.cluster("delete", "vnic", "web")
    scene.until(lambda: scene.vnic("web") is None, "no vNIC")
    check(agent.text().count("stays as it is") == 1, agent.text())
    # The same for an agent that was killed meanwhile.
    agent.kill()
    scene.cluster("delete", "policy", "gold")
    scene.apply("[tenant.later]\n")
    scene.agent()
    scene.has("later")
    check("policy gold" not in scene.rows(), "what was deleted without an agent")


def _wiped(scene):
    """An etcd that has lost everything takes nothing away from a host."""
    agent = _fresh(scene)
    scene.apply("[tenant.blue]\n")
    scene.has("blue")
    scene.etcd.wiped()
    agent.says("has lost what it had")
    scene.apply("[tenant.red]\n")
    agent.says("another cluster")
    check("tenant blue" in scene.rows() and "tenant red" not in scene.rows(), f"{scene.rows()}")
    # Who means it says so.
    scene.end_agents()
    scene.agent()
    scene.has("red")
    scene.has_not("blue")


def _compacted(scene):
    """Revisions that are compacted before they are seen are no loss."""
    agent = _fresh(scene)
    scene.apply("[tenant.one]\n")
    scene.has("one")

    def compact():
        status = json.loads(scene.etcd.ctl("endpoint", "status", "-w", "json"))
        revision = status[0]["Status"]["header"]["revision"]
        scene.etcd.ctl("compact", str(revision), "--physical")

    agent.kill()
    scene.apply("[tenant.two]\n")
    scene.cluster("delete", "tenant", "one")
    compact()
    agent = scene.agent()
    scene.has("two")
    scene.has_not("one")
    # It does not look while etcd goes, comes, and forgets.
    [child] = process.descendants(agent.process.pid) or [agent.process.pid]
    import os
    os.kill(child, signal.SIGSTOP)
    scene.apply("[tenant.three]\n")
    scene.etcd.kill()
    scene.etcd.start()
    scene.cluster("delete", "tenant", "two")
    compact()
    os.kill(child, signal.SIGCONT)
    scene.has("three", 40)
    scene.has_not("two")


def _damaged(scene):
    """A value that cannot be understood holds its object, is said once, and stops no other."""
    agent = _fresh(scene)
    scene.apply("[tenant.blue]\n[vnic.web]\ntenant = \"blue\"\n")
    scene.until(lambda: scene.vnic("web"), "the vNIC")
    scene.etcd.ctl("put", "/omniverb/v1/all/vnic/web", '{"tenant": "bl')
    scene.etcd.ctl("put", "/omniverb/v1/all/colour/red", "{}")
    scene.etcd.ctl("put", "/omniverb/v1/all/policy/gold", '{"rate": "much"}')
    scene.etcd.ctl("put", "/omniverb/v1/all/policy/silver", '{"rate": "1gbit", "rate": "2gbit"}')
    agent.says("/omniverb/v1/all/vnic/web: EOF")
    agent.says("colour")
    agent.says("policy gold: policy \"gold\": ")
    agent.says("twice")
    scene.apply("[tenant.red]\n")
    scene.has("red")
    check(scene.vnic("web")["fields"]["tenant"] == "blue", "it is held")
    for word in ("EOF", 'kind "colour"', "policy gold: ", "twice"):
        check(agent.text().count(word) == 1, agent.text())
    check("damaged" in scene.cluster("get"), "people are told")
    shown = json.loads(scene.cluster("hosts", "--json"))
    process.until(lambda: json.loads(scene.cluster("hosts", "--json"))[0]["problems"] == 4, 10,
                  f"four problems: {shown}")
    scene.etcd.ctl("put", "/omniverb/v1/all/vnic/web", '{"tenant": "red"}')
    scene.until(lambda: scene.vnic("web")["fields"]["tenant"] == "red", "another tenant")
    agent.says("/omniverb/v1/all/vnic/web: is as the cluster has it now")
    scene.etcd.ctl("del", "/omniverb/v1/all/colour/red")
    # A file repairs what is damaged.
    check("~ policy silver: damaged" in scene.apply("[policy.silver]\n[policy.gold]\n"), "repaired")
    scene.until(lambda: "policy silver" in scene.rows(), "the policy")


def _daemon(scene):
    """Another daemon has what the last one had, and an agent gives it what it lacks."""
    agent = _fresh(scene)
    scene.apply("[tenant.blue]\n")
    scene.has("blue")

    def again():
        scene.daemon.kill()
        scene.daemon.socket.unlink(missing_ok=True)
        scene.operators.unlink(missing_ok=True)

    agent.kill()
    again()
    scene.daemon.start()
    check(scene.rows()["tenant blue"]["source"] == "cluster", "it outlives the daemon")
    agent = scene.agent()
    agent.says("applied")
    again()
    agent.says("cannot be reached")
    state = scene.operators.with_name("omniverbd.sock.objects.cluster")
    state.write_bytes(state.read_bytes()[:20])
    scene.daemon.start()
    scene.has("blue")
    agent.says("answers again")
    check("is damaged" in scene.daemon.log(), scene.daemon.log())
    scene.apply("[tenant.red]\n")
    scene.has("red")


def _two(scene):
    """A second agent of one daemon ends; an agent of another host is another host."""
    first = _fresh(scene)
    second = scene.agent(host="h2")
    check(second.process.wait(10) == 2, "a second agent")
    check("another omniverb-agent" in second.text(), second.text())
    check(first.process.poll() is None, "the first one")
    # Killed, it leaves no lock.
    first.kill()
    scene.agent(host="h2")
    scene.apply(_FIRST)
    scene.until(lambda: scene.vnic("other"), "what is for this host")


def _lease(scene):
    """A host is listed as long as its agent runs, and a name is one host's."""
    scene.end_agents()
    # Of an etcd that never had anything an agent does not tell its daemon.
    scene.apply("[tenant.leased]\n")

    def hosts():
        return {row["host"]: row for row in json.loads(scene.cluster("hosts", "--json"))}

    agent = scene.agent("--lease-seconds", "2", host="h7")
    process.until(lambda: hosts().get("h7", {}).get("daemon"), 20, lambda: f"{hosts()}")
    check("h7" in scene.cluster("hosts"), "people see it")
    agent.kill()
    process.until(lambda: "h7" not in hosts(), 20, lambda: f"{hosts()}")
    agent = scene.agent("--lease-seconds", "60", host="h7")
    process.until(lambda: "h7" in hosts(), 10, lambda: f"{hosts()}")
    # Killed, and started anew before its lease has ended: it is the same host.
    agent.kill()
    agent = scene.agent("--lease-seconds", "2", host="h7")
    process.until(lambda: hosts().get("h7", {}).get("daemon"), 20, lambda: f"{hosts()}")
    process.end(agent.process)
    check("h7" not in hosts(), f"it ended as it was told to: {hosts()}")
    scene.etcd.ctl("put", "/omniverb/v1/live/h7", '{"instance": "elsewhere"}')
    agent = scene.agent(host="h7")
    agent.says("another host has this name")
    scene.etcd.ctl("del", "/omniverb/v1/live/h7")
    process.until(lambda: hosts().get("h7", {}).get("version"), 10, lambda: f"{hosts()}")


def _file(scene):
    """Without etcd the same objects come from a file."""
    scene.end_agents()
    file = scene.folder / "host.toml"
    file.write_text('[tenant.filed]\n[host.h1.tenant.ours]\n[host.h2.tenant.theirs]\n')
    agent = scene.agent("--file", file)
    scene.has("filed")
    check("tenant ours" in scene.rows() and "tenant theirs" not in scene.rows(), f"{scene.rows()}")
    file.write_text("[tenant.filed")
    agent.says("stays as it is")
    check("tenant filed" in scene.rows(), "a torn file")
    file.write_text("[tenant.next]\n")
    scene.has("next")
    scene.has_not("filed")
    file.write_text("")
    scene.has_not("next")


def _many(scene):
    """Some thousand objects arrive, and a bad one among them is alone in that."""
    agent = _fresh(scene)
    names = [f"v{number}" for number in range(2000)]
    text = "[tenant.blue]\n" + "".join(f'[vnic.{name}]\ntenant = "blue"\n' for name in names)
    scene.apply(text + '[policy.bad]\nburst = "64k"\n')
    scene.until(lambda: scene.vnic("v1999"), "all of them")
    agent.says("policy bad: ")
    check(agent.text().count("error") == 1, agent.text())
    scene.apply("", "--prune")
    scene.has_not("blue")
    check(scene.vnic("v7") is None, "a vNIC is left")


def _secured(stage):
    """etcd with TLS, certificates of clients, and passwords."""
    with contextlib.ExitStack() as stack:
        namespace = Namespace()
        stack.callback(namespace.close)
        folder = stage.folder("tls", mode=0o700)
        openssl = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                   "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30", "-subj", "/CN=etcd"]
        # One certificate for both ends, which signs itself.
        process.run([*openssl, "-keyout", folder / "key", "-out", folder / "cert", "-addext",
                     "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext",
                     "extendedKeyUsage=serverAuth,clientAuth", "-addext",
                     "basicConstraints=critical,CA:false"])
        url = "https://127.0.0.1:2379"
        files = [f"--{name}={folder / file}"
                 for name, file in (("cacert", "cert"), ("cert", "cert"), ("key", "key"))]

        class _Secure(Etcd):
            def client(self):
                return files

        etcd = _Secure(stage, namespace.enter(), url, [
            f"--cert-file={folder / 'cert'}", f"--key-file={folder / 'key'}",
            "--client-cert-auth", f"--trusted-ca-file={folder / 'cert'}"])
        stack.callback(lambda: process.end(etcd.process))
        password = folder / "password"
        password.write_text("secret\n")
        password.chmod(0o600)
        etcd.ctl("user", "add", "root:secret")
        etcd.ctl("user", "grant-role", "root", "root")
        etcd.ctl("auth", "enable")

        def get(*words, accept=(0,)):
            return process.run([*namespace.enter(), stage.dist / "bin" / "omniverb-agent", "get",
                                "--etcd-endpoints", url, *words], accept=accept)

        get(*files, "--user", "root:secret")
        get(*files, "--user", "root", "--password-file", password)
        for words, word in ((files, "permission denied"),
                            ([*files, "--user", "root:wrong"], "authentication failed"),
                            ([*files[1:], "--user", "root:secret"], ""),
                            ([files[0], "--user", "root:secret"], "")):
            failed = get(*words, accept=(2,))
            check(word in failed and failed.startswith("omniverb-agent: "), failed)
        password.chmod(0o644)
        failed = get(*files, "--user", "root", "--password-file", password, accept=(2,))
        check("others may read" in failed, failed)


def groups():
    """One host and one etcd."""
    return [
        Group("cluster", [
            Case("cluster.apply", _apply, 90), Case("cluster.commands", _commands, 90),
            Case("cluster.away", _away, 120), Case("cluster.wiped", _wiped, 120),
            Case("cluster.compacted", _compacted, 120), Case("cluster.damaged", _damaged, 90),
            Case("cluster.daemon", _daemon, 90), Case("cluster.two", _two, 90),
            Case("cluster.lease", _lease, 120), Case("cluster.many", _many, 120),
            Case("cluster.file", _file, 90),
        ], _fixture, weight=WAITS),
        Group("cluster-secured", [Case("cluster.secured", lambda stage: _secured(stage), 120)],
              lambda stage: contextlib.nullcontext(stage), weight=WAITS),
    ]
