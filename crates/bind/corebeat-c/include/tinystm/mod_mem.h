/* Allocation in transactions. See stm.h. */
#ifndef _MOD_MEM_H_
#define _MOD_MEM_H_

#include "stm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As malloc and calloc. The block is freed if the transaction does not commit. It may be one that
 * this thread has freed in a transaction. */
void *stm_malloc(size_t size);
void *stm_malloc_tx(struct stm_tx *tx, size_t size);
void *stm_calloc(size_t nm, size_t size);
void *stm_calloc_tx(struct stm_tx *tx, size_t nm, size_t size);

/* As free, for blocks of malloc and of this header. In a transaction the block is freed after the
 * commit, when no other transaction can read it any more. In programs with unit loads the words
 * from `idx` on, of `size` bytes in total, get a new version; otherwise both arguments are ignored.
 */
void stm_free(void *addr, size_t size);
void stm_free_tx(struct stm_tx *tx, void *addr, size_t size);
void stm_free2(void *addr, size_t idx, size_t size);
void stm_free2_tx(struct stm_tx *tx, void *addr, size_t idx, size_t size);

/* Has no effect. */
void mod_mem_init(int gc);

#ifdef __cplusplus
}
#endif

#endif
