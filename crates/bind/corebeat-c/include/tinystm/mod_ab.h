/* Durations of transactions by their position in the program (`id` of their attributes). See stm.h.
 */
#ifndef _MOD_AB_H_
#define _MOD_AB_H_

#include "stm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Ticks of the processor's cycle counter, of attempts that have committed. */
typedef struct stm_ab_stats {
	unsigned long samples;
	double mean, variance, min, max;
	double percentile_50, percentile_90, percentile_95;
	/* A sorted sample of at most 1000 values. The library owns it; the next sample of this
	 * position replaces it. */
	double *reservoir;
	unsigned int reservoir_size;
} stm_ab_stats_t;

/* Statistics of a position. Returns 1, or 0 if there is no sample. */
int stm_get_ab_stats(int id, stm_ab_stats_t *stats);

/* To be called after stm_init and before stm_init_thread. Each thread samples one in `freq`
 * transactions (0: one in 1024) for which `check` returns a value other than 0. `check` may be
 * NULL. */
void mod_ab_init(int freq, int (*check)(void));

#ifdef __cplusplus
}
#endif

#endif
