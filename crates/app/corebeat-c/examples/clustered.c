/* Threads that count together, in C.
 *
 *     cc clustered.c -I../include -L../../../../target/release -lcorebeat -pthread -o clustered && ./clustered
 */
#include "clustered.h"

#include <pthread.h>
#include <stdio.h>

enum { THREADS = 4, REQUESTS = 100000 };

static corebeat_counter *served, *open_now;

static void *serve(void *unused)
{
	for (int i = 0; i < REQUESTS; i++) {
		corebeat_counter_add(open_now, 1);
		corebeat_counter_add(served, 1);
		corebeat_counter_add(open_now, -1);
	}
	return unused;
}

int main(void)
{
	pthread_t threads[THREADS];

	served = corebeat_counter_new();
	open_now = corebeat_counter_new();
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, serve, NULL);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	printf("%lld requests served, %lld open\n", (long long)corebeat_counter_value(served),
	       (long long)corebeat_counter_value(open_now));
	corebeat_counter_free(served);
	corebeat_counter_free(open_now);
	return 0;
}
