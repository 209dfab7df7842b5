/* How long transactions take, by their places in the program (`id` of their attributes). See stm.h. */
#ifndef _MOD_AB_H_
#define _MOD_AB_H_

#include "stm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In ticks of the processor's cycle counter, of those attempts that have committed. */
typedef struct stm_ab_stats {
	unsigned long samples;
	double mean, variance, min, max;
	double percentile_50, percentile_90, percentile_95;
	double *reservoir;           /* some of them, in order; the library's, until the next sample of this place */
	unsigned int reservoir_size; /* 1000 at most */
} stm_ab_stats_t;

/* Of a place: 1, or 0 if there is no sample. */
int stm_get_ab_stats(int id, stm_ab_stats_t *stats);

/* After stm_init and before stm_init_thread. Of each thread's transactions, one in `freq` is a sample (0: in 1024), of those for which
 * `check`, if there is one, gives anything but 0. */
void mod_ab_init(int freq, int (*check)(void));

#ifdef __cplusplus
}
#endif

#endif
