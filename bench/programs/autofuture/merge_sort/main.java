// The merge sort of main.rs, with a parallel stream of the two halves as long as they are large.
// With the argument "parallel" the stream is parallel, otherwise sequential.

import java.util.stream.IntStream;

final class MergeSort {
    private static final int SMALL = 16;
    private static final int COUNT = 8_000_000;
    /** Parts below this size are sorted without a stream. */
    private static final int LEAST = COUNT / 16;

    private final long[] numbers;
    private final long[] room;
    private final boolean isParallel;

    private MergeSort(long[] numbers, boolean isParallel) {
        this.numbers = numbers;
        this.room = numbers.clone();
        this.isParallel = isParallel;
    }

    private void sort(int start, int end) {
        if (end - start <= SMALL) {
            insert(start, end);
            return;
        }
        int middle = start + (end - start) / 2;
        if (end - start < LEAST) {
            sort(start, middle);
            sort(middle, end);
        } else {
            IntStream halves = IntStream.range(0, 2);
            (isParallel ? halves.parallel() : halves)
                .forEach(half -> sort(half == 0 ? start : middle, half == 0 ? middle : end));
        }
        merge(start, middle, end);
        System.arraycopy(room, start, numbers, start, end - start);
    }

    private void insert(int start, int end) {
        for (int next = start + 1; next < end; next++) {
            for (int at = next; at > start && above(numbers[at - 1], numbers[at]); at--) {
                long number = numbers[at];
                numbers[at] = numbers[at - 1];
                numbers[at - 1] = number;
            }
        }
    }

    private void merge(int start, int middle, int end) {
        int l = start;
        int r = middle;
        for (int at = start; at < end; at++) {
            boolean isLeft = r == end || l < middle && !above(numbers[l], numbers[r]);
            room[at] = isLeft ? numbers[l++] : numbers[r++];
        }
    }

    /** Whether a number is above another one, both without a sign. */
    private static boolean above(long a, long b) {
        return Long.compareUnsigned(a, b) > 0;
    }

    public static void main(String[] arguments) {
        long[] numbers = new long[COUNT];
        for (int n = 0; n < COUNT; n++) {
            numbers[n] = Long.rotateLeft((n + 1) * 0x9E3779B97F4A7C15L, 29);
        }
        MergeSort sort = new MergeSort(numbers, arguments[0].equals("parallel"));
        sort.sort(0, COUNT);
        long check = 0;
        boolean isSorted = true;
        for (int n = 0; n < COUNT; n++) {
            check = check * 31 + numbers[n];
            isSorted &= n == 0 || !above(numbers[n - 1], numbers[n]);
        }
        System.out.printf("%d numbers, sorted: %b, %016x%n", COUNT, isSorted, check);
    }
}
