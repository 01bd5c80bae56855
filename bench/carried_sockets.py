"""Sockets, carried and not, beside what memory gives: one message each call, 8 bytes; and streams
of messages of 1 MiB.

All in one run, interleaved by the driver: TCP over the loopback interface, a pair of UNIX sockets,
the same TCP with libomniverb_sockets.so carrying it, or in light mode, and a bare ring. `make
bench` takes them with the rest; `bench/bench.py --only streams` takes them alone. And what one copy
would give instead of two (docs/decisions/0051): `--only copies`.
"""

from program_runs import Failure
from measurement_plan import Measurement, said

# Key, what it is, the way that bench/stream_throughput.c takes, and what the library does, if it is
# there.
_WAYS = [("tcp", "TCP", "tcp", None), ("unix", "UNIX socket", "unix", None),
         ("carried", "TCP carried", "tcp", "carry"), ("light", "TCP light", "tcp", "light"),
         ("ring", "bare ring", "ring", None)]
# How messages are copied, as bench/large_message_copies.c has it, and their bytes.
_COPIES = [("twice", "two copies"), ("past", "two copies, past the cache"),
           ("read", "one copy, process_vm_readv"),
           ("splice", "one copy, vmsplice")]
_COPIED = [1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24]
# Bytes of a large message.
_LARGE = 1 << 20
# Messages there and back by which sockets and the ring are compared in turns.
_BESIDE = 400_000


def plan(program, dist, environment):
    """Round trips and rates of all ways. `environment` leads to a daemon."""
    library = dist / "lib/libomniverb_sockets.so"

    def sample(way, mode, what, *size):
        def run(count):
            if mode and not library.exists():
                raise Failure("there is no such library for this processor")
            more = {"LD_PRELOAD": str(library), "OMNIVERB_SOCKETS": mode} if mode else {}
            return float(said({**environment, **more}, program, way, what, count,
                              *size))
        return run

    small = [Measurement(f"streams_{key}_{what}", f"{label} 8 B {title}", unit,
                         sample(way, mode, what))
             for key, label, way, mode in _WAYS
             for what, title, unit in (("rtt", "and back", "ns"), ("rate", "stream", "msg/s"))]

    def large(way, mode):
        rate = sample(way, mode, "rate", _LARGE)
        return lambda count: rate(count) * _LARGE

    beside = [Measurement(f"streams_{key}_beside", f"{label} 8 B and back, ring in turns", "times",
                          sample(way, mode, "beside"), _BESIDE, (_BESIDE, _BESIDE))
              for key, label, way, mode in _WAYS if mode]

    return small + beside + [Measurement(f"streams_{key}_large", f"{label} 1 MiB stream", "B/s",
                                large(way, mode), 500, (100, 100_000), _LARGE)
                    for key, label, way, mode in _WAYS if way != "ring"]


def copies_plan(program):
    """One copy by the kernel, of memory that is handed over, beside two through memory."""
    def rate(way, size):
        return lambda count: float(said(None, program, way, count, size)) * size

    return [Measurement(f"copies_{way}_{size >> 10}k", f"{title} {size >> 10} KiB", "B/s",
                        rate(way, size), max(20, (64 << 20) // size), (10, 100_000), size)
            for size in _COPIED for way, title in _COPIES]
