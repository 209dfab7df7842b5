/* Conjugate gradients on a large sparse matrix with random columns. Memory bounds the speed.
 *
 * The program follows the CG benchmark of Bailey et al., The NAS Parallel Benchmarks (1991). The
 * method is that of Hestenes and Stiefel, Methods of Conjugate Gradients for Solving Linear Systems
 * (1952).
 *
 * Usage: cg [ROWS IN THOUSANDS]. The result does not depend on the number of threads, because the
 * program sums blocks of fixed size and adds their sums in order. */
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define PAIRS 7 /* off-diagonal pairs per row */
#define ROW (2 * PAIRS + 1)
#define BLOCK 1024
#define ITERATIONS 400

static int n, blocks;
static int *column;
static double *value, *partial;

static uint64_t mix(uint64_t x) { /* Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators (2014) */
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

/* Fills a symmetric, diagonally dominant matrix: rings over a random order of the rows. */
static void fill(void) {
    int *order = malloc(n * sizeof *order), *place = malloc(n * sizeof *place);
    if (!order || !place)
        exit(1);
    for (int i = 0; i < n; i++)
        order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(mix(i) % (uint64_t)(i + 1)), o = order[i];
        order[i] = order[j];
        order[j] = o;
    }
    for (int i = 0; i < n; i++)
        place[order[i]] = i;
    for (int i = 0; i < n; i++) {
        int e = i * ROW;
        double sum = 1e-2;
        for (int d = 0; d < PAIRS; d++)
            for (int side = 0; side < 2; side++) {
                int far = 1 + d * d * 17 % (n - 1), j = order[(place[i] + (side ? far : n - far)) % n];
                int low = i < j ? i : j, high = i < j ? j : i;
                double w = (double)(mix((uint64_t)low * n + high) >> 11) / 9007199254740992.0;
                column[e] = j;
                value[e++] = -w;
                sum += w;
            }
        column[e] = i;
        value[e] = sum;
    }
    free(order);
    free(place);
}

static double dot(const double *a, const double *b) {
#pragma omp parallel for schedule(static)
    for (int block = 0; block < blocks; block++) {
        double sum = 0;
        for (int i = block * BLOCK; i < n && i < (block + 1) * BLOCK; i++)
            sum += a[i] * b[i];
        partial[block] = sum;
    }
    double sum = 0;
    for (int block = 0; block < blocks; block++)
        sum += partial[block];
    return sum;
}

static void multiply(const double *x, double *y) {
#pragma omp parallel for schedule(static)
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int e = i * ROW; e < (i + 1) * ROW; e++)
            sum += value[e] * x[column[e]];
        y[i] = sum;
    }
}

int main(int argc, char **argv) {
    n = (argc > 1 ? atoi(argv[1]) : 150) * 1000;
    if (n < 1000 || n > 100000000 / ROW)
        return fprintf(stderr, "cg: the size must be from 1 to %d\n", 100000 / ROW), 2;
    blocks = (n + BLOCK - 1) / BLOCK;
    column = malloc((size_t)n * ROW * sizeof *column);
    value = malloc((size_t)n * ROW * sizeof *value);
    partial = malloc(blocks * sizeof *partial);
    double *x = calloc(n, sizeof *x), *r = malloc(n * sizeof *r), *p = malloc(n * sizeof *p), *q = malloc(n * sizeof *q);
    if (!column || !value || !partial || !x || !r || !p || !q)
        return fprintf(stderr, "cg: out of memory\n"), 1;
    fill();
    double begin = omp_get_wtime();
    for (int i = 0; i < n; i++)
        r[i] = p[i] = (double)(mix(i + 1) >> 40) / 16777216.0;
    double rr = dot(r, r);
    for (int it = 0; it < ITERATIONS; it++) {
        multiply(p, q);
        double alpha = rr / dot(p, q);
#pragma omp parallel for schedule(static)
        for (int i = 0; i < n; i++) {
            x[i] += alpha * p[i];
            r[i] -= alpha * q[i];
        }
        double next = dot(r, r), beta = next / rr;
        rr = next;
#pragma omp parallel for schedule(static)
        for (int i = 0; i < n; i++)
            p[i] = r[i] + beta * p[i];
    }
    printf("checksum %.17g\ntime %.3f s\n", dot(x, x), omp_get_wtime() - begin);
    return 0;
}
