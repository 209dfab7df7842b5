/* A group of threads with a goal, in C.
 *
 *     cc heartbeat.c -I../include -L../../../../target/release -lcorebeat -pthread -o heartbeat
 *     ./heartbeat
 */
#include "hrm.h"

#include <pthread.h>
#include <stdio.h>

enum { GROUP = 7, THREADS = 4, ITEMS = 100000 };

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, hrm_why());
	_Exit(1);
}

static double item(int i)
{
	double x = i;
	for (int n = 0; n < 200; n++)
		x = x * 0.5 + 1.0 / (x + n + 1);
	return x;
}

static void *work(void *sum)
{
	hrm_t hrm;
	if (hrm_attach(&hrm, GROUP, 0))
		die("attach");
	for (int i = 0; i < ITEMS; i++) {
		*(double *)sum += item(i);
		heartbeat(&hrm, 1);
	}
	if (hrm_detach(&hrm))
		die("detach");
	return NULL;
}

int main(void)
{
	hrm_t hrm;
	uint32_t least, most, rate;
	size_t window;
	pthread_t threads[THREADS];
	double sums[THREADS] = {0};

	/* The goal belongs to the group; any producer can set it. */
	if (hrm_attach(&hrm, GROUP, 0) || hrm_set_min_heart_rate(&hrm, 1000) ||
	    hrm_set_max_heart_rate(&hrm, 2000000) || hrm_set_window_size(&hrm, 5))
		die("goal");
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, work, &sums[i]);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	if (hrm_get_min_heart_rate(&hrm, &least) || hrm_get_max_heart_rate(&hrm, &most) ||
	    hrm_get_window_size(&hrm, &window) || hrm_get_global_heart_rate(&hrm, &rate))
		die("read");
	printf("goal: %u to %u heartbeats per second over %zu samples; rate: %u per second\n", least,
	       most, window, rate);
	return hrm_detach(&hrm);
}
