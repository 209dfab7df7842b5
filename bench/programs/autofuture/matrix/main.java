// The product of main.rs, with a stream of the rows. With the argument "parallel" the stream is
// parallel, otherwise sequential.

import java.util.stream.IntStream;

final class Matrix {
    private static final int SIZE = 1200;

    private static double element(int row, int column) {
        return (row * 31 + column * 17) % 101 / 101.0;
    }

    private static double[] productRow(double[] row, double[][] other) {
        double[] sums = new double[row.length];
        for (int n = 0; n < row.length; n++) {
            double factor = row[n];
            double[] line = other[n];
            for (int column = 0; column < sums.length; column++) {
                sums[column] += factor * line[column];
            }
        }
        return sums;
    }

    private static double[][] product(double[][] a, double[][] b, boolean isParallel) {
        IntStream rows = IntStream.range(0, a.length);
        return (isParallel ? rows.parallel() : rows)
            .mapToObj(row -> productRow(a[row], b))
            .toArray(double[][]::new);
    }

    public static void main(String[] arguments) {
        double[][] a = new double[SIZE][SIZE];
        double[][] b = new double[SIZE][SIZE];
        for (int row = 0; row < SIZE; row++) {
            for (int column = 0; column < SIZE; column++) {
                a[row][column] = element(row, column);
                b[row][column] = element(column, row);
            }
        }
        double[][] c = product(a, b, arguments[0].equals("parallel"));
        double trace = 0;
        for (int n = 0; n < SIZE; n++) {
            trace += c[n][n];
        }
        System.out.println(SIZE + " rows, trace " + trace + ", corner " + c[SIZE - 1][0]);
    }
}
