import java.util.Arrays;

/**
 * The benches of separate objects with Java's heap and collector. The objects, links, arguments and
 * output are those of the subjects in Rust (bench/src/scoop/plan.rs). Arguments: work, objects,
 * processors, collections; or "pause", objects, milliseconds.
 */
final class Scoop {
    static final class Tree {
        Tree left, right;
    }

    static final class Ring {
        Ring next;
    }

    static final class Links {
        Links a, b, c, d, e, f, g, h, i, j;
    }

    static Object roots;
    static volatile boolean over;

    /** Returns a random number below n, which the parameter number determines. */
    static int draw(long number, int n) {
        long z = (number + 1) * 0x9e3779b97f4a7c15L;
        z = (z ^ z >>> 30) * 0xbf58476d1ce4e5b9L;
        z = (z ^ z >>> 27) * 0x94d049bb133111ebL;
        z ^= z >>> 31;
        // The upper half of the unsigned product.
        return (int) (Math.multiplyHigh(z, n) + (z >> 63 & n));
    }

    static Tree grow(int from, int to) {
        Tree[] nodes = new Tree[to - from];
        for (int n = 0; n < nodes.length; n++) {
            nodes[n] = new Tree();
        }
        for (int n = 0; n < nodes.length; n++) {
            nodes[n].left = 2 * n + 1 < nodes.length ? nodes[2 * n + 1] : null;
            nodes[n].right = 2 * n + 2 < nodes.length ? nodes[2 * n + 2] : null;
        }
        return nodes[0];
    }

    static Tree[] trees(long objects, int processors) {
        Tree[] trees = new Tree[processors];
        for (int p = 0; p < processors; p++) {
            // The objects i with i * processors / objects == p.
            long from = (p * objects + processors - 1) / processors;
            trees[p] = grow((int) from, (int) (((p + 1) * objects + processors - 1) / processors));
        }
        return trees;
    }

    static void ring(int objects, boolean shuffled) {
        int[] order = new int[objects];
        Arrays.setAll(order, i -> i);
        for (int i = objects - 1; shuffled && i > 0; i--) {
            int j = draw((2L << 40) + i, i + 1), at = order[i];
            order[i] = order[j];
            order[j] = at;
        }
        Ring[] nodes = new Ring[objects];
        Arrays.setAll(nodes, i -> new Ring());
        for (int i = 0; i < objects; i++) {
            nodes[order[i]].next = nodes[order[(i + 1) % objects]];
        }
        roots = nodes[0];
    }

    static void links(int objects) {
        Links[] nodes = new Links[objects];
        Arrays.setAll(nodes, i -> new Links());
        for (int n = 0; n < objects; n++) {
            Links node = nodes[n];
            long number = (1L << 40) + 16L * n;
            node.a = nodes[draw(number + 0, objects)];
            node.b = nodes[draw(number + 1, objects)];
            node.c = nodes[draw(number + 2, objects)];
            node.d = nodes[draw(number + 3, objects)];
            node.e = nodes[draw(number + 4, objects)];
            node.f = nodes[draw(number + 5, objects)];
            node.g = nodes[draw(number + 6, objects)];
            node.h = nodes[draw(number + 7, objects)];
            node.i = nodes[draw(number + 8, objects)];
            node.j = nodes[draw(number + 9, objects)];
        }
        roots = nodes;
    }

    /** Another thread reads the clock, and measures for how long collections stopped it. */
    static double pause(int objects, long ms) throws InterruptedException {
        roots = trees(objects, 100);
        long[] longest = new long[1];
        Thread other = new Thread(() -> {
            long last = System.nanoTime();
            while (!over) {
                long now = System.nanoTime();
                longest[0] = Math.max(longest[0], now - last);
                last = now;
            }
        });
        other.start();
        long begin = System.nanoTime();
        while (System.nanoTime() - begin < ms * 1_000_000) {
            System.gc();
        }
        over = true;
        other.join();
        return longest[0] / 1e3;
    }

    public static void main(String[] arguments) throws InterruptedException {
        String work = arguments[0];
        int objects = Integer.parseInt(arguments[1]);
        double value;
        if (work.equals("pause")) {
            value = pause(objects, Long.parseLong(arguments[2]));
        } else {
            int processors = Integer.parseInt(arguments[2]);
            int collections = work.equals("dead") ? 1 : Integer.parseInt(arguments[3]);
            switch (work) {
                case "trees" -> roots = trees(objects, processors);
                case "dead" -> roots = trees(objects, processors)[0];
                case "ring" -> ring(objects, false);
                case "shuffled" -> ring(objects, true);
                default -> links(objects);
            }
            double[] times = new double[collections];
            for (int i = 0; i < collections; i++) {
                long begin = System.nanoTime();
                System.gc();
                times[i] = (System.nanoTime() - begin) / 1e6;
            }
            Arrays.sort(times);
            value = times[collections / 2];
        }
        System.out.printf("value %s%nchecksum %016x%n", value, objects);
    }
}
