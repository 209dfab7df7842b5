/* A line on standard output for whatever happens. See stm.h. */
#ifndef _MOD_PRINT_H_
#define _MOD_PRINT_H_

#include "stm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* After stm_init and before stm_init_thread. */
void mod_print_init(void);

#ifdef __cplusplus
}
#endif

#endif
