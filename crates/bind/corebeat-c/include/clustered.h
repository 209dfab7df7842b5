/* Clustered objects for C and C++: objects with a part for each thread, and references to objects
 * that may be replaced while they are used.
 *
 * Source: Matthews, Coady, Appavoo, Portability Events: A Programming Model for Scalable System
 * Infrastructures (PLOS 2006). A read-side critical section is a portability event of the paper.
 *
 *     corebeat_counter *served = corebeat_counter_new();
 *     corebeat_counter_add(served, 1);                 from any thread
 *     printf("%lld\n", (long long)corebeat_counter_value(served));
 *     corebeat_counter_free(served);
 *
 *     corebeat_map *pages = corebeat_map_new(free);
 *     corebeat_map_put(pages, 7, strdup("seven"));
 *     corebeat_event_enter();
 *     const char *page = corebeat_map_get(pages, 7);   valid until this thread leaves
 *     corebeat_event_leave();
 *
 * Every function may be called from any thread, but not from signal handlers. An object must not be
 * in use when it is freed; freeing NULL does nothing. Functions return NULL only where documented.
 * Link with -lcorebeat. */
#ifndef COREBEAT_CLUSTERED_H
#define COREBEAT_CLUSTERED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A number that many threads add to and that is read rarely. Each thread adds to a part in private
 * cache lines. Another thread reuses the part of a thread that has ended. */
typedef struct corebeat_counter corebeat_counter;

/* A new counter with value 0. */
corebeat_counter *corebeat_counter_new(void);
/* Adds `n`, which may be negative. The value wraps around. */
void corebeat_counter_add(corebeat_counter *counter, int64_t n);
/* The sum of all additions before this call, and of some concurrent ones. */
int64_t corebeat_counter_value(const corebeat_counter *counter);
/* Frees a counter. */
void corebeat_counter_free(corebeat_counter *counter);

/* The part of this thread, to which the thread may add with corebeat_part_add while the counter and
 * the thread exist. Returns NULL for counters beyond the first 512, and on a thread that is about
 * to end: use corebeat_counter_add there. */
uint64_t *corebeat_counter_part(corebeat_counter *counter);

/* Adds to a part of this thread without a call of the library. */
static inline void corebeat_part_add(uint64_t *part, int64_t n)
{
	uint64_t sum = __atomic_load_n(part, __ATOMIC_RELAXED) + (uint64_t)n;
	__atomic_store_n(part, sum, __ATOMIC_RELAXED);
}

/* A histogram: exact up to 63, and to 1/32 above. Each thread has a private part (15 KiB). */
typedef struct corebeat_histogram corebeat_histogram;

corebeat_histogram *corebeat_histogram_new(void);
/* Counts a value. */
void corebeat_histogram_record(corebeat_histogram *histogram, uint64_t value);
/* Number of recorded values. */
uint64_t corebeat_histogram_count(const corebeat_histogram *histogram);
/* An upper bound, at most 1/32 too large, of the smallest value that is not exceeded by this share
 * of all values. Shares are clamped to 0..1. Returns 0 for an empty histogram. */
uint64_t corebeat_histogram_quantile(const corebeat_histogram *histogram, double share);
void corebeat_histogram_free(corebeat_histogram *histogram);

/* Unique numbers, starting at 0. The numbers of each thread ascend. */
typedef struct corebeat_ids corebeat_ids;

corebeat_ids *corebeat_ids_new(void);
uint64_t corebeat_ids_next(corebeat_ids *ids);
void corebeat_ids_free(corebeat_ids *ids);

/* A read-side critical section. Pointers that this thread obtains from maps between the two calls
 * stay valid until it leaves. Sections nest: the outermost one counts. A thread must leave as often
 * as it has entered, before it ends. Leaving more often ends the program. */
void corebeat_event_enter(void);
void corebeat_event_leave(void);

/* Pointers by number. Reading takes no lock and writes no cache line of another thread. */
typedef struct corebeat_map corebeat_map;

/* An empty map. When a pointer has been replaced or removed and no critical section uses it any
 * more, some thread passes it to `release`, once for each put. This may be delayed until the thread
 * that replaced the pointer replaces another one or ends. If `release` is NULL, nothing is called.
 */
corebeat_map *corebeat_map_new(void (*release)(void *));
/* The pointer of a key, or NULL. A call outside a critical section ends the program. */
void *corebeat_map_get(const corebeat_map *map, uint64_t key);
/* Sets or replaces the pointer of a key. NULL removes the key. */
void corebeat_map_put(corebeat_map *map, uint64_t key, void *value);
/* Frees a map. Its pointers are released as if removed. */
void corebeat_map_free(corebeat_map *map);

#ifdef __cplusplus
}
#endif

#endif
