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

__all__ = ["ENTRY_BYTES", "KeyMap"]

ENTRY_BYTES = 24

_INT64_MAX = cython.declare(cython.longlong, 2**63 - 1)
_INT32_MAX = cython.declare(cython.longlong, 2**31 - 1)

# "somepseudorandomlygeneratedbytes", as SipHash begins.
_START0 = cython.declare(uint64_t, 0x736F6D6570736575)
_START1 = cython.declare(uint64_t, 0x646F72616E646F6D)
_START2 = cython.declare(uint64_t, 0x6C7967656E657261)
_START3 = cython.declare(uint64_t, 0x7465646279746573)

_Hash = cython.struct(low=uint64_t, high=uint64_t)
_Slot = cython.struct(low=uint64_t, high=uint64_t, offset_plus_one=uint64_t)
_Sip = cython.struct(v0=uint64_t, v1=uint64_t, v2=uint64_t, v3=uint64_t)


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
def _rounds(state: cython.pointer(_Sip), count: cython.int) -> cython.void:
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
def _siphash(secret: cython.pointer(_Hash), at: cython.p_uchar, size: cython.Py_ssize_t) -> _Hash:
    """SipHash-2-4 with 128 bits of output (Aumasson and Bernstein)."""
    state: _Sip
    found: _Hash
    word: uint64_t
    end: cython.p_uchar = at + (size & ~7)
    state.v0 = secret.low ^ _START0
    state.v1 = secret.high ^ _START1 ^ 0xEE
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
    state.v2 ^= 0xEE
    _rounds(cython.address(state), 4)
    found.low = state.v0 ^ state.v1 ^ state.v2 ^ state.v3
    state.v1 ^= 0xDD
    _rounds(cython.address(state), 4)
    found.high = state.v0 ^ state.v1 ^ state.v2 ^ state.v3
    return found


def _siphash_of(secret: bytes, data: bytes) -> bytes:
    """The bare hash, for the published test vectors."""
    key: _Hash
    found: _Hash
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
    if spans.ob_descr.itemsize != 8 or len(spans) % 7 != 0:
        raise ValueError("spans must be an array('q') of whole spans")
    if not 0 <= base_offset < _INT64_MAX - _INT32_MAX:
        raise ValueError(f"base offset {base_offset}")
    for index in range(len(spans) // 7):
        if not 0 <= span[2] <= _INT32_MAX:
            raise ValueError(f"span {index} has an impossible offset")
        if span[5] >= 0 and not (0 <= span[4] <= size and span[5] <= size - span[4]):
            raise ValueError(f"key of span {index} lies outside the payload")
        span += 7
    return 0


@cython.final
@cython.cclass
class KeyMap:
    """See `keymap.pyi`."""

    _slots: cython.pointer(_Slot)
    _slot_count: uint64_t
    _capacity: cython.Py_ssize_t
    _used: cython.Py_ssize_t
    _secret: _Hash

    def __cinit__(self, memory_bytes: cython.Py_ssize_t, hash_key: bytes):
        if len(hash_key) != 16:
            raise ValueError(f"hash key of {len(hash_key)} bytes, 16 are needed")
        self._slot_count = max(memory_bytes, 0) // 24
        self._capacity = cython.cast(cython.Py_ssize_t, self._slot_count) * 9 // 10
        if self._capacity < 1:
            raise ValueError(f"{memory_bytes} bytes hold no entry")
        self._secret.low = _word(hash_key, 8)
        self._secret.high = _word(cython.cast(cython.p_uchar, hash_key) + 8, 8)
        self._slots = cython.cast(
            cython.pointer(_Slot), calloc(self._slot_count, cython.sizeof(_Slot))
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
    def _slot_of(self, hashed: _Hash) -> cython.pointer(_Slot):
        """The key's slot, or the empty one where it belongs: there always is one (load <= 0.9)."""
        index: uint64_t = hashed.low % self._slot_count
        slot: cython.pointer(_Slot) = self._slots + index
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
        slot: cython.pointer(_Slot)
        hashed: _Hash
        for index in range(count):
            if span[5] >= 0:
                hashed = _siphash(cython.address(self._secret), data + span[4], span[5])
                slot = self._slot_of(hashed)
                if slot.offset_plus_one == 0:
                    if self._used == self._capacity:
                        return index
                    self._used += 1
                    slot.low = hashed.low
                    slot.high = hashed.high
                if base_offset + span[2] + 1 > slot.offset_plus_one:
                    slot.offset_plus_one = base_offset + span[2] + 1
            span += 7
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
        hashed: _Hash
        for index in range(count):
            if span[5] < 0:
                flags[index] = 2
            else:
                hashed = _siphash(cython.address(self._secret), data + span[4], span[5])
                if self._slot_of(hashed).offset_plus_one > base_offset + span[2] + 1:
                    flags[index] = 0
                else:
                    flags[index] = 3 if span[6] < 0 else 1
            span += 7

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
                        held.len // 56,
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
        flags: bytearray = bytearray(len(spans) // 7)
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
                        held.len // 56,
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
        hashed: _Hash
        PyObject_GetBuffer(key, cython.address(view), PyBUF_SIMPLE)
        hashed = _siphash(
            cython.address(self._secret), cython.cast(cython.p_uchar, view.buf), view.len
        )
        PyBuffer_Release(cython.address(view))
        return cython.cast(cython.longlong, self._slot_of(hashed).offset_plus_one) - 1
