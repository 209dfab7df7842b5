/* Memory that transactions allocate and free. See stm.h. */
#ifndef _MOD_MEM_H_
#define _MOD_MEM_H_

#include "stm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As malloc and calloc. If the transaction comes to nothing the block is freed. Outside of transactions they are malloc and calloc. */
void *stm_malloc(size_t size);
void *stm_malloc_tx(struct stm_tx *tx, size_t size);
void *stm_calloc(size_t nm, size_t size);
void *stm_calloc_tx(struct stm_tx *tx, size_t nm, size_t size);

/* As free, for blocks from malloc and from here. In a transaction it is done after the commit, when nobody's transaction can be reading there
 * any more. The words from `idx` on, of `size` bytes in all, get a new version in programs with unit loads; else nobody looks at these. */
void stm_free(void *addr, size_t size);
void stm_free_tx(struct stm_tx *tx, void *addr, size_t size);
void stm_free2(void *addr, size_t idx, size_t size);
void stm_free2_tx(struct stm_tx *tx, void *addr, size_t idx, size_t size);

/* Nothing is to be done. */
void mod_mem_init(int gc);

#ifdef __cplusplus
}
#endif

#endif
