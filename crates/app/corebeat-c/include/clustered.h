/* Clustered objects for C and C++: objects with a part for each thread, and references to what may be replaced while it is used.
 *
 * Source: Matthews, Coady, Appavoo, Portability Events: A Programming Model for Scalable System Infrastructures (PLOS 2006).
 *
 *     corebeat_counter *served = corebeat_counter_new();
 *     corebeat_counter_add(served, 1);                 from any thread
 *     printf("%lld\n", (long long)corebeat_counter_value(served));
 *     corebeat_counter_free(served);
 *
 *     corebeat_map *pages = corebeat_map_new(free);
 *     corebeat_map_put(pages, 7, strdup("seven"));
 *     corebeat_event_enter();
 *     const char *page = corebeat_map_get(pages, 7);   there until this thread leaves, whatever others do
 *     corebeat_event_leave();
 *
 * Every function may be called from any thread, but not from signal handlers. What is freed must not be in use; NULL is freed as nothing.
 * No function returns NULL but where it says so. Link with -lcorebeat. */
#ifndef COREBEAT_CLUSTERED_H
#define COREBEAT_CLUSTERED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A number that many threads add to, and few look at. Each thread has a part of its own, in cache lines that nobody else writes; a
 * thread that ends leaves its part to others. */
typedef struct corebeat_counter corebeat_counter;

/* A counter, at 0. */
corebeat_counter *corebeat_counter_new(void);
/* Adds `n`, which may be negative. It wraps around. */
void corebeat_counter_add(corebeat_counter *counter, int64_t n);
/* What was added so far: all that was before this call, and some of what is added meanwhile. */
int64_t corebeat_counter_value(const corebeat_counter *counter);
/* Frees it. */
void corebeat_counter_free(corebeat_counter *counter);

/* The part of this thread, which it may add to with corebeat_part_add for as long as the counter and the thread live. NULL for counters
 * beyond the first 512 that there are, and where the thread is about to end: use corebeat_counter_add. */
uint64_t *corebeat_counter_part(corebeat_counter *counter);

/* Adds to a part of this thread, without a call. */
static inline void corebeat_part_add(uint64_t *part, int64_t n)
{
	__atomic_store_n(part, __atomic_load_n(part, __ATOMIC_RELAXED) + (uint64_t)n, __ATOMIC_RELAXED);
}

/* How often which values came: exact up to 63, and to 1/32 above. Each thread has its own (15 KiB). */
typedef struct corebeat_histogram corebeat_histogram;

corebeat_histogram *corebeat_histogram_new(void);
/* Counts a value. */
void corebeat_histogram_record(corebeat_histogram *histogram, uint64_t value);
/* How many values came. */
uint64_t corebeat_histogram_count(const corebeat_histogram *histogram);
/* The least value that this share of all (0 to 1; others count as the nearer of these) is not above, or at most 1/32 more. 0 if none came. */
uint64_t corebeat_histogram_quantile(const corebeat_histogram *histogram, double share);
void corebeat_histogram_free(corebeat_histogram *histogram);

/* Numbers that are given once, from 0; those of a thread ascend. */
typedef struct corebeat_ids corebeat_ids;

corebeat_ids *corebeat_ids_new(void);
uint64_t corebeat_ids_next(corebeat_ids *ids);
void corebeat_ids_free(corebeat_ids *ids);

/* A portability event: what this thread finds between the two, through maps, stays there until it leaves. Events nest: the
 * outermost counts. A thread leaves as often as it has entered, before it ends; more often ends the program. */
void corebeat_event_enter(void);
void corebeat_event_leave(void);

/* Pointers by numbers. To get one takes no lock, and writes no line that another thread uses. */
typedef struct corebeat_map corebeat_map;

/* A map, empty. A pointer that was put there and replaced or removed is given to `release`, once for each time it was put, when no event
 * uses it any more, by whatever thread; it may wait until the thread that has replaced it does so again, or ends. `release` may be NULL:
 * then nothing is done. */
corebeat_map *corebeat_map_new(void (*release)(void *));
/* The pointer of a key, or NULL if it has none. Outside of an event, this ends the program. */
void *corebeat_map_get(const corebeat_map *map, uint64_t key);
/* Gives a key a pointer, in the place of the one that it has, if any. NULL takes the key out. */
void corebeat_map_put(corebeat_map *map, uint64_t key, void *value);
/* Frees it, and what is there as if it was removed. */
void corebeat_map_free(corebeat_map *map);

#ifdef __cplusplus
}
#endif

#endif
