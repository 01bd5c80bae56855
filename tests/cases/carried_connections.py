"""Tests RC queue pairs between two hosts whose processes carry them (`carried_queue_pairs`)."""

import contextlib
import subprocess
import time

from harness import client_server, process
from harness.case import CROWDS, Case, Failure, Group, check
from harness.simulated_host import Hosts

from cases.rdma_between_hosts import program, quiet
from cases.system_calls_and_cpu_time import idle_processes

# What is no UDP port of a daemon: packets of processes to each other.
_FILTER = ("add table inet test; "
           "add chain inet test arriving { type filter hook input priority 0; }; "
           "add rule inet test arriving udp dport != 4791 drop")


def _settings(stage, text="carried_queue_pairs = true\n"):
    """Arguments of a daemon with this configuration."""
    file = stage.folder("configuration") / "omniverbd.toml"
    file.write_text(text)
    return ("--config", file)


@contextlib.contextmanager
def _hosts(stage, arguments=None):
    """Two hosts whose processes may carry their queue pairs."""
    with Hosts(stage, arguments=arguments or (_settings(stage), _settings(stage))) as hosts:
        hosts.gid_index = client_server.gid_index(hosts.server)
        yield hosts


class _Paths:
    """The paths on which queue pairs of each daemon were seen with traffic, one after the other."""

    def __init__(self, hosts):
        self.daemons, self.seen = hosts.daemons, [[], []]

    def look(self):
        """Looks at both daemons; one that does not answer now has nothing to show."""
        for seen, daemon in zip(self.seen, self.daemons):
            with contextlib.suppress(Failure):
                for path in {qp["path"] for qp in daemon.queue_pairs() if qp["messages_sent"]}:
                    if path != "none" and path not in seen[-1:]:
                        seen.append(path)

    def until(self, running, side, wanted, what):
        """Waits until the queue pairs of one side (0: of host a) have this path."""
        def there():
            self.look()
            check(running.poll() is None, f"ended before {what}: {self.seen}")
            return self.seen[side][-1:] == [wanted]
        process.until(there, 30, lambda: f"{what}: {self.seen}")


def _soak(hosts, count=60_000, seed=7):
    """A program with a process on each host, which checks every byte."""
    return hosts.apart(TEST_TIMEOUT=17).start(
        "/opt/programs/soak", "two_processes", count, seed,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _finish(running, hosts, limit=100):
    text = process.finish(running, limit)
    print(text)
    check(running.returncode == 0 and "ok two_processes" in text, text)
    quiet(hosts)


def _whole_run(wanted):
    """A soak that is seen on these paths (of host a, of host b) and no others."""
    def run(hosts):
        running, paths = _soak(hosts), _Paths(hosts)
        try:
            while running.poll() is None:
                paths.look()
                time.sleep(0.02)
            _finish(running, hosts)
        finally:
            process.end(running)
        check(paths.seen == [[path] for path in wanted], f"{paths.seen}, not {wanted}")
    return run


def _filtered(deaf):
    """Packets from process to process do not pass to one side: its daemon carries. The other side
    may have heard of that before its own trial was over, and carries then."""
    def run(stage):
        with _hosts(stage) as hosts:
            (hosts.server, hosts.client)[deaf].namespace.nft(_FILTER)
            running, paths = _soak(hosts), _Paths(hosts)
            try:
                while running.poll() is None:
                    paths.look()
                    time.sleep(0.02)
                _finish(running, hosts)
            finally:
                process.end(running)
            check(paths.seen[deaf][-1:] == ["wire"], f"{paths.seen}")
            check("wire" in paths.seen[1 - deaf] or "carried" in paths.seen[1 - deaf],
                  f"{paths.seen}")
    return run


def _limited(side):
    """A limit is set and lifted while data flows."""
    def run(hosts):
        host, place = ((hosts.a, hosts.server), (hosts.b, hosts.client))[side]
        running, paths = _soak(hosts, 150_000), _Paths(hosts)
        try:
            paths.until(running, side, "carried", "the process carries")
            host.daemon.set_vnic(place.namespace, "--rate", "8gbit")
            paths.until(running, side, "wire", "the daemon carries")
            time.sleep(0.5)
            host.daemon.set_vnic(place.namespace, "--rate", "none")
            _finish(running, hosts)
        finally:
            process.end(running)
            host.daemon.set_vnic(place.namespace, "--rate", "none")
    return run


def _killed(victim):
    """kill -9 of a program: its peer on the other host hears of it within a second."""
    def run(hosts):
        running = client_server.Duet(hosts, ["ib_send_bw", "-F", "-D", "90", "-b"])
        paths = _Paths(hosts)
        try:
            paths.until(running.client, 1, "carried", "the process carries")
            side, other, daemon = (
                (running.server, running.client, hosts.b.daemon) if victim == "server"
                else (running.client, running.server, hosts.a.daemon))
            for pid in process.descendants(side.pid):
                process.kill(pid)
            begin = time.monotonic()
            process.until(lambda: not [qp for qp in daemon.queue_pairs() if qp["state"] == "RTS"],
                          20, "no queue pair in RTS")
            took = time.monotonic() - begin
            print(f"the peer failed after {took:.2f} s")
            # The retries of perftest last 0.5 s at least, those of a busy machine longer.
            check(took < 5, f"the peer failed after {took:.1f} s")
            other.wait(25)
        finally:
            running.abort()
        quiet(hosts)
    return run


def _all_carried(hosts, side):
    """A soak all of whose queue pairs are carried on this side. On a busy machine a trial of the
    way may fail, and the daemon has that queue pair."""
    for _ in range(5):
        running = _soak(hosts, 400_000)
        time.sleep(2)
        paths = {qp["path"] for qp in hosts.daemons[side].queue_pairs()}
        if paths == {"carried"} and running.poll() is None:
            return running
        process.end(running)
    raise Failure(f"not all carried: {paths}")


def _daemon_restarted(side):
    """A daemon is killed and started while data flows, which does not notice."""
    def run(hosts):
        daemon = hosts.daemons[side]
        running = _all_carried(hosts, side)
        try:
            daemon.kill()
            time.sleep(1)
            daemon.start()
            _finish(running, hosts)
        finally:
            process.end(running)
        client_server.run(hosts, "ibv_rc_pingpong", "-g", hosts.gid_index, "-c")
    return run


def _idle(hosts):
    """Connected QPs without traffic: neither the processes nor the daemons use CPU."""
    idle_processes(hosts.apart(), hosts.daemons, most_switches=100)


def _one_sided(stage):
    """One host's configuration has it, the other's not: the daemons carry."""
    with _hosts(stage, (_settings(stage), _settings(stage, ""))) as hosts:
        _whole_run(("wire", "wire"))(hosts)


def groups():
    """Two hosts; both daemons are told to have processes carry."""
    tests = [
        Case("carried.both", _whole_run(("carried", "carried")), 120),
        program("soak.two_processes", 60_000, 2, 2, 4, limit=90, title=" carried_ipv6",
                settings={"TEST_IPV6": 1}),
        program("fork_of_carried_connection.two_processes", 1, title=" carried"),
        Case("carried.idle", _idle),
        Case("carried.limit_of_the_server", _limited(0), 150),
        Case("carried.limit_of_the_client", _limited(1), 150),
        Case("carried.server_killed", _killed("server"), 90),
        Case("carried.client_killed", _killed("client"), 90),
        Case("carried.daemon_of_the_server_restarted", _daemon_restarted(0), 150),
        Case("carried.daemon_of_the_client_restarted", _daemon_restarted(1), 150),
    ]
    return [
        Group("carried.tests", tests, _hosts, weight=CROWDS),
        Group("carried.settings", [
            Case("carried.filtered_at_the_server", _filtered(0), 120),
            Case("carried.filtered_at_the_client", _filtered(1), 120),
            Case("carried.one_host_only", _one_sided, 120),
        ], contextlib.nullcontext, weight=CROWDS),
    ]
