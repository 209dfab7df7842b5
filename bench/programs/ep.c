/* Pairs of Gaussian deviates, counted by size. Threads share only the result.
 *
 * The program follows the EP benchmark of Bailey et al., The NAS Parallel Benchmarks (1991). The
 * polar method is that of Marsaglia and Bray, A Convenient Method for Generating Normal Variables
 * (1964).
 *
 * Usage: ep [PAIRS IN THOUSANDS]. The result does not depend on the number of threads, because the
 * program numbers the pairs, sums blocks of fixed size, and adds their sums in order. */
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define BLOCK 10000
#define BINS 10

static double uniform(uint64_t x) { /* Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators (2014) */
    x *= 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return (double)((x ^ (x >> 31)) >> 11) / 4503599627370496.0 - 1;
}

int main(int argc, char **argv) {
    long pairs = (argc > 1 ? atol(argv[1]) : 30000) * 1000;
    if (pairs < 1000 || pairs > 1000000000000)
        return fprintf(stderr, "ep: the size must be from 1 to 1000000000\n"), 2;
    long blocks = (pairs + BLOCK - 1) / BLOCK, counts[BINS] = {0};
    double *sums = calloc(blocks, sizeof *sums), begin = omp_get_wtime(), sum = 0;
    if (!sums)
        return fprintf(stderr, "ep: out of memory\n"), 1;
#pragma omp parallel for schedule(static) reduction(+ : counts)
    for (long block = 0; block < blocks; block++)
        for (long i = block * BLOCK; i < pairs && i < (block + 1) * BLOCK; i++) {
            double x = uniform(2 * i + 1), y = uniform(2 * i + 2), t = x * x + y * y;
            if (t > 1 || t == 0)
                continue;
            double scale = sqrt(-2 * log(t) / t), a = fabs(x * scale), b = fabs(y * scale);
            int bin = (int)(a > b ? a : b);
            counts[bin < BINS ? bin : BINS - 1]++;
            sums[block] += x * scale + y * scale;
        }
    for (long block = 0; block < blocks; block++)
        sum += sums[block];
    printf("checksum %.17g", sum);
    for (int bin = 0; bin < BINS; bin++)
        printf(" %ld", counts[bin]);
    printf("\ntime %.3f s\n", omp_get_wtime() - begin);
    free(sums);
    return 0;
}
