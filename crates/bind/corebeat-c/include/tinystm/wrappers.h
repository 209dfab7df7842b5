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

#ifdef __cplusplus
}
#endif

#endif
