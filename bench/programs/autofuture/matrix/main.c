/* Product of two square matrices, as in main.rs. */
#include <stdio.h>
#include <stdlib.h>

static double element(long row, long column) { return (double)((row * 31 + column * 17) % 101) / 101.0; }

static void product(long size, double (*restrict c)[size], double (*restrict a)[size],
                    double (*restrict b)[size])
{
    for (long row = 0; row < size; row++)
        for (long at = 0; at < size; at++)
            for (long column = 0; column < size; column++)
                c[row][column] += a[row][at] * b[at][column];
}

int main(int argc, char **argv)
{
    long size = argc > 1 ? atol(argv[1]) : 1200;
    double (*a)[size] = malloc(sizeof(double[size][size]));
    double (*b)[size] = malloc(sizeof(double[size][size]));
    double (*c)[size] = calloc(size, sizeof(double[size]));
    if (!a || !b || !c)
        return 1;
    for (long row = 0; row < size; row++)
        for (long column = 0; column < size; column++) {
            a[row][column] = element(row, column);
            b[row][column] = element(column, row);
        }
    product(size, c, a, b);
    double trace = 0;
    for (long n = 0; n < size; n++)
        trace += c[n][n];
    printf("%ld rows, trace %.17g, corner %.17g\n", size, trace, c[size - 1][0]);
    return 0;
}
