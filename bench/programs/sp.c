/* Sweeps along the three axes of a grid in turn, with many short parallel regions and barriers.
 *
 * The program follows the SP benchmark of Bailey et al., The NAS Parallel Benchmarks (1991). An
 * alternating-direction implicit step solves a band system along each line of the grid: first along
 * x, then along y, then along z. In this program the systems are tridiagonal, and Thomas' algorithm
 * solves them.
 *
 * Usage: sp [POINTS ALONG A SIDE]. The result does not depend on the number of threads. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#define STEPS 400
#define SIDE_MAX 500

static int n;
static double *u, *r, *f;

static size_t at(int i, int j, int k) { return ((size_t)k * n + j) * n + i; }

/* Solves (1 + 2a) x[i] - a (x[i-1] + x[i+1]) = r[i] along a line, in place. */
static void line(double *x, size_t stride, double a) {
    double c[SIDE_MAX], pivot = 1 + 2 * a;
    x[0] /= pivot;
    c[0] = -a / pivot;
    for (int i = 1; i < n; i++) {
        double m = 1 / (pivot + a * c[i - 1]);
        c[i] = -a * m;
        x[i * stride] = (x[i * stride] + a * x[(i - 1) * stride]) * m;
    }
    for (int i = n - 2; i >= 0; i--)
        x[i * stride] -= c[i] * x[(i + 1) * stride];
}

static double get(int i, int j, int k) {
    return i < 0 || j < 0 || k < 0 || i >= n || j >= n || k >= n ? 0 : u[at(i, j, k)];
}

/* Computes the right-hand side with three loops in one region. A barrier follows each loop. */
static void right_side(void) {
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int k = 0; k < n; k++)
            for (int j = 0; j < n; j++)
                for (int i = 0; i < n; i++)
                    r[at(i, j, k)] = f[at(i, j, k)] - 6 * u[at(i, j, k)];
#pragma omp for schedule(static)
        for (int k = 0; k < n; k++)
            for (int j = 0; j < n; j++)
                for (int i = 0; i < n; i++)
                    r[at(i, j, k)] += get(i - 1, j, k) + get(i + 1, j, k) + get(i, j - 1, k) + get(i, j + 1, k);
#pragma omp for schedule(static)
        for (int k = 0; k < n; k++)
            for (int j = 0; j < n; j++)
                for (int i = 0; i < n; i++)
                    r[at(i, j, k)] = 0.1 * (r[at(i, j, k)] + get(i, j, k - 1) + get(i, j, k + 1));
    }
}

static void step(void) {
    right_side();
#pragma omp parallel for schedule(static)
    for (int k = 0; k < n; k++)
        for (int j = 0; j < n; j++)
            line(&r[at(0, j, k)], 1, 0.1);
#pragma omp parallel for schedule(static)
    for (int k = 0; k < n; k++)
        for (int i = 0; i < n; i++)
            line(&r[at(i, 0, k)], n, 0.1);
#pragma omp parallel for schedule(static)
    for (int j = 0; j < n; j++)
        for (int i = 0; i < n; i++)
            line(&r[at(i, j, 0)], (size_t)n * n, 0.1);
#pragma omp parallel for schedule(static)
    for (int k = 0; k < n; k++)
        for (int j = 0; j < n; j++)
            for (int i = 0; i < n; i++)
                u[at(i, j, k)] += r[at(i, j, k)];
}

int main(int argc, char **argv) {
    n = argc > 1 ? atoi(argv[1]) : 40;
    if (n < 2 || n > SIDE_MAX)
        return fprintf(stderr, "sp: the size must be from 2 to %d\n", SIDE_MAX), 2;
    size_t points = (size_t)n * n * n;
    u = calloc(points, sizeof *u);
    r = calloc(points, sizeof *r);
    f = calloc(points, sizeof *f);
    if (!u || !r || !f)
        return fprintf(stderr, "sp: out of memory\n"), 1;
    double begin = omp_get_wtime(), sum = 0;
    for (int k = 0; k < n; k++)
        for (int j = 0; j < n; j++)
            for (int i = 0; i < n; i++)
                f[at(i, j, k)] = ((i * 5 + j * 11 + k * 23) % 19) / 19.0 - 0.5;
    for (int s = 0; s < STEPS; s++)
        step();
    for (size_t p = 0; p < points; p++)
        sum += u[p] * (1 + p % 3);
    printf("checksum %.17g\ntime %.3f s\n", sum, omp_get_wtime() - begin);
    return 0;
}
