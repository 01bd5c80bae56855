"""Tests the death of any part while a virtual machine's processes exchange messages.

The seed is printed."""

import contextlib
import os
import random
import time

from harness import process
from harness.rdma_cm_client_server import end
from harness.case import CARRIED, Case, Group, check
from harness.client_server import gid_index
from harness.virtual_machines import Both, Lab, Machine

_VICTIMS = ("process", "peer", "agent", "daemon", "machine")
# How often each is killed, with `make soak` and every day.
_MANY, _FEW = 50, 2
_ENDLESS = "10000000"


class _Roomy(Machine):
    """Agents and daemons that die cost the machine's window what was in use."""

    window = "512m"


class _Pair:
    """A process of the machine and one of the container that exchange messages."""

    def __init__(self, lab, indices, dice):
        # Server, client.
        roles = dice.sample(["machine", "container"], 2)
        sides = lab.sides(*roles)
        options = dice.choice([[], ["-e"], ["-s", "65536", "-r", "20"]])
        lines = [["ibv_rc_pingpong", "-g", indices[role], "-n", _ENDLESS, *options]
                 for role in reversed(roles)]
        self.lab, self.both = lab, Both(sides, lines[0], server_argv=lines[1])
        ends = dict(zip(roles, (self.both.server, self.both.client)))
        self.inside, self.outside = ends["machine"], ends["container"]

    def path(self):
        """Which way messages travel, once they do."""
        return next((qp["path"] for qp in self.lab.host.daemon.queue_pairs()
                     if qp["messages_sent"] > 10), None)

    def state(self):
        """What there is instead of messages."""
        found = self.lab.host.daemon.queue_pairs()
        return f"messages\n{found}\n{self.both.text(0)}\n{self.both.text(1)}"

    def ends(self, *which):
        """These end by themselves, and not by a signal."""
        for one in which:
            process.until(lambda one=one: one.poll() is not None, 60, "an error")
            check(one.returncode > 0, process.how(one.returncode))

    def close(self):
        """Ends both."""
        for one in (self.inside, self.outside):
            if one is self.outside or self.lab.machine.machine.poll() is None:
                end(one)


def _kill(lab, pair, victim):
    """Kills it. Returns who is left."""
    if victim == "process":
        pair.inside.kill()
        return [pair.outside]
    if victim == "peer":
        for pid in [*process.descendants(pair.outside.pid), pair.outside.pid]:
            process.kill(pid)
        pair.outside.wait()
        return [pair.inside]
    if victim == "agent":
        lab.machine.agents.kill()
    elif victim == "daemon":
        lab.host.daemon.kill()
    else:
        process.kill(lab.machine.machine.pid)
        lab.machine.machine.wait()
        return [pair.outside]
    return [pair.inside, pair.outside]


def _mend(lab, victim):
    """Has the next one take its place."""
    if victim == "agent":
        lab.machine.agents = lab.machine.start_agent()
    elif victim == "daemon":
        lab.host.daemon.start()
        process.until(lab.machine.row, 90, "the machine to be attached")
        process.until(lab.machine.has_device, 60, "a device")
    elif victim == "machine":
        lab.machine.close()
        process.until(lambda: not lab.machine.row(), 20, "the machine to be gone")
        lab.machine = lab.host.keep(_Roomy(lab.stage, lab.host))
        # Its Ethernet address is another: who knew the last one hears so.
        lab.machine.run("ping", "-c", "1", lab.container.address)


def _held(lab):
    """What the daemon holds: descriptors and threads."""
    folder = f"/proc/{lab.host.daemon.pid}"
    return len(os.listdir(f"{folder}/fd")), len(os.listdir(f"{folder}/task"))


def _alone(lab):
    """Waits until nobody is there any more."""
    process.until(lambda: not any(lab.machine.row()[what] for what in
                                  ("sessions", "engine", "direct")), 30,
                  lambda: f"all to be gone, {lab.machine.row()}")
    process.until(lambda: not lab.host.daemon.queue_pairs(), 30, "no queue pairs")


def _killed(victim, times):
    def run(lab):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        dice = random.Random(seed)
        sides = lab.sides("machine", "container")
        indices = {"machine": gid_index(sides.server), "container": gid_index(sides.client)}
        _alone(lab)
        held = None
        for turn in range(times):
            with contextlib.closing(_Pair(lab, indices, dice)) as pair:
                # Of a machine that is switched off no peer is told by TCP, either.
                settled = victim == "machine" or dice.random() < 0.7
                path = process.until(pair.path, 60, pair.state) if settled else None
                time.sleep(dice.random() * 0.5)
                print(turn, path, flush=True)
                left = _kill(lab, pair, victim)
                # A direct link goes on without those who made it.
                goes_on = path == "direct" and victim in ("agent", "daemon")
                if settled and not goes_on:
                    pair.ends(*left)
            _mend(lab, victim)
            _alone(lab)
            if victim in ("process", "peer"):
                process.until(lambda: lab.machine.row()["used"] == 0, 30, "the pieces")
            held = held or process.settled(lambda: _held(lab))
        if victim != "daemon" and times > 10:
            # Some are made when they are needed first; what each time left behind would be more.
            most = times // 2
            process.until(lambda: all(now - before < most
                                      for now, before in zip(_held(lab), held)), 60,
                          lambda: f"hardly more than {held}, {_held(lab)}")
    return run


def groups():
    """With one machine until that is killed."""
    found = [Case(f"machines.kills.{victim}", _killed(victim, _FEW), 300) for victim in _VICTIMS]
    found += [Case(f"machines.kills.{victim} often", _killed(victim, _MANY), 3000, slow=True)
              for victim in _VICTIMS]
    return [Group("machines.kills", found, lambda stage: contextlib.closing(Lab(stage, _Roomy)),
                  weight=CARRIED)]
