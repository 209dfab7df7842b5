/* Memory of a single thread that is restored if its transaction fails. See stm.h. */
#ifndef _MOD_LOG_H_
#define _MOD_LOG_H_

#include "stm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In a transaction, before an ordinary write: records the current contents. */
void stm_log(stm_word_t *addr);
void stm_log_u8(uint8_t *addr);
void stm_log_u16(uint16_t *addr);
void stm_log_u32(uint32_t *addr);
void stm_log_u64(uint64_t *addr);
void stm_log_char(char *addr);
void stm_log_uchar(unsigned char *addr);
void stm_log_short(short *addr);
void stm_log_ushort(unsigned short *addr);
void stm_log_int(int *addr);
void stm_log_uint(unsigned int *addr);
void stm_log_long(long *addr);
void stm_log_ulong(unsigned long *addr);
void stm_log_float(float *addr);
void stm_log_double(double *addr);
void stm_log_ptr(void **addr);
void stm_log_bytes(uint8_t *addr, size_t size);

/* To be called after stm_init and before stm_init_thread. */
void mod_log_init(void);

#ifdef __cplusplus
}
#endif

#endif
