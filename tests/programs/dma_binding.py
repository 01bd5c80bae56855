"""The Python binding against the example `serve`: dma_binding.py ADDRESS PORT."""

import errno
import pathlib
import sys
import time

# Where `dist/` is, inside containers and outside.
_DIST = [pathlib.Path("/opt/omniverb"), pathlib.Path(__file__).parent.parent / "dist"]
sys.path += [str(path / "share" / "omniverb" / "python") for path in _DIST]

import omniverb_dma  # noqa: E402

MIRRORED = 16 << 20


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
        try:
            node.lookup(99)
        except OSError as error:
            assert error.errno == errno.ETIMEDOUT
        else:
            raise AssertionError("found what is not there")
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
        ours.free()
        mirror.free()
        node.disconnect()
    print("as it should be")


main()
