"""DMA between nodes: libomniverb_dma.so.1 from Python, by cffi (ABI mode; nothing is compiled).

    with omniverb_dma.Dma(listen=True) as dma:        # the one
        dma.alloc(7, 1 << 20)
        node = dma.accept()

    with omniverb_dma.Dma() as dma:                   # the other
        node = dma.connect("10.0.0.1", port)
        theirs, ours = node.lookup(7), dma.alloc(1, 1 << 20)
        ours.memory[:5] = b"hello"
        dma.copy(theirs, ours, 5)
        dma.start([dma.transfer(ours, theirs, 5, done=print)])

What functions do, and which errors there are (as OSError): omniverb_dma(7). A Dma is to be used by
one thread at a time; what is called back is called by the library's thread. What was started and
what is open is kept, also if the program keeps no reference; a Dma until it is closed.
"""

import atexit
import errno
import os

import cffi

READABLE, WRITABLE = 1, 2
SPIN, SLEEP = 2, 4
_LISTEN = 1

_ffi = cffi.FFI()
_ffi.cdef("""
struct omv_dma_transfer {
    void *to;
    void *from;
    uint64_t to_offset, from_offset, length;
    void (*done)(struct omv_dma_transfer *transfer);
    void *context;
    int32_t status;
    uint32_t node;
    uint64_t reserved[2];
};
void *omv_dma_init(const char *address, uint16_t port, uint32_t flags);
int omv_dma_cleanup(void *dma);
uint16_t omv_dma_port(void *dma);
void *omv_dma_connect(void *dma, const char *address, uint16_t port, int milliseconds);
void *omv_dma_accept(void *dma, int milliseconds);
int omv_dma_connected(void *dma, void *node);
int omv_dma_disconnect(void *dma, void *node);
void *omv_dma_alloc(void *dma, uint64_t id, size_t bytes, uint32_t rights);
void *omv_dma_lookup(void *dma, void *node, uint64_t id, int milliseconds);
int omv_dma_free(void *dma, void *buffer);
void *omv_dma_address(void *buffer);
size_t omv_dma_length(void *buffer);
uint64_t omv_dma_id(void *buffer);
int omv_dma_start(void *dma, struct omv_dma_transfer *transfers, unsigned int count);
int omv_dma_query(void *dma, struct omv_dma_transfer *transfer);
""")
_library = _ffi.dlopen("libomniverb_dma.so.1")


def _error(number):
    return OSError(number, os.strerror(number))


def _made(pointer):
    if pointer == _ffi.NULL:
        raise _error(_ffi.errno)
    return pointer


def _done(result):
    if result < 0:
        raise _error(_ffi.errno)
    return result


class Buffer:
    """Memory of ours (`memory`: a writable view, until it is freed or the Dma closed), or of a node
    (`memory` is None)."""

    def __init__(self, dma, pointer):
        self.dma, self.pointer = dma, pointer
        self.id = _library.omv_dma_id(pointer)
        self.length = _library.omv_dma_length(pointer)
        address = _library.omv_dma_address(pointer)
        there = address != _ffi.NULL
        self.memory = _ffi.buffer(address, self.length) if there else None

    def free(self):
        """Gives it back; views of `memory` are not to be touched afterwards."""
        _done(_library.omv_dma_free(self.dma.pointer, self.pointer))
        self.pointer, self.memory = _ffi.NULL, None


class Node:
    """Somebody we are connected with."""

    def __init__(self, dma, pointer):
        self.dma, self.pointer = dma, pointer

    @property
    def connected(self):
        """Whether it is there."""
        return bool(_library.omv_dma_connected(self.dma.pointer, self.pointer))

    def lookup(self, number, milliseconds=0):
        """A buffer of its."""
        dma = self.dma
        found = _library.omv_dma_lookup(dma.pointer, self.pointer, number, milliseconds)
        return Buffer(dma, _made(found))

    def disconnect(self):
        """Ends the connection."""
        _done(_library.omv_dma_disconnect(self.dma.pointer, self.pointer))
        self.pointer = _ffi.NULL


class Transfer:
    """Some bytes from one buffer to another. To be started, perhaps several times."""

    def __init__(self, dma, to, source, length, to_offset=0, source_offset=0, done=None):
        self.dma, self.done, self.to, self.source = dma, done, to, source
        self.struct = _ffi.new("struct omv_dma_transfer *")
        self.struct.to_offset, self.struct.from_offset = to_offset, source_offset
        self.struct.length = length
        if done:
            self.struct.done = dma.caller
            self.struct.context = _ffi.cast("void *", id(self))

    def start(self):
        """Whether it was started; ffi.errno says why not."""
        # They may have been freed since it was made.
        self.struct.to = self.to.pointer
        setattr(self.struct, "from", self.source.pointer)
        return _library.omv_dma_start(self.dma.pointer, self.struct, 1) == 1

    @property
    def status(self):
        """EINPROGRESS, 0, or why it failed."""
        if self.dma.closed:
            return self.struct.status
        return _library.omv_dma_query(self.dma.pointer, self.struct)

    def wait(self):
        """Asks until it is done."""
        while (status := self.status) == errno.EINPROGRESS:
            pass
        if status:
            raise _error(status)


_open = set()  # the library calls their functions


@atexit.register
def _close_all():
    for dma in list(_open):
        dma.close()


class Dma:
    """The library, from init to cleanup."""

    def __init__(self, address=None, port=0, listen=False, flags=0):
        address = address.encode() if address else _ffi.NULL
        flags |= _LISTEN if listen else 0
        self.under_way = {}  # by what C knows of them: it has their structs
        self.most = 1024  # with so many it is time to look which of them are done
        self.caller = _ffi.callback("void (struct omv_dma_transfer *)", self._call)
        self.opened = _made(_library.omv_dma_init(address, port, flags))
        _open.add(self)

    def _call(self, struct):
        transfer = self.under_way.pop(int(_ffi.cast("uintptr_t", struct.context)))
        transfer.done(transfer)

    def _keep(self, transfer):
        """Until it is done, whether anybody asks or not."""
        if len(self.under_way) >= self.most:
            for key, one in list(self.under_way.items()):
                if not one.done and one.struct.status != errno.EINPROGRESS:
                    self.under_way.pop(key, None)
            self.most = max(1024, 2 * len(self.under_way))
        self.under_way[id(transfer)] = transfer

    @property
    def closed(self):
        """Whether it is; then nothing of it can be used."""
        return self.opened == _ffi.NULL

    @property
    def pointer(self):
        """What C knows it by."""
        if self.closed:
            raise _error(errno.EBADF)
        return self.opened

    @property
    def port(self):
        """What it listens at."""
        return _library.omv_dma_port(self.pointer)

    def connect(self, address, port, milliseconds=10000):
        """Connects."""
        found = _library.omv_dma_connect(self.pointer, address.encode(), port, milliseconds)
        return Node(self, _made(found))

    def accept(self, milliseconds=-1):
        """The next that connected."""
        return Node(self, _made(_library.omv_dma_accept(self.pointer, milliseconds)))

    def alloc(self, number, length, rights=READABLE | WRITABLE):
        """New memory, which all nodes know of."""
        return Buffer(self, _made(_library.omv_dma_alloc(self.pointer, number, length, rights)))

    def transfer(self, to, source, length, **more):
        """See Transfer."""
        return Transfer(self, to, source, length, **more)

    def start(self, transfers):
        """Starts them in their order, until one cannot be; how many. (One call of C each: the
        structs do not lie in a row.)"""
        for count, transfer in enumerate(transfers):
            self._keep(transfer)
            if not transfer.start():
                number = _ffi.errno
                self.under_way.pop(id(transfer), None)
                if count:
                    return count
                raise _error(number)
        return len(transfers)

    def copy(self, to, source, length, to_offset=0, source_offset=0):
        """Transfers, and waits."""
        one = Transfer(self, to, source, length, to_offset, source_offset)
        self.start([one])
        one.wait()

    def close(self):
        """Ends everything."""
        if not self.closed:
            _done(_library.omv_dma_cleanup(self.opened))
            self.opened = _ffi.NULL
            self.under_way.clear()
            _open.discard(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
