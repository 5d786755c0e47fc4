"""CRC-32C of bytes in memory, without a Python object per call; described by `crc.pyi`.

The `crc32c` package is as fast for a long batch but costs a quarter of a microsecond to call, more
than a small batch's CRC, and its import costs a starting broker more than all kernels together.
With SSE 4.2 three streams run side by side, as the instruction takes one word per cycle but gives
its result only after three; without it eight tables do. The streams are joined by a table that
moves a CRC over a block of zeros, built at import from the polynomial.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

__all__ = ["crc32c", "shift_difference"]

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #define MS_POLYNOMIAL 0x82f63b78u
    #define MS_BLOCK 1024  /* bytes of each of the three streams */
    static uint32_t ms_tables[8][256];
    static uint32_t ms_over_block[4][256];
    static uint32_t ms_over_bytes[63][32];  /* operators "2**n zero bytes" */
    static int ms_has_sse42;

    static uint32_t ms_times(const uint32_t *matrix, uint32_t vector) {
        uint32_t sum = 0;
        for (; vector; vector >>= 1, matrix++) if (vector & 1) sum ^= *matrix;
        return sum;
    }

    static void ms_make_tables(void) {
        uint32_t odd[32], even[32];
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t crc = n;
            for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? MS_POLYNOMIAL : 0);
            ms_tables[0][n] = crc;
        }
        for (uint32_t n = 0; n < 256; n++)
            for (int t = 1; t < 8; t++)
                ms_tables[t][n] = ms_tables[0][ms_tables[t - 1][n] & 0xff]
                                ^ (ms_tables[t - 1][n] >> 8);
        /* The operator "one zero bit", squared until it is "MS_BLOCK zero bytes". */
        odd[0] = MS_POLYNOMIAL;
        for (int n = 1; n < 32; n++) odd[n] = 1u << (n - 1);
        for (size_t bits = 1; bits < MS_BLOCK * 8; bits *= 2) {
            for (int n = 0; n < 32; n++) even[n] = ms_times(odd, odd[n]);
            memcpy(odd, even, sizeof odd);
        }
        for (uint32_t n = 0; n < 256; n++)
            for (int t = 0; t < 4; t++) ms_over_block[t][n] = ms_times(odd, n << (8 * t));
        /* Eight zero bits are the first of the operators for any number of bytes. */
        odd[0] = MS_POLYNOMIAL;
        for (int n = 1; n < 32; n++) odd[n] = 1u << (n - 1);
        for (int power = -3; power < 63; power++) {
            if (power >= 0) memcpy(ms_over_bytes[power], odd, sizeof odd);
            for (int n = 0; n < 32; n++) even[n] = ms_times(odd, odd[n]);
            memcpy(odd, even, sizeof odd);
        }
    #if defined(__x86_64__)
        __builtin_cpu_init();
        ms_has_sse42 = __builtin_cpu_supports("sse4.2") != 0;
    #endif
    }

    static uint32_t ms_shift(uint32_t difference, uint64_t size) {
        for (int power = 0; size; size >>= 1, power++)
            if (size & 1) difference = ms_times(ms_over_bytes[power], difference);
        return difference;
    }

    static uint32_t ms_crc_tables(uint32_t crc, const unsigned char *data, size_t size) {
        for (; size >= 8; size -= 8, data += 8) {
            uint32_t low = crc ^ ((uint32_t) data[0] | (uint32_t) data[1] << 8
                                  | (uint32_t) data[2] << 16 | (uint32_t) data[3] << 24);
            crc = ms_tables[7][low & 0xff] ^ ms_tables[6][low >> 8 & 0xff]
                ^ ms_tables[5][low >> 16 & 0xff] ^ ms_tables[4][low >> 24]
                ^ ms_tables[3][data[4]] ^ ms_tables[2][data[5]]
                ^ ms_tables[1][data[6]] ^ ms_tables[0][data[7]];
        }
        while (size--) crc = ms_tables[0][(crc ^ *data++) & 0xff] ^ (crc >> 8);
        return crc;
    }

    #if defined(__x86_64__)
    static inline uint32_t ms_move_over_block(uint32_t crc) {
        return ms_over_block[0][crc & 0xff] ^ ms_over_block[1][crc >> 8 & 0xff]
             ^ ms_over_block[2][crc >> 16 & 0xff] ^ ms_over_block[3][crc >> 24];
    }

    __attribute__((target("sse4.2")))
    static uint32_t ms_crc_sse42(uint32_t start, const unsigned char *data, size_t size) {
        uint64_t a = start, word;
        while (size >= 3 * MS_BLOCK) {
            uint64_t b = 0, c = 0, second, third;
            const unsigned char *end = data + MS_BLOCK;
            for (; data < end; data += 8) {
                memcpy(&word, data, 8);
                memcpy(&second, data + MS_BLOCK, 8);
                memcpy(&third, data + 2 * MS_BLOCK, 8);
                a = __builtin_ia32_crc32di(a, word);
                b = __builtin_ia32_crc32di(b, second);
                c = __builtin_ia32_crc32di(c, third);
            }
            a = ms_move_over_block((uint32_t) a) ^ b;
            a = ms_move_over_block((uint32_t) a) ^ c;
            data += 2 * MS_BLOCK;
            size -= 3 * MS_BLOCK;
        }
        for (; size >= 8; size -= 8, data += 8) {
            memcpy(&word, data, 8);
            a = __builtin_ia32_crc32di(a, word);
        }
        while (size--) a = __builtin_ia32_crc32qi((uint32_t) a, *data++);
        return (uint32_t) a;
    }
    #endif

    static uint32_t ms_crc32c(uint32_t crc, const unsigned char *data, size_t size) {
    #if defined(__x86_64__)
        if (ms_has_sse42) return ~ms_crc_sse42(~crc, data, size);
    #endif
        return ~ms_crc_tables(~crc, data, size);
    }
    """
    int ms_has_sse42
    void ms_make_tables() noexcept nogil
    unsigned int ms_crc_tables(
        unsigned int crc, const unsigned char* data, size_t size) noexcept nogil
    unsigned int ms_shift(unsigned int difference, unsigned long long size) noexcept nogil
    unsigned int ms_crc32c(
        unsigned int crc, const unsigned char* data, size_t size) noexcept nogil

ms_make_tables()

# From here on other threads may run meanwhile; for less, releasing the GIL costs too much.
cdef Py_ssize_t RELEASE_BYTES = 32768
_package = None
if not ms_has_sse42:
    # It knows the instructions of other processors: worth its import for whole batches.
    from crc32c import crc32c as _package


cdef unsigned int crc32c_of(const unsigned char* data, Py_ssize_t size) noexcept nogil:
    return ms_crc32c(0, data, size)


def crc32c(data, unsigned int value=0):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len < RELEASE_BYTES:
            return ms_crc32c(value, <const unsigned char*> view.buf, view.len)
        if _package is not None:
            return _package(data, value)
        with nogil:
            value = ms_crc32c(value, <const unsigned char*> view.buf, view.len)
        return value
    finally:
        PyBuffer_Release(&view)


def shift_difference(unsigned int difference, Py_ssize_t size):
    if size < 0:
        raise ValueError("a size below zero")
    return ms_shift(difference, size)


def crc32c_by_tables(const unsigned char[::1] data, unsigned int value=0):
    """For the tests: how a processor without the instruction does it."""
    return ~ms_crc_tables(~value, &data[0], data.shape[0]) & 0xFFFFFFFF if data.shape[0] else value
