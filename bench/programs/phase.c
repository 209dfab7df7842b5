/* Phases that are fastest with all threads alternate with phases that are fastest with one thread.
 *
 * In the first kind, each thread computes on its own numbers. In the second kind, threads add to
 * shared counters, so each addition moves a cache line. Pusukuri, Runtime Support for Maximizing
 * Performance on Multicore Systems (2012), section 2.4, states that phases limit the use of a
 * thread count that is found once.
 *
 * Compiled as C++ with -DCLAIM, the program claims all CPUs for the first kind and one CPU for the
 * second kind: Hollmann, Gerndt, Invasive Computing (2012), section 2.1.
 *
 * Usage: phase [PAIRS OF PHASES]. The result does not depend on the number of threads, because all
 * sums are of integers. */
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

#define REGIONS 40 /* per phase */
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
        return fprintf(stderr, "phase: the size must be from 1 to 100000\n"), 2;
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
