"""Newest offset per key in a fixed amount of memory, for compaction; described by `keymap.pyi`.

Open addressing with linear probing. A slot is the 128 bits of SipHash-2-4 over the key and the
offset plus one, so that zeroed memory is an empty table and pages are touched as it fills.
The loops run without the GIL: a cleaner thread hashes megabytes while the event loop goes on.
A map belongs to one thread at a time.
"""

import cython
from cython.cimports.cpython.array import array
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.millstream.kernels._compiled import batch_layout as layout
from cython.cimports.millstream.kernels._compiled import outcomes

__all__ = ["ENTRY_BYTES", "KeyMap"]

ENTRY_BYTES = SLOT_BYTES

_INT64_MAX = cython.declare(cython.longlong, 2**63 - 1)
_INT32_MAX = cython.declare(cython.longlong, 2**31 - 1)

# "somepseudorandomlygeneratedbytes", as SipHash begins.
_START0 = cython.declare(uint64_t, 0x736F6D6570736575)
_START1 = cython.declare(uint64_t, 0x646F72616E646F6D)
_START2 = cython.declare(uint64_t, 0x6C7967656E657261)
_START3 = cython.declare(uint64_t, 0x7465646279746573)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _rotl(value: uint64_t, bits: cython.int) -> uint64_t:
    return (value << bits) | (value >> (64 - bits))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _rounds(state: cython.pointer(SipState), count: cython.int) -> cython.void:
    for _ in range(count):
        state.v0 += state.v1
        state.v2 += state.v3
        state.v1 = _rotl(state.v1, 13) ^ state.v0
        state.v3 = _rotl(state.v3, 16) ^ state.v2
        state.v0 = _rotl(state.v0, 32)
        state.v2 += state.v1
        state.v0 += state.v3
        state.v1 = _rotl(state.v1, 17) ^ state.v2
        state.v3 = _rotl(state.v3, 21) ^ state.v0
        state.v2 = _rotl(state.v2, 32)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _word(at: cython.p_uchar, size: cython.int) -> uint64_t:
    """Little endian, whatever the machine: a map is never stored, but tests compare."""
    value: uint64_t = 0
    index: cython.int
    for index in range(size):
        value |= cython.cast(uint64_t, at[index]) << (8 * index)
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _siphash(secret: cython.pointer(Hash), at: cython.p_uchar, size: cython.Py_ssize_t) -> Hash:
    """SipHash-2-4 with 128 bits of output (Aumasson and Bernstein)."""
    state: SipState
    found: Hash
    word: uint64_t
    end: cython.p_uchar = at + (size & ~7)
    state.v0 = secret.low ^ _START0
    state.v1 = secret.high ^ _START1 ^ WIDE_MARK
    state.v2 = secret.low ^ _START2
    state.v3 = secret.high ^ _START3
    while at != end:
        word = _word(at, 8)
        state.v3 ^= word
        _rounds(cython.address(state), 2)
        state.v0 ^= word
        at += 8
    word = (cython.cast(uint64_t, size) << 56) | _word(at, size & 7)
    state.v3 ^= word
    _rounds(cython.address(state), 2)
    state.v0 ^= word
    state.v2 ^= WIDE_MARK
    _rounds(cython.address(state), 4)
    found.low = state.v0 ^ state.v1 ^ state.v2 ^ state.v3
    state.v1 ^= SECOND_MARK
    _rounds(cython.address(state), 4)
    found.high = state.v0 ^ state.v1 ^ state.v2 ^ state.v3
    return found


def _siphash_of(secret: bytes, data: bytes) -> bytes:
    """The bare hash, for the published test vectors."""
    key: Hash
    found: Hash
    key.low = _word(secret, 8)
    key.high = _word(cython.cast(cython.p_uchar, secret) + 8, 8)
    found = _siphash(cython.address(key), data, len(data))
    return int(found.low).to_bytes(8, "little") + int(found.high).to_bytes(8, "little")


@cython.cfunc
@cython.exceptval(-1)
def _check_spans(spans: array, base_offset: cython.longlong, size: cython.longlong) -> cython.int:
    """Spans are the caller's, and positions in them are read through: prove each one."""
    span: cython.p_longlong = spans.data.as_longlongs
    index: cython.Py_ssize_t
    if spans.ob_descr.itemsize != 8 or len(spans) % layout.SPAN_FIELDS != 0:
        raise ValueError("spans must be an array('q') of whole spans")
    if not 0 <= base_offset < _INT64_MAX - _INT32_MAX:
        raise ValueError(f"base offset {base_offset}")
    for index in range(len(spans) // layout.SPAN_FIELDS):
        if not 0 <= span[layout.OFFSET_DELTA] <= _INT32_MAX:
            raise ValueError(f"span {index} has an impossible offset")
        if span[layout.KEY_BYTES] >= 0 and not (
            0 <= span[layout.KEY_START] <= size
            and span[layout.KEY_BYTES] <= size - span[layout.KEY_START]
        ):
            raise ValueError(f"key of span {index} lies outside the payload")
        span += layout.SPAN_FIELDS
    return 0


@cython.final
@cython.cclass
class KeyMap:
    """See `keymap.pyi`."""

    _slots: cython.pointer(Slot)
    _slot_count: uint64_t
    _capacity: cython.Py_ssize_t
    _used: cython.Py_ssize_t
    _secret: Hash

    def __cinit__(self, memory_bytes: cython.Py_ssize_t, hash_key: bytes):
        if len(hash_key) != HASH_KEY_BYTES:
            raise ValueError(f"hash key of {len(hash_key)} bytes, {HASH_KEY_BYTES} are needed")
        self._slot_count = max(memory_bytes, 0) // SLOT_BYTES
        self._capacity = cython.cast(cython.Py_ssize_t, self._slot_count) * 9 // 10
        if self._capacity < 1:
            raise ValueError(f"{memory_bytes} bytes hold no entry")
        self._secret.low = _word(hash_key, 8)
        self._secret.high = _word(cython.cast(cython.p_uchar, hash_key) + 8, 8)
        self._slots = cython.cast(
            cython.pointer(Slot), calloc(self._slot_count, cython.sizeof(Slot))
        )
        if self._slots == cython.NULL:
            raise MemoryError(f"{memory_bytes} bytes for a key map")

    def __dealloc__(self):
        free(self._slots)

    @property
    def capacity(self):
        return self._capacity

    def __len__(self):
        return self._used

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _slot_of(self, hashed: Hash) -> cython.pointer(Slot):
        """The key's slot, or the empty one where it belongs: there always is one (load <= 0.9)."""
        index: uint64_t = hashed.low % self._slot_count
        slot: cython.pointer(Slot) = self._slots + index
        while slot.offset_plus_one != 0 and (slot.low != hashed.low or slot.high != hashed.high):
            index = index + 1 if index + 1 < self._slot_count else 0
            slot = self._slots + index
        return slot

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _add_all(
        self,
        data: cython.p_uchar,
        span: cython.p_longlong,
        count: cython.Py_ssize_t,
        base_offset: uint64_t,
    ) -> cython.Py_ssize_t:
        index: cython.Py_ssize_t
        slot: cython.pointer(Slot)
        key: cython.p_uchar
        hashed: Hash
        for index in range(count):
            if span[layout.KEY_BYTES] >= 0:
                key = data + span[layout.KEY_START]
                hashed = _siphash(cython.address(self._secret), key, span[layout.KEY_BYTES])
                slot = self._slot_of(hashed)
                if slot.offset_plus_one == 0:
                    if self._used == self._capacity:
                        return index
                    self._used += 1
                    slot.low = hashed.low
                    slot.high = hashed.high
                if base_offset + span[layout.OFFSET_DELTA] + 1 > slot.offset_plus_one:
                    slot.offset_plus_one = base_offset + span[layout.OFFSET_DELTA] + 1
            span += layout.SPAN_FIELDS
        return count

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _flag_all(
        self,
        data: cython.p_uchar,
        span: cython.p_longlong,
        count: cython.Py_ssize_t,
        base_offset: uint64_t,
        flags: cython.p_uchar,
    ) -> cython.void:
        index: cython.Py_ssize_t
        key: cython.p_uchar
        hashed: Hash
        newest: uint64_t
        for index in range(count):
            if span[layout.KEY_BYTES] < 0:
                flags[index] = outcomes.WITHOUT_KEY
            else:
                key = data + span[layout.KEY_START]
                hashed = _siphash(cython.address(self._secret), key, span[layout.KEY_BYTES])
                newest = self._slot_of(hashed).offset_plus_one
                if newest > base_offset + span[layout.OFFSET_DELTA] + 1:
                    flags[index] = outcomes.OUTDATED
                elif span[layout.VALUE_BYTES] < 0:
                    flags[index] = outcomes.NEWEST_TOMBSTONE
                else:
                    flags[index] = outcomes.NEWEST
            span += layout.SPAN_FIELDS

    def add_spans(self, payload, spans: array, base_offset: cython.longlong):
        view: Py_buffer
        held: Py_buffer
        taken: cython.Py_ssize_t
        PyObject_GetBuffer(payload, cython.address(view), PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(spans, cython.address(held), PyBUF_SIMPLE)
            try:
                _check_spans(spans, base_offset, view.len)
                with cython.nogil:
                    taken = self._add_all(
                        cython.cast(cython.p_uchar, view.buf),
                        cython.cast(cython.p_longlong, held.buf),
                        held.len // layout.SPAN_BYTES,
                        base_offset,
                    )
                return taken
            finally:
                PyBuffer_Release(cython.address(held))
        finally:
            PyBuffer_Release(cython.address(view))

    def keep_flags(self, payload, spans: array, base_offset: cython.longlong):
        view: Py_buffer
        held: Py_buffer
        flags: bytearray = bytearray(len(spans) // layout.SPAN_FIELDS)
        into: cython.p_uchar = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(flags))
        PyObject_GetBuffer(payload, cython.address(view), PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(spans, cython.address(held), PyBUF_SIMPLE)
            try:
                _check_spans(spans, base_offset, view.len)
                with cython.nogil:
                    self._flag_all(
                        cython.cast(cython.p_uchar, view.buf),
                        cython.cast(cython.p_longlong, held.buf),
                        held.len // layout.SPAN_BYTES,
                        base_offset,
                        into,
                    )
                return flags
            finally:
                PyBuffer_Release(cython.address(held))
        finally:
            PyBuffer_Release(cython.address(view))

    def get(self, key):
        view: Py_buffer
        hashed: Hash
        PyObject_GetBuffer(key, cython.address(view), PyBUF_SIMPLE)
        hashed = _siphash(
            cython.address(self._secret), cython.cast(cython.p_uchar, view.buf), view.len
        )
        PyBuffer_Release(cython.address(view))
        return cython.cast(cython.longlong, self._slot_of(hashed).offset_plus_one) - 1
