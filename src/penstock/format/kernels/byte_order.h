/* Big-endian loads and stores at any address, and memory fences. Included by _compiled.pyx.

   A load reads memory exactly once: the value that is checked is the value that is used, even if another process
   changes the file in between. Needs GCC or Clang. */

#ifndef PENSTOCK_BYTE_ORDER_H
#define PENSTOCK_BYTE_ORDER_H

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define PENSTOCK_BE16(x) __builtin_bswap16(x)
#define PENSTOCK_BE32(x) __builtin_bswap32(x)
#define PENSTOCK_BE64(x) __builtin_bswap64(x)
#define PENSTOCK_LE32(x) (x)
#define PENSTOCK_LE64(x) (x)
#else
#define PENSTOCK_BE16(x) (x)
#define PENSTOCK_BE32(x) (x)
#define PENSTOCK_BE64(x) (x)
#define PENSTOCK_LE32(x) __builtin_bswap32(x)
#define PENSTOCK_LE64(x) __builtin_bswap64(x)
#endif

/* The empty asm keeps the compiler from reading the memory a second time. */
static inline int16_t load16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    __asm__ volatile("" : "+r"(v));
    return (int16_t)PENSTOCK_BE16(v);
}
static inline int32_t load32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    __asm__ volatile("" : "+r"(v));
    return (int32_t)PENSTOCK_BE32(v);
}
static inline int64_t load64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    __asm__ volatile("" : "+r"(v));
    return (int64_t)PENSTOCK_BE64(v);
}

static inline void store16(uint8_t *p, int16_t x) {
    uint16_t v = PENSTOCK_BE16((uint16_t)x);
    memcpy(p, &v, 2);
}
static inline void store32(uint8_t *p, int32_t x) {
    uint32_t v = PENSTOCK_BE32((uint32_t)x);
    memcpy(p, &v, 4);
}
static inline void store64(uint8_t *p, int64_t x) {
    uint64_t v = PENSTOCK_BE64((uint64_t)x);
    memcpy(p, &v, 8);
}

static inline void acquire_fence(void) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
static inline void release_fence(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }

#endif
