"""The Python binding against the example `serve`: dma_python_binding.py ADDRESS PORT."""

import errno
import gc
import pathlib
import sys
import time
import weakref

# Where `dist/` is, inside containers and outside.
_DIST = [pathlib.Path("/opt/omniverb"), pathlib.Path(__file__).parent.parent / "dist"]
sys.path += [str(path / "share" / "omniverb" / "python") for path in _DIST]

import omniverb_dma  # noqa: E402

MIRRORED = 16 << 20


def fails(number, use):
    """It is refused so."""
    try:
        use()
    except OSError as error:
        assert error.errno == number, error
    else:
        raise AssertionError("was not refused")


def main():
    """Connects with a mirror, which the example fills, and then writes and reads."""
    address, port = sys.argv[1], int(sys.argv[2])
    called = []
    with omniverb_dma.Dma() as dma:
        mirror = dma.alloc(8, MIRRORED)
        ours = dma.alloc(1, 1 << 16)
        node = dma.connect(address, port)
        assert node.connected
        theirs = node.lookup(7)
        assert theirs.length == MIRRORED and theirs.memory is None
        fails(errno.ETIMEDOUT, lambda: node.lookup(99))
        text = b"from Python" * 1000
        ours.memory[:len(text)] = text
        dma.copy(theirs, ours, len(text), to_offset=12345)
        ours.memory[:len(text)] = bytes(len(text))
        parts = [dma.transfer(ours, theirs, 11, to_offset=11 * i, source_offset=12345 + 11 * i,
                              done=called.append) for i in range(100)]
        assert dma.start(parts) == 100
        while len(called) < 100:
            time.sleep(0.001)
        assert called == parts and not any(part.status for part in parts)
        assert ours.memory[:1100] == text[:1100]
        # What nobody names stays as long as C has it, and no longer.
        named = weakref.ref(dma.transfer(theirs, ours, 11))
        unnamed = dma.transfer(theirs, ours, 11)
        held = weakref.ref(unnamed)
        dma.start([unnamed])
        del unnamed
        gc.collect()
        assert named() is None and held() is not None
        for _ in range(3000):
            dma.copy(theirs, ours, 11)
        assert held() is None and len(dma.under_way) <= 1024
        late = dma.transfer(theirs, ours, 1)
        ours.free()
        fails(errno.EINVAL, lambda: dma.start([late]))
        mirror.free()
        node.disconnect()
        fails(errno.EINVAL, node.disconnect)
    for use in (lambda: node.connected, lambda: node.lookup(7), theirs.free,
                lambda: dma.alloc(2, 1), lambda: dma.start([late]), lambda: dma.port):
        fails(errno.EBADF, use)
    assert not parts[0].status
    dma.close()
    forgotten = omniverb_dma.Dma()
    assert forgotten.connect(address, port).connected  # and not closed
    print("as it should be")


main()
