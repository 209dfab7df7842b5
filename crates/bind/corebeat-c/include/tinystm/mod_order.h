/* Transactions commit in the order in which they began, read-only ones included. See stm.h. */
#ifndef _MOD_ORDER_H_
#define _MOD_ORDER_H_

#include "stm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* To be called after stm_init and before stm_init_thread; sets the contention manager. A
 * transaction must not wait for a later one, nor become irrevocable while an earlier one runs. */
void mod_order_init(void);

#ifdef __cplusplus
}
#endif

#endif
