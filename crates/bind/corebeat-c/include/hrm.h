/* Heartbeats for C and C++: the library libhrm of Metronome.
 *
 * Source: Sironi et al., Metronome: Operating System Level Performance Management via
 * Self-Adaptive Computing (DAC 2012), appendix A.1.1 and Table 2.
 *
 *     hrm_t hrm;
 *     if (hrm_attach(&hrm, 7, 0))         this thread is a producer of group 7
 *         puts(hrm_why());
 *     hrm_set_min_heart_rate(&hrm, 20);   the group's goal: 20 to 30 heartbeats per second
 *     hrm_set_max_heart_rate(&hrm, 30);
 *     while (work()) heartbeat(&hrm, 1);
 *     hrm_detach(&hrm);
 *
 * Link with -lcorebeat. If the daemon runs (`corebeat daemon`), a group can have threads of several
 * processes, and it can be observed and controlled from outside. Otherwise it is private to this
 * process.
 *
 * Each function returns 0 or an error number of <errno.h>; hrm_why() returns the reason. The
 * numbers are the same with and without a daemon:
 *   EINVAL     an argument is invalid, or the hrm_t is not attached
 *   EPERM      consumers may not do this, or another thread, or the parent process, attached the
 *              hrm_t
 *   EBUSY      this thread is in a group already, or has attached this hrm_t already; nothing
 *              changes
 *   ENOSPC     a limit is reached: 128 groups of a user, of these 64 of a process if a daemon runs;
 *              the processes of a user; 1,023 threads of a process in a group; or, with the
 *              daemon, 64 connections or 1,000 calls a second of a user
 *   ETIMEDOUT  the daemon does not answer within 2 s: it may be stopped
 *   EIO        the daemon has ended and no other one runs, its answer is invalid, or a thread that
 *              has left its group because it ends attaches again
 * A failed system call returns its own number, such as ENOMEM, EMFILE, or EACCES for a socket that
 * this user may not use. Rates are whole heartbeats per second, rounded down. No function is a
 * cancellation point: a thread that is to be cancelled (pthread_cancel) completes it. The thread
 * must not permit asynchronous cancellation. */
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

/* The membership of one thread in a group. It belongs to the thread that attached it. */
typedef struct hrm {
	uint64_t *counter; /* in a cache line of the thread; NULL for consumers */
	void *inner;
} hrm_t;

/* Attaches this thread to the group `gid` (a number of this user, from 0) as a producer, or as a
 * consumer if `consumer` is not 0. A thread can be a producer of one group at a time, until it
 * detaches or ends. After fork() the child must attach again; its beats before that are not
 * counted. If the daemon is stopped, hrm_attach, hrm_detach and the setters wait for at most 2 s,
 * whatever the other threads of the process do. A goal whose setter fails with ETIMEDOUT may take
 * effect when the daemon continues. Getters wait, for as long, only for a daemon that has started
 * since the attachment. After a failure of hrm_attach the hrm_t is not attached, and heartbeat() on
 * it does nothing. A thread that ends detaches what it has attached, and its hrm_t is invalid then.
 * Destructors of its data (pthread_key_create) may detach, but neither beat nor attach a producer.
 * Errors: EINVAL, EBUSY, ENOSPC, ETIMEDOUT, EIO, and those of system calls. */
int hrm_attach(hrm_t *hrm, int gid, bool_t consumer);
/* Leaves the group. The beats of this thread still count. Errors: EINVAL, EPERM. */
int hrm_detach(hrm_t *hrm);

/* The group's goal, set by producers. 0 clears a bound. EINVAL also if the minimum exceeds the
 * maximum, or a bound is above INT32_MAX (a negative number).
 * Errors: EINVAL, EPERM, ETIMEDOUT, EIO. */
int hrm_set_min_heart_rate(hrm_t *hrm, uint32_t min_heart_rate);
int hrm_set_max_heart_rate(hrm_t *hrm, uint32_t max_heart_rate);
/* Number of samples of the window rate, at least 1. */
int hrm_set_window_size(hrm_t *hrm, size_t window_size);

/* The present goal. Errors: EINVAL, EPERM, ETIMEDOUT, EIO. */
int hrm_get_min_heart_rate(hrm_t *hrm, uint32_t *min_heart_rate);
int hrm_get_max_heart_rate(hrm_t *hrm, uint32_t *max_heart_rate);
int hrm_get_window_size(hrm_t *hrm, size_t *window_size);
/* Rates since the group was created (equation 6), and over its window (equation 7). A beat is
 * counted at most one period late. Errors: EINVAL, EPERM, ETIMEDOUT, EIO. */
int hrm_get_global_heart_rate(hrm_t *hrm, uint32_t *global_heart_rate);
int hrm_get_window_heart_rate(hrm_t *hrm, uint32_t *window_heart_rate);

/* The reason of this thread's last failed call, and what to do. The address is valid until the
 * thread ends; the next failed call replaces the text. */
const char *hrm_why(void);

/* Emits `n` heartbeats: one load and one store in a cache line of this thread. The count saturates.
 * The library also exports this function, for languages that read no headers; that version sets
 * hrm_why() and detects other threads. Errors: EINVAL, EPERM. */
static inline int heartbeat(hrm_t *hrm, uint64_t n)
{
	if (!hrm)
		return EINVAL;
	uint64_t *counter = hrm->counter;
	if (!counter)
		return hrm->inner ? EPERM : EINVAL;
	/* No other thread writes the counter, so no atomic addition is needed; readers must read
	 * whole numbers. */
	uint64_t beats;
	if (__builtin_expect(__builtin_add_overflow(__atomic_load_n(counter, __ATOMIC_RELAXED), n,
						    &beats),
			     0)) {
		__atomic_store_n(counter, UINT64_MAX, __ATOMIC_RELAXED);
		return 0;
	}
	__atomic_store_n(counter, beats, __ATOMIC_RELAXED);
	return 0;
}

#ifdef __cplusplus
}
#endif

#endif
