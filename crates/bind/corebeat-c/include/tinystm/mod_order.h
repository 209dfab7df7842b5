/* Transactions commit in the order in which they began, read-only ones included. See stm.h. */
#ifndef _MOD_ORDER_H_
#define _MOD_ORDER_H_

#include "stm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* To be called after stm_init and before stm_start; sets the contention manager. A transaction must
 * not wait for a later one, nor become irrevocable while an earlier one runs. If a thread exits
 * within a transaction, all later transactions wait for ever; so do those of a child of fork if
 * another thread was in a transaction. Unit stores have no place in the order. */
void mod_order_init(void);

#ifdef __cplusplus
}
#endif

#endif
