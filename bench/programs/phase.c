/* Phases that want all threads, and phases that want one, in turn.
 *
 * The first kind computes on numbers of its own; the second adds to counters that all threads
 * share, so that their cache line travels for each addition. Phases are what Pusukuri, Runtime
 * Support for Maximizing Performance on Multicore Systems (2012), section 2.4, gives as the limit
 * of a thread count that is found once.
 *
 * Compiled as C++ with -DCLAIM it claims its CPUs, as many as there are for the first kind and one
 * for the second: Hollmann, Gerndt, Invasive Computing (2012), section 2.1.
 *
 * Use: phase [PAIRS OF PHASES]. The result does not depend on the number of threads: all sums are
 * of whole numbers. */
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef CLAIM
#include "invasive_computing.h"
#define CLAIMING(what) what
#else
#define CLAIMING(what)
#endif

#define REGIONS 40 /* a phase */
#define SCALING 1000000
#define SHARED 1000000
#define COUNTERS 8

static uint64_t shared[COUNTERS];

static uint64_t mix(uint64_t x) { /* Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators (2014) */
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

int main(int argc, char **argv) {
    int pairs = argc > 1 ? atoi(argv[1]) : 6;
    if (pairs < 1 || pairs > 100000)
        return fprintf(stderr, "phase: the size is from 1 to 100000\n"), 2;
    double begin = omp_get_wtime(), scaling = 0;
    uint64_t sum = 0;
    CLAIMING(Claim claim;)
    for (int pair = 0; pair < pairs; pair++) {
        double from = omp_get_wtime();
        CLAIMING(claim.invade(CPUQuantity(1, omp_get_num_procs()));)
        for (int region = 0; region < REGIONS; region++) {
            CLAIMING(claim.poll();)
#pragma omp parallel for schedule(static) reduction(+ : sum)
            for (long i = 0; i < SCALING; i++)
                sum += mix(mix(i + region) + pair) & 0xffff;
        }
        scaling += omp_get_wtime() - from;
        CLAIMING(claim.retreat(1);)
        for (int region = 0; region < REGIONS; region++)
#pragma omp parallel for schedule(static)
            for (long i = 0; i < SHARED; i++)
#pragma omp atomic
                shared[(i ^ region) % COUNTERS] += i & 0xff;
    }
    for (int c = 0; c < COUNTERS; c++)
        sum = mix(sum + shared[c]);
    double all = omp_get_wtime() - begin;
    printf("checksum %llu\ntime %.3f s (scaling phases %.3f s)\n", (unsigned long long)sum, all, scaling);
    return 0;
}
