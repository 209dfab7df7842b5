/* Callbacks at the end of a transaction. See stm.h. */
#ifndef _MOD_CB_H_
#define _MOD_CB_H_

#include "stm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In a transaction: registers a function that is called if this attempt commits, or if it fails.
 * Returns 1. */
int stm_on_commit(void (*on_commit)(void *arg), void *arg);
int stm_on_abort(void (*on_abort)(void *arg), void *arg);

/* To be called after stm_init and before stm_init_thread. */
void mod_cb_init(void);

#ifdef __cplusplus
}
#endif

#endif
