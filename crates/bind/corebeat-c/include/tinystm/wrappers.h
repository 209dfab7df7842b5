/* Reads and writes of data other than words in transactions: parts of words, and data that spans
 * several words, aligned or not. See stm.h.
 *
 * All words that contain such data are read. While they are written back, no other code may write
 * to them outside transactions. */
#ifndef _WRAPPERS_H_
#define _WRAPPERS_H_

#include <stdint.h>

#include "stm.h"

#ifdef __cplusplus
extern "C" {
#endif

uint8_t stm_load_u8(volatile uint8_t *addr);
uint16_t stm_load_u16(volatile uint16_t *addr);
uint32_t stm_load_u32(volatile uint32_t *addr);
uint64_t stm_load_u64(volatile uint64_t *addr);
char stm_load_char(volatile char *addr);
unsigned char stm_load_uchar(volatile unsigned char *addr);
short stm_load_short(volatile short *addr);
unsigned short stm_load_ushort(volatile unsigned short *addr);
int stm_load_int(volatile int *addr);
unsigned int stm_load_uint(volatile unsigned int *addr);
long stm_load_long(volatile long *addr);
unsigned long stm_load_ulong(volatile unsigned long *addr);
float stm_load_float(volatile float *addr);
double stm_load_double(volatile double *addr);
void *stm_load_ptr(volatile void **addr);
void stm_load_bytes(volatile uint8_t *addr, uint8_t *buf, size_t size);

void stm_store_u8(volatile uint8_t *addr, uint8_t value);
void stm_store_u16(volatile uint16_t *addr, uint16_t value);
void stm_store_u32(volatile uint32_t *addr, uint32_t value);
void stm_store_u64(volatile uint64_t *addr, uint64_t value);
void stm_store_char(volatile char *addr, char value);
void stm_store_uchar(volatile unsigned char *addr, unsigned char value);
void stm_store_short(volatile short *addr, short value);
void stm_store_ushort(volatile unsigned short *addr, unsigned short value);
void stm_store_int(volatile int *addr, int value);
void stm_store_uint(volatile unsigned int *addr, unsigned int value);
void stm_store_long(volatile long *addr, long value);
void stm_store_ulong(volatile unsigned long *addr, unsigned long value);
void stm_store_float(volatile float *addr, float value);
void stm_store_double(volatile double *addr, double value);
void stm_store_ptr(volatile void **addr, void *value);
void stm_store_bytes(volatile uint8_t *addr, uint8_t *buf, size_t size);
/* Sets `count` bytes to the same value. */
void stm_set_bytes(volatile uint8_t *addr, uint8_t byte, size_t count);

#ifdef COREBEAT_STM_INLINES
/* The same without calls, for data within a word: see stm_inline.h. The word may be larger than the
 * object, so the assembly hides from the compiler which object it is. */
#define COREBEAT_STM_PART(name, type, pointer) \
	COREBEAT_STM_INLINE type stm_load_##name(pointer addr) \
	{ \
		stm_word_t word; \
		type value; \
		__asm__("" : "+r"(addr)); \
		uintptr_t offset = (uintptr_t)addr & 7; \
		if (!COREBEAT_STM_LIKELY( \
			    offset + sizeof(type) <= 8 && \
			    corebeat_stm_try_load((corebeat_stm_word *)((uintptr_t)addr - offset), \
						  &word))) \
			word = corebeat_stm_load_part((volatile void *)addr, sizeof(type)); \
		else \
			word >>= offset * 8; \
		__builtin_memcpy(&value, &word, sizeof(type)); \
		return value; \
	} \
	COREBEAT_STM_INLINE void stm_store_##name(pointer addr, type value) \
	{ \
		stm_word_t word = 0, mask = ~(stm_word_t)0 >> (64 - 8 * sizeof(type)); \
		__asm__("" : "+r"(addr)); \
		uintptr_t offset = (uintptr_t)addr & 7; \
		__builtin_memcpy(&word, &value, sizeof(type)); \
		if (!COREBEAT_STM_LIKELY( \
			    offset + sizeof(type) <= 8 && \
			    corebeat_stm_try_store((corebeat_stm_word *)((uintptr_t)addr - offset), \
						   word << offset * 8, mask << offset * 8))) \
			corebeat_stm_store_part((volatile void *)addr, word, sizeof(type)); \
	}

COREBEAT_STM_PART(u8, uint8_t, volatile uint8_t *)
COREBEAT_STM_PART(u16, uint16_t, volatile uint16_t *)
COREBEAT_STM_PART(u32, uint32_t, volatile uint32_t *)
COREBEAT_STM_PART(u64, uint64_t, volatile uint64_t *)
COREBEAT_STM_PART(char, char, volatile char *)
COREBEAT_STM_PART(uchar, unsigned char, volatile unsigned char *)
COREBEAT_STM_PART(short, short, volatile short *)
COREBEAT_STM_PART(ushort, unsigned short, volatile unsigned short *)
COREBEAT_STM_PART(int, int, volatile int *)
COREBEAT_STM_PART(uint, unsigned int, volatile unsigned int *)
COREBEAT_STM_PART(long, long, volatile long *)
COREBEAT_STM_PART(ulong, unsigned long, volatile unsigned long *)
COREBEAT_STM_PART(float, float, volatile float *)
COREBEAT_STM_PART(double, double, volatile double *)
COREBEAT_STM_PART(ptr, void *, volatile void **)
#undef COREBEAT_STM_PART
#endif

#ifdef __cplusplus
}
#endif

#endif
