/* Clustered objects for C and C++.
 *
 * Source: Matthews, Coady, Appavoo, Portability Events: A Programming Model for Scalable System Infrastructures (PLOS 2006).
 *
 *     corebeat_counter *served = corebeat_counter_new();
 *     corebeat_counter_add(served, 1);                 from any thread
 *     printf("%lld\n", (long long)corebeat_counter_value(served));
 *     corebeat_counter_free(served);
 *
 * Link with -lcorebeat. */
#ifndef COREBEAT_CLUSTERED_H
#define COREBEAT_CLUSTERED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A number that many threads add to, and few look at. Each thread has a part of its own, in cache lines that nobody else writes; a
 * thread that ends leaves its part to others. Not for signal handlers: what they add may be lost. */
typedef struct corebeat_counter corebeat_counter;

/* A counter, at 0. Never NULL. */
corebeat_counter *corebeat_counter_new(void);
/* Adds `n`, which may be negative. It wraps around. */
void corebeat_counter_add(corebeat_counter *counter, int64_t n);
/* What was added so far: all that was before this call, and some of what is added meanwhile. */
int64_t corebeat_counter_value(const corebeat_counter *counter);
/* Frees it. Nobody may use it any more. NULL is nothing. */
void corebeat_counter_free(corebeat_counter *counter);

#ifdef __cplusplus
}
#endif

#endif
