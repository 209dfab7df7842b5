/* Prints a line on standard output for each event. See stm.h. */
#ifndef _MOD_PRINT_H_
#define _MOD_PRINT_H_

#include "stm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* To be called after stm_init and before stm_init_thread. */
void mod_print_init(void);

#ifdef __cplusplus
}
#endif

#endif
