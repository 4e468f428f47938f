/* CRC-32 (polynomial 0xEDB88320, as zlib's) of a record's body, and of a whole record. Included by _compiled.pyx.

   Three implementations with the same result: carry-less multiplication where the processor has it (x86-64 with PCLMUL
   and SSE 4.1), four at a time for long texts where it can (AVX-512 and VPCLMULQDQ), table lookups elsewhere. Call
   crc_init once before crc_of. */

#ifndef PENSTOCK_CRC32_H
#define PENSTOCK_CRC32_H

#include <stdint.h>
#include <string.h>

/* Slicing by 16: tables[t][n] is the CRC of byte n followed by t zero bytes. */
static uint32_t crc_tables[16][256];

static void crc_init_tables(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t c = n;
        for (int k = 0; k < 8; k++) c = (c >> 1) ^ (0xEDB88320u & (0u - (c & 1)));
        crc_tables[0][n] = c;
    }
    for (int t = 1; t < 16; t++)
        for (uint32_t n = 0; n < 256; n++)
            crc_tables[t][n] = (crc_tables[t - 1][n] >> 8) ^ crc_tables[0][crc_tables[t - 1][n] & 0xFF];
}

static uint32_t crc_by_tables(uint32_t c, const uint8_t *p, int64_t size) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (; size >= 16; size -= 16, p += 16) {
        uint32_t v, w, x, y;
        memcpy(&v, p, 4);
        memcpy(&w, p + 4, 4);
        memcpy(&x, p + 8, 4);
        memcpy(&y, p + 12, 4);
        v ^= c; /* only the four lookups of v depend on the previous round */
        c = (crc_tables[11][w & 0xFF] ^ crc_tables[10][(w >> 8) & 0xFF]
           ^ crc_tables[9][(w >> 16) & 0xFF] ^ crc_tables[8][w >> 24]
           ^ crc_tables[7][x & 0xFF] ^ crc_tables[6][(x >> 8) & 0xFF]
           ^ crc_tables[5][(x >> 16) & 0xFF] ^ crc_tables[4][x >> 24]
           ^ crc_tables[3][y & 0xFF] ^ crc_tables[2][(y >> 8) & 0xFF]
           ^ crc_tables[1][(y >> 16) & 0xFF] ^ crc_tables[0][y >> 24])
          ^ ((crc_tables[15][v & 0xFF] ^ crc_tables[14][(v >> 8) & 0xFF])
           ^ (crc_tables[13][(v >> 16) & 0xFF] ^ crc_tables[12][v >> 24]));
    }
#endif
    for (; size > 0; size--, p++) c = (c >> 8) ^ crc_tables[0][(c ^ *p) & 0xFF];
    return c;
}

#if defined(__x86_64__) && defined(__GNUC__)
#define PENSTOCK_X86 1
#include <immintrin.h>

/* Folding: multiplies 64 bytes onto the next 64, then 16 onto the next 16. A tail of n < 16 bytes is folded by shifting
   n bytes out of the 128-bit state while n new ones come in. The last 128 bits are reduced to 32. The constants are
   powers of x modulo the reflected polynomial. */
#define CRC_FOLD(x, by, next) _mm_xor_si128( \
    _mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11)), next)
#define CRC_LOAD(p) _mm_loadu_si128((const __m128i *)(p))

/* Shuffle masks: the 16 bytes at 16 - n shift a register up by n bytes, those at 16 + n shift it down. */
static const uint8_t crc_shifts[48] = {
    128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
    128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128};

/* Folds the last `size` bytes at `p` onto the state `a` of those before them; reads up to 16 bytes before `p`. */
__attribute__((target("pclmul,sse4.1")))
static inline uint32_t crc_fold_rest(__m128i a, const uint8_t *p, int64_t size) {
    const __m128i by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by_8 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i reduce = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_32 = _mm_setr_epi32(-1, 0, -1, 0);
    __m128i t;
    for (; size >= 16; p += 16, size -= 16) a = CRC_FOLD(a, by_16, CRC_LOAD(p));
    if (size) {
        const __m128i down = CRC_LOAD(crc_shifts + 16 + size), up = CRC_LOAD(crc_shifts + size);
        t = _mm_blendv_epi8(_mm_shuffle_epi8(a, down), CRC_LOAD(p + size - 16), down);
        a = CRC_FOLD(_mm_shuffle_epi8(a, up), by_16, t);
    }
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_16, 0x10));
    a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low_32), by_8, 0x00));
    t = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low_32), reduce, 0x10), low_32);
    a = _mm_xor_si128(a, _mm_clmulepi64_si128(t, reduce, 0x00));
    return (uint32_t)_mm_extract_epi32(a, 1);
}

/* Requires size >= 16. */
__attribute__((target("pclmul,sse4.1")))
static uint32_t crc_by_folding(uint32_t c, const uint8_t *p, int64_t size) {
    const __m128i by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    __m128i a = _mm_xor_si128(CRC_LOAD(p), _mm_cvtsi32_si128((int)c));
    if (size >= 64) {
        __m128i b = CRC_LOAD(p + 16), d = CRC_LOAD(p + 32), e = CRC_LOAD(p + 48);
        for (p += 64, size -= 64; size >= 64; p += 64, size -= 64) {
            a = CRC_FOLD(a, by_64, CRC_LOAD(p));
            b = CRC_FOLD(b, by_64, CRC_LOAD(p + 16));
            d = CRC_FOLD(d, by_64, CRC_LOAD(p + 32));
            e = CRC_FOLD(e, by_64, CRC_LOAD(p + 48));
        }
        a = CRC_FOLD(a, by_16, b);
        a = CRC_FOLD(a, by_16, d);
        a = CRC_FOLD(a, by_16, e);
    } else {
        p += 16;
        size -= 16;
    }
    return crc_fold_rest(a, p, size);
}

#define CRC_FOLD_4(x, by, next) _mm512_ternarylogic_epi64( \
    _mm512_clmulepi64_epi128(x, by, 0x00), _mm512_clmulepi64_epi128(x, by, 0x11), next, 0x96)
#define CRC_LOAD_4(p) _mm512_loadu_si512((const void *)(p))
#define CRC_WIDE 256

/* The same, 256 bytes onto the next 256. Requires size >= CRC_WIDE. */
__attribute__((target("pclmul,sse4.1,avx512f,vpclmulqdq")))
static uint32_t crc_by_wide_folding(uint32_t c, const uint8_t *p, int64_t size) {
    const __m512i by_256 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x01322d1430, 0x011542778a));
    const __m512i by_64 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x01c6e41596, 0x0154442bd4));
    const __m128i by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    __m512i w = _mm512_xor_si512(CRC_LOAD_4(p), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)c)));
    __m512i x = CRC_LOAD_4(p + 64), y = CRC_LOAD_4(p + 128), z = CRC_LOAD_4(p + 192);
    __m128i a;
    for (p += 256, size -= 256; size >= 256; p += 256, size -= 256) {
        w = CRC_FOLD_4(w, by_256, CRC_LOAD_4(p));
        x = CRC_FOLD_4(x, by_256, CRC_LOAD_4(p + 64));
        y = CRC_FOLD_4(y, by_256, CRC_LOAD_4(p + 128));
        z = CRC_FOLD_4(z, by_256, CRC_LOAD_4(p + 192));
    }
    w = CRC_FOLD_4(w, by_64, x);
    w = CRC_FOLD_4(w, by_64, y);
    w = CRC_FOLD_4(w, by_64, z);
    for (; size >= 64; p += 64, size -= 64) w = CRC_FOLD_4(w, by_64, CRC_LOAD_4(p));
    a = _mm512_castsi512_si128(w);
    a = CRC_FOLD(a, by_16, _mm512_extracti32x4_epi32(w, 1));
    a = CRC_FOLD(a, by_16, _mm512_extracti32x4_epi32(w, 2));
    a = CRC_FOLD(a, by_16, _mm512_extracti32x4_epi32(w, 3));
    return crc_fold_rest(a, p, size);
}
#endif

static int crc_can_fold = 0, crc_can_fold_wide = 0;

/* Fills the tables and looks up what the processor can do. */
static void crc_init(void) {
    crc_init_tables();
#ifdef PENSTOCK_X86
    crc_can_fold = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    crc_can_fold_wide = crc_can_fold && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
#endif
}

/* Continues the CRC `c`, which is kept inverted, over further bytes. */
static inline uint32_t crc_continue(uint32_t c, const uint8_t *p, int64_t size) {
#ifdef PENSTOCK_X86
    if (crc_can_fold_wide && size >= CRC_WIDE) return crc_by_wide_folding(c, p, size);
    if (crc_can_fold && size >= 16) return crc_by_folding(c, p, size);
#endif
    return crc_by_tables(c, p, size);
}

/* The CRC with its top bit cleared, as a record stores it. */
static uint32_t crc_of(const uint8_t *p, int64_t size) {
    return (crc_continue(0xFFFFFFFFu, p, size) ^ 0xFFFFFFFFu) & 0x7FFFFFFFu;
}

/* A record's own CRC, in its last property: `__CRC32#` 0x01, ten decimal digits, the lowest first, 0x02. It covers the
   record without this property. */
#define RECORD_CRC_SIZE 20
#define RECORD_CRC_DIGITS 10
static const char record_crc_name[] = "__CRC32#\x01";

/* Whether a property string of `length` bytes ends with a record's CRC. The separator before it is not looked at: the
   CRC covers it. */
static inline int ends_with_record_crc(const uint8_t *properties, int64_t length) {
    const uint8_t *p = properties + length - RECORD_CRC_SIZE;
    return length >= RECORD_CRC_SIZE && p[RECORD_CRC_SIZE - 1] == 2 && memcmp(p, record_crc_name, 9) == 0;
}

/* The CRC of a record of `size` bytes. Its size and magic, which are stored last, are passed as they will be. */
static uint32_t record_crc(const uint8_t *record, int32_t size, int32_t magic) {
    const uint32_t s = (uint32_t)size, m = (uint32_t)magic;
    const uint8_t head[8] = {s >> 24, s >> 16, s >> 8, s, m >> 24, m >> 16, m >> 8, m};
    const uint32_t c = crc_by_tables(0xFFFFFFFFu, head, 8);
    return (crc_continue(c, record + 8, size - 8 - RECORD_CRC_SIZE) ^ 0xFFFFFFFFu) & 0x7FFFFFFFu;
}

/* Writes the property with the CRC into the last bytes of a record that is complete but for its size and magic. */
static void seal_record(uint8_t *record, int32_t size, int32_t magic) {
    uint32_t crc = record_crc(record, size, magic);
    uint8_t *p = record + size - RECORD_CRC_SIZE;
    memcpy(p, record_crc_name, 9);
    for (int i = 0; i < RECORD_CRC_DIGITS; i++, crc /= 10) p[9 + i] = '0' + crc % 10;
    p[RECORD_CRC_SIZE - 1] = 2;
}

/* Whether the CRC in the last property of a record fits the record. */
static int is_sealed(const uint8_t *record, int32_t size, int32_t magic) {
    const uint8_t *digits = record + size - 1 - RECORD_CRC_DIGITS;
    uint64_t crc = 0;
    for (int i = RECORD_CRC_DIGITS - 1; i >= 0; i--) {
        if (digits[i] < '0' || digits[i] > '9') return 0;
        crc = crc * 10 + (digits[i] - '0');
    }
    return crc == record_crc(record, size, magic);
}

#endif
