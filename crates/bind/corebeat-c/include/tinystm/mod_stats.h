/* Statistics of transactions. See stm.h. */
#ifndef _MOD_STATS_H_
#define _MOD_STATS_H_

#include "stm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Totals of all threads that have called stm_exit_thread, as unsigned long: global_nb_commits,
 * global_nb_aborts, global_max_retries. Returns 1, or 0 for an unknown name. */
int stm_get_global_stats(const char *name, void *val);
/* Values of this thread, as unsigned long: nb_commits, nb_aborts, nb_retries_min, nb_retries_max;
 * as double: nb_retries_avg. */
int stm_get_local_stats(const char *name, void *val);

/* Has no effect. */
void mod_stats_init(void);

#ifdef __cplusplus
}
#endif

#endif
