# Numbers of the wire, read and written in place. Inline only: there is no module behind it.

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static inline uint64_t ms_get64(const unsigned char *at) {
        uint64_t raw; memcpy(&raw, at, 8);
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        raw = __builtin_bswap64(raw);
    #endif
        return raw;
    }
    static inline uint32_t ms_get32(const unsigned char *at) {
        uint32_t raw; memcpy(&raw, at, 4);
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        raw = __builtin_bswap32(raw);
    #endif
        return raw;
    }
    static inline unsigned char *ms_put64(unsigned char *at, uint64_t number) {
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        number = __builtin_bswap64(number);
    #endif
        memcpy(at, &number, 8); return at + 8;
    }
    static inline unsigned char *ms_put32(unsigned char *at, uint32_t number) {
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        number = __builtin_bswap32(number);
    #endif
        memcpy(at, &number, 4); return at + 4;
    }
    static inline unsigned char *ms_put16(unsigned char *at, uint32_t number) {
        at[0] = (unsigned char) (number >> 8); at[1] = (unsigned char) number; return at + 2;
    }
    static inline unsigned char *ms_put_varint(unsigned char *at, uint32_t number) {
        while (number > 0x7f) { *at++ = (unsigned char) (number | 0x80); number >>= 7; }
        *at++ = (unsigned char) number;
        return at;
    }
    """
    unsigned long long ms_get64(const unsigned char* at) noexcept nogil
    unsigned int ms_get32(const unsigned char* at) noexcept nogil
    unsigned char* ms_put64(unsigned char* at, unsigned long long number) noexcept nogil
    unsigned char* ms_put32(unsigned char* at, unsigned int number) noexcept nogil
    unsigned char* ms_put16(unsigned char* at, unsigned int number) noexcept nogil
    unsigned char* ms_put_varint(unsigned char* at, unsigned int number) noexcept nogil


cdef inline long long get_i64(const unsigned char* at) noexcept nogil:
    return <long long>ms_get64(at)

cdef inline long long get_i32(const unsigned char* at) noexcept nogil:
    return <int>ms_get32(at)

cdef inline long long get_i16(const unsigned char* at) noexcept nogil:
    return <short>((<unsigned int>at[0] << 8) | at[1])
