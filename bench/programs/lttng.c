/* Measures a function with and without LTTng's tracepoints, in laps of many calls. In the pause
 * after each lap the writers catch up. `probe.rs` does the same with Rust libraries. */
#define _GNU_SOURCE
#define LTTNG_UST_TRACEPOINT_DEFINE
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#include "lttng.h"

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LAPS_MAX 1000

static unsigned hidden(unsigned value)
{
	__asm__ volatile("" : "+r"(value));
	return value;
}

static __attribute__((noinline)) unsigned plain(unsigned depth)
{
	return depth == 0 ? hidden(1) : hidden(plain(depth - 1)) + 1;
}

static __attribute__((noinline)) unsigned traced(unsigned depth)
{
	lttng_ust_tracepoint(bench, call_entry);
	unsigned result = depth == 0 ? hidden(1) : hidden(traced(depth - 1)) + 1;
	lttng_ust_tracepoint(bench, call_exit);
	return result;
}

static double now_ns(clockid_t clock)
{
	struct timespec time;
	clock_gettime(clock, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static uint64_t sum;
static unsigned pause_us;

/* Returns the time of the calls of a lap, in nanoseconds. */
static double lap(unsigned (*call)(unsigned), unsigned outer, unsigned depth)
{
	double begin = now_ns(CLOCK_MONOTONIC);
	for (unsigned i = 0; i < outer; i++)
		sum += call(hidden(depth - 1));
	double ns = now_ns(CLOCK_MONOTONIC) - begin;
	usleep(pause_us);
	return ns;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

/* Arguments: the CPU of the program, the depth, the calls of a lap, the number of laps, and the
 * pause after each lap in microseconds. */
int main(int argc, char **argv)
{
	if (argc != 6)
		return 2;
	unsigned depth = atoi(argv[2]), outer = atoi(argv[3]) / depth, laps = atoi(argv[4]);
	pause_us = atoi(argv[5]);
	double calls = (double)outer * depth, net_ns[LAPS_MAX], plain_cpu_ns = 0;
	cpu_set_t cpus;
	CPU_ZERO(&cpus);
	CPU_SET(atoi(argv[1]), &cpus);
	if (laps == 0 || laps > LAPS_MAX || sched_setaffinity(0, sizeof cpus, &cpus) != 0)
		return 2;
	double begin_cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID);
	/* The first pair warms up. */
	for (unsigned number = 0; number <= laps; number++) {
		double cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID);
		double plain_ns = lap(plain, outer, depth);
		plain_cpu_ns += now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns;
		double with_ns = lap(traced, outer, depth);
		if (number > 0)
			net_ns[number - 1] = (with_ns - plain_ns) / calls;
	}
	/* The time of laps without tracepoints counts twice: by itself, and as part of the other laps. */
	double net_cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID) - begin_cpu_ns - 2 * plain_cpu_ns;
	qsort(net_ns, laps, sizeof *net_ns, compare);
	double median = (net_ns[laps / 2] + net_ns[(laps - 1) / 2]) / 2;
	double all = calls * (laps + 1);
	printf("value %f\ncpu %f\nmeasured %f\ncalls %f\nchecksum %016lx\n", median, net_cpu_ns, all, all, (unsigned long)sum);
	return 0;
}
