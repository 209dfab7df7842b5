/* What is to be done when a transaction is over. See stm.h. */
#ifndef _MOD_CB_H_
#define _MOD_CB_H_

#include "stm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In a transaction: calls the function when this attempt has committed, or when it has failed, and not in the other case. 1. */
int stm_on_commit(void (*on_commit)(void *arg), void *arg);
int stm_on_abort(void (*on_abort)(void *arg), void *arg);

/* After stm_init and before stm_init_thread. */
void mod_cb_init(void);

#ifdef __cplusplus
}
#endif

#endif
