/* How transactions went. See stm.h. */
#ifndef _MOD_STATS_H_
#define _MOD_STATS_H_

#include "stm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of all threads that have called stm_exit_thread, as an unsigned long: global_nb_commits, global_nb_aborts, global_max_retries. 1, or 0 if
 * there is no such name. */
int stm_get_global_stats(const char *name, void *val);
/* Of this thread, as an unsigned long: nb_commits, nb_aborts, nb_retries_min, nb_retries_max; as a double: nb_retries_avg. */
int stm_get_local_stats(const char *name, void *val);

/* Nothing is to be done. */
void mod_stats_init(void);

#ifdef __cplusplus
}
#endif

#endif
