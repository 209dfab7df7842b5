/* SSOR sweeps as a wavefront. Threads wait for each other by spinning on flags.
 *
 * The program follows the LU benchmark of Bailey et al., The NAS Parallel Benchmarks (1991), and
 * the pipelined OpenMP version of Jin, Frumkin and Yan, The OpenMP Implementation of NAS Parallel
 * Benchmarks and Its Performance (1999), section 3.5. Each thread has a strip of the grid. A thread
 * begins a plane of its strip when its neighbour has finished the same plane of the neighbour's
 * strip. A flag between the two threads synchronises them for each plane. Each point has a block of
 * five unknowns. With more threads than CPUs, spinning threads occupy the CPUs of those threads
 * that would set the flags.
 *
 * Usage: lu [POINTS ALONG A SIDE]. The result does not depend on the number of threads. */
#include <omp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define STEPS 250
#define THREADS_MAX 1024

static int n;
static double (*u)[5], (*b)[5];
/* A thread sets a flag when it has finished a plane, and the next thread clears the flag when it
 * begins the plane. Each flag has its own cache line. */
static struct {
    _Alignas(64) atomic_int set;
} flags[THREADS_MAX];

static const double couple[5][5] = {{0.11, 0.02, 0.01, 0.00, 0.01},
                                    {0.01, 0.12, 0.02, 0.01, 0.00},
                                    {0.00, 0.01, 0.13, 0.02, 0.01},
                                    {0.01, 0.00, 0.01, 0.12, 0.02},
                                    {0.02, 0.01, 0.00, 0.01, 0.11}};

static size_t at(int i, int j, int k) { return ((size_t)k * (n + 2) + j) * (n + 2) + i; }

/* Relaxes one point towards its right-hand side and its six neighbours, of which three already have
 * new values. */
static void relax(size_t p) {
    size_t row = n + 2, plane = row * row;
    double near[5], sum[5];
    for (int m = 0; m < 5; m++)
        near[m] = u[p - 1][m] + u[p + 1][m] + u[p - row][m] + u[p + row][m] + u[p - plane][m] + u[p + plane][m];
    for (int m = 0; m < 5; m++) {
        sum[m] = b[p][m];
        for (int l = 0; l < 5; l++)
            sum[m] += couple[m][l] * near[l];
    }
    for (int m = 0; m < 5; m++)
        u[p][m] += 1.2 * (sum[m] * (1.0 / (1.0 + sum[m] * sum[m])) - u[p][m]) * 0.5;
}

static void wait_until(atomic_int *flag, int value) {
    while (atomic_load_explicit(flag, memory_order_acquire) != value)
        ;
}

static void take(int thread) {
    if (thread > 0) {
        wait_until(&flags[thread - 1].set, 1);
        atomic_store_explicit(&flags[thread - 1].set, 0, memory_order_release);
    }
}

static void hand_on(int thread, int threads) {
    if (thread < threads - 1) {
        wait_until(&flags[thread].set, 0);
        atomic_store_explicit(&flags[thread].set, 1, memory_order_release);
    }
}

static void step(void) {
#pragma omp parallel
    {
        int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        for (int k = 1; k <= n; k++) {
            take(thread);
#pragma omp for schedule(static) nowait
            for (int j = 1; j <= n; j++)
                for (int i = 1; i <= n; i++)
                    relax(at(i, j, k));
            hand_on(thread, threads);
        }
#pragma omp barrier
        for (int k = n; k >= 1; k--) {
            take(thread);
#pragma omp for schedule(static) nowait
            for (int j = n; j >= 1; j--)
                for (int i = n; i >= 1; i--)
                    relax(at(i, j, k));
            hand_on(thread, threads);
        }
    }
}

int main(int argc, char **argv) {
    n = argc > 1 ? atoi(argv[1]) : 45;
    if (n < 1 || n > 500)
        return fprintf(stderr, "lu: the size must be from 1 to 500\n"), 2;
    size_t points = (size_t)(n + 2) * (n + 2) * (n + 2);
    u = calloc(points, sizeof *u);
    b = calloc(points, sizeof *b);
    if (!u || !b)
        return fprintf(stderr, "lu: out of memory\n"), 1;
    double begin = omp_get_wtime(), sum = 0;
    for (int k = 1; k <= n; k++)
        for (int j = 1; j <= n; j++)
            for (int i = 1; i <= n; i++)
                for (int m = 0; m < 5; m++)
                    b[at(i, j, k)][m] = ((i * 7 + j * 13 + k * 29 + m * 3) % 17) / 17.0;
    for (int s = 0; s < STEPS; s++)
        step();
    for (size_t p = 0; p < points; p++)
        for (int m = 0; m < 5; m++)
            sum += u[p][m] * (m + 1);
    printf("checksum %.17g\ntime %.3f s\n", sum, omp_get_wtime() - begin);
    return 0;
}
