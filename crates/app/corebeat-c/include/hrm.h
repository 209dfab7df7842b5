/* Heartbeats for C and C++: the libhrm of Metronome.
 *
 * Source: Sironi et al., Metronome: Operating System Level Performance Management via Self-Adaptive Computing (DAC 2012),
 * appendix A.1.1 and Table 2.
 *
 *     hrm_t hrm;
 *     if (hrm_attach(&hrm, 7, 0))         this thread is a producer of group 7
 *         puts(hrm_why());
 *     hrm_set_min_heart_rate(&hrm, 20);   the group's goal: 20 to 30 heartbeats a second
 *     hrm_set_max_heart_rate(&hrm, 30);
 *     while (work()) heartbeat(&hrm, 1);
 *     hrm_detach(&hrm);
 *
 * Link with -lcorebeat. With a daemon (`corebeat daemon`) a group may have threads of many processes, and is seen and steered from
 * outside; without one it is this process' own.
 *
 * Each function gives 0 or an error number of <errno.h>:
 *   EINVAL   an argument makes no sense, or the hrm_t is not attached
 *   EPERM    a consumer may not do this, the hrm_t is another thread's, or the group is another user's
 *   EBUSY    this thread is in a group already, or has attached this hrm_t already: it stays as it is
 *   ENOSPC   a limit is reached: of groups, or of threads of a group
 *   EIO      the daemon refused, or has ended and there is no other one; hrm_why() has the words
 * Rates are whole heartbeats a second, cut to the next lower number. */
#ifndef COREBEAT_HRM_H
#define COREBEAT_HRM_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As in <rpc/types.h>. */
typedef int bool_t;

/* One thread's place in a group. It belongs to the thread that attached it. */
typedef struct hrm {
	uint64_t *counter; /* the thread's own cache line; NULL for consumers */
	void *inner;
} hrm_t;

/* Attaches this thread to the group `gid` (of this user; from 0) as a producer, or as a consumer if `consumer` is not 0. A thread
 * is a producer of one group at a time, until it detaches or ends. After fork() a child attaches anew; what it beats before that is
 * counted by nobody. Where the daemon is stopped hrm_attach, hrm_detach and the setters wait for it, for 2 s at most. Where it fails, the
 * hrm_t is one that is not attached, and heartbeat() on it does nothing. */
int hrm_attach(hrm_t *hrm, int gid, bool_t consumer);
/* Leaves the group. What was beaten stays in its sum. */
int hrm_detach(hrm_t *hrm);

/* The group's goal, set by producers. A bound of 0 is none. */
int hrm_set_min_heart_rate(hrm_t *hrm, uint32_t min_heart_rate);
int hrm_set_max_heart_rate(hrm_t *hrm, uint32_t max_heart_rate);
/* How many samples the window rate is taken over, from 1. */
int hrm_set_window_size(hrm_t *hrm, size_t window_size);

int hrm_get_min_heart_rate(hrm_t *hrm, uint32_t *min_heart_rate);
int hrm_get_max_heart_rate(hrm_t *hrm, uint32_t *max_heart_rate);
int hrm_get_window_size(hrm_t *hrm, size_t *window_size);
/* Over the group's whole life (equation 6), and over its window (equation 7). At most one period late. */
int hrm_get_global_heart_rate(hrm_t *hrm, uint32_t *global_heart_rate);
int hrm_get_window_heart_rate(hrm_t *hrm, uint32_t *window_heart_rate);

/* What was wrong with this thread's last call that failed, in words that say what to do. Valid until its next call. */
const char *hrm_why(void);

/* Emits `n` heartbeats: one load and one store on the thread's own cache line. The library has the same as a function, for languages
 * that read no headers; that one also says why it fails. */
static inline int heartbeat(hrm_t *hrm, uint64_t n)
{
	if (!hrm)
		return EINVAL;
	uint64_t *counter = hrm->counter;
	if (!counter)
		return EPERM;
	/* Nobody else writes here, so no atomic addition is needed; readers must see whole numbers. */
	__atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + n, __ATOMIC_RELAXED);
	return 0;
}

#ifdef __cplusplus
}
#endif

#endif
