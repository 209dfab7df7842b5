/* Every kind of parallel region, with its result checked, again and again: check ROUNDS.
 * Prints the largest team, and the smallest and largest inner one. Never reads a thread count. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#define N 500

static int round_, size_max, inner_min = 1 << 30, inner_max;

static void expect(const char *what, long found, long expected) {
    if (found != expected) {
        printf("%s: %ld in place of %ld in round %d\n", what, found, expected, round_);
        exit(1);
    }
}

static void loops(void) {
    long sum;
    int seen[N];
#define LOOP(name, schedule_)                                                                                          \
    sum = 0;                                                                                                           \
    _Pragma(schedule_) for (int i = 0; i < N; i++) {                                                                   \
        sum += i;                                                                                                      \
        seen[i] = round_ + i;                                                                                          \
    }                                                                                                                  \
    expect(name, sum, (long)N *(N - 1) / 2);                                                                           \
    for (int i = 0; i < N; i++)                                                                                        \
        expect(name, seen[i], round_ + i);

    LOOP("static", "omp parallel for reduction(+ : sum) schedule(static)")
    LOOP("static chunk", "omp parallel for reduction(+ : sum) schedule(static, 7)")
    LOOP("dynamic", "omp parallel for reduction(+ : sum) schedule(dynamic, 5)")
    LOOP("monotonic dynamic", "omp parallel for reduction(+ : sum) schedule(monotonic : dynamic, 5)")
    LOOP("guided", "omp parallel for reduction(+ : sum) schedule(guided)")
    LOOP("monotonic guided", "omp parallel for reduction(+ : sum) schedule(monotonic : guided)")
    LOOP("runtime", "omp parallel for reduction(+ : sum) schedule(runtime)")
    LOOP("monotonic runtime", "omp parallel for reduction(+ : sum) schedule(monotonic : runtime)")
    LOOP("nonmonotonic runtime", "omp parallel for reduction(+ : sum) schedule(nonmonotonic : runtime)")
#undef LOOP
    /* Without reductions gcc folds the loop into the region's entry point. */
#define FOLDED(name, schedule_)                                                                                        \
    _Pragma(schedule_) for (int i = 0; i < N; i++) seen[i] = round_ ^ i;                                               \
    for (int i = 0; i < N; i++)                                                                                        \
        expect(name, seen[i], round_ ^ i);
    FOLDED("folded static", "omp parallel for schedule(static, 3)")
    FOLDED("folded dynamic", "omp parallel for schedule(dynamic)")
    FOLDED("folded monotonic dynamic", "omp parallel for schedule(monotonic : dynamic)")
    FOLDED("folded guided", "omp parallel for schedule(guided)")
    FOLDED("folded monotonic guided", "omp parallel for schedule(monotonic : guided)")
    FOLDED("folded runtime", "omp parallel for schedule(runtime)")
    FOLDED("folded monotonic runtime", "omp parallel for schedule(monotonic : runtime)")
    FOLDED("folded nonmonotonic runtime", "omp parallel for schedule(nonmonotonic : runtime)")
#undef FOLDED
    int next = 0;
#pragma omp parallel for ordered schedule(dynamic)
    for (int i = 0; i < 60; i++)
#pragma omp ordered
        next = next == i ? i + 1 : -1;
    expect("ordered", next, 60);
}

static void sections(void) {
    int a = 0, b = 0, c = 0, d = 0;
#pragma omp parallel sections
    {
#pragma omp section
        a = 1;
#pragma omp section
        b = 2;
#pragma omp section
        c = 3;
#pragma omp section
        d = 4;
    }
    expect("sections", a + 10 * b + 100 * c + 1000 * d, 4321);
}

static long fibonacci(int n) {
    long a, b;
    if (n < 2)
        return n;
#pragma omp task shared(a)
    a = fibonacci(n - 1);
    b = fibonacci(n - 2);
#pragma omp taskwait
    return a + b;
}

static void tasks(void) {
    long f = 0, sum = 0;
#pragma omp parallel
#pragma omp single
    f = fibonacci(10);
    expect("tasks", f, 55);
#pragma omp parallel reduction(task, + : sum)
#pragma omp single
    for (int i = 0; i < 40; i++)
#pragma omp task in_reduction(+ : sum)
        sum += i;
    expect("task reduction", sum, 780);
    sum = 0;
#pragma omp parallel
#pragma omp single
#pragma omp taskloop grainsize(10)
    for (int i = 0; i < N; i++)
#pragma omp atomic
        sum += i;
    expect("taskloop", sum, (long)N * (N - 1) / 2);
}

static void team(void) {
    int size = 0, singles = 0, got = 0, outer = 0;
#pragma omp parallel
    {
        int copy = 0;
#pragma omp atomic
        size++;
#pragma omp barrier
#pragma omp single copyprivate(copy)
        {
            copy = 7;
            singles++;
        }
#pragma omp atomic
        got += copy;
    }
    expect("single", singles, 1);
    expect("copyprivate", got, 7L * size);
    size_max = size > size_max ? size : size_max;
#pragma omp parallel reduction(+ : outer)
    {
        int inner = 0;
        outer++;
#pragma omp parallel shared(inner)
#pragma omp atomic
        inner++;
#pragma omp critical
        {
            inner_min = inner < inner_min ? inner : inner_min;
            inner_max = inner > inner_max ? inner : inner_max;
        }
    }
    expect("nested", outer > 0, 1);
}

static void cancel(void) {
    int found = 0;
#pragma omp parallel
    {
#pragma omp for
        for (int i = 0; i < N; i++) {
#pragma omp cancellation point for
            if (i % 100 == 99) {
#pragma omp atomic write
                found = 1;
#pragma omp cancel for
            }
        }
    }
    expect("cancel for", found, 1);
#pragma omp parallel
    {
#pragma omp cancel parallel
#pragma omp atomic write
        found = 2;
    }
    (void)found;
}

#ifdef OLD_ENTRY_POINTS
/* The entry points that gcc before 4.9 called. */
void GOMP_parallel_start(void (*)(void *), void *, unsigned);
void GOMP_parallel_loop_static_start(void (*)(void *), void *, unsigned, long, long, long, long);
void GOMP_parallel_loop_dynamic_start(void (*)(void *), void *, unsigned, long, long, long, long);
void GOMP_parallel_loop_guided_start(void (*)(void *), void *, unsigned, long, long, long, long);
void GOMP_parallel_loop_runtime_start(void (*)(void *), void *, unsigned, long, long, long);
void GOMP_parallel_sections_start(void (*)(void *), void *, unsigned, unsigned);
void GOMP_parallel_end(void);
/* An entry point of libgomp that no version of gcc calls. */
void GOMP_parallel_loop_static(void (*)(void *), void *, unsigned, long, long, long, long, unsigned);
_Bool GOMP_loop_static_next(long *, long *);
_Bool GOMP_loop_dynamic_next(long *, long *);
_Bool GOMP_loop_guided_next(long *, long *);
_Bool GOMP_loop_runtime_next(long *, long *);
void GOMP_loop_end_nowait(void);
unsigned GOMP_sections_next(void);
void GOMP_sections_end_nowait(void);

static void old_region(void *data) { __atomic_fetch_add((long *)data, 1, __ATOMIC_RELAXED); }

static void old_sections(void *data) {
    unsigned section;
    while ((section = GOMP_sections_next()) != 0)
        __atomic_fetch_add((long *)data, section, __ATOMIC_RELAXED);
    GOMP_sections_end_nowait();
}

#define OLD_LOOP(kind)                                                                                                 \
    static void old_##kind(void *data) {                                                                               \
        long from, to;                                                                                                 \
        while (GOMP_loop_##kind##_next(&from, &to))                                                                    \
            for (long i = from; i < to; i++)                                                                           \
                __atomic_fetch_add((long *)data, i, __ATOMIC_RELAXED);                                                 \
        GOMP_loop_end_nowait();                                                                                        \
    }
OLD_LOOP(static)
OLD_LOOP(dynamic)
OLD_LOOP(guided)
OLD_LOOP(runtime)

static void old(void) {
    long sum = 0;
    GOMP_parallel_start(old_region, &sum, 0);
    old_region(&sum);
    GOMP_parallel_end();
    expect("old region", sum >= 1, 1);
#define OLD(kind, ...)                                                                                                 \
    sum = 0;                                                                                                           \
    GOMP_parallel_loop_##kind##_start(old_##kind, &sum, 0, 0, N, 1, ##__VA_ARGS__);                                    \
    old_##kind(&sum);                                                                                                  \
    GOMP_parallel_end();                                                                                               \
    expect("old " #kind, sum, (long)N *(N - 1) / 2);
    OLD(static, 0)
    OLD(dynamic, 4)
    OLD(guided, 1)
    OLD(runtime)
    sum = 0;
    GOMP_parallel_loop_static(old_static, &sum, 0, 0, N, 1, 0, 0);
    expect("uncalled static", sum, (long)N * (N - 1) / 2);
    sum = 0;
    GOMP_parallel_sections_start(old_sections, &sum, 0, 3);
    old_sections(&sum);
    GOMP_parallel_end();
    expect("old sections", sum, 6);
}
#else
static void old(void) {}
#endif

/* A region that takes many variables from around it: LLVM passes each as an argument. */
static void wide(void) {
    long a0 = 0, a1 = 1, a2 = 2, a3 = 3, a4 = 4, a5 = 5, a6 = 6, a7 = 7, a8 = 8, a9 = 9, b0 = 10, b1 = 11, sum = 0;
#pragma omp parallel for shared(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1) reduction(+ : sum)
    for (int i = 0; i < 12; i++) {
        long *all[] = {&a0, &a1, &a2, &a3, &a4, &a5, &a6, &a7, &a8, &a9, &b0, &b1};
        sum += *all[i] * (i + 1);
    }
    expect("wide", sum, 572);
#define V(n) long v##n = n;
#define R(n) &v##n,
#define HALF(F)                                                                                                        \
    F(10) F(11) F(12) F(13) F(14) F(15) F(16) F(17) F(18) F(19) F(20) F(21) F(22) F(23) F(24) F(25) F(26) F(27) F(28)  \
    F(29) F(30) F(31) F(32) F(33) F(34) F(35) F(36) F(37) F(38) F(39) F(40) F(41) F(42) F(43) F(44) F(45) F(46) F(47)
#define EACH(F)                                                                                                        \
    HALF(F)                                                                                                            \
    F(48) F(49) F(50) F(51) F(52) F(53) F(54) F(55) F(56) F(57) F(58) F(59) F(60) F(61) F(62) F(63) F(64) F(65) F(66)  \
    F(67) F(68) F(69) F(70) F(71) F(72) F(73) F(74) F(75) F(76) F(77) F(78) F(79) F(80) F(81) F(82) F(83) F(84) F(85)
    EACH(V)
    sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 10; i < 86; i++) {
        long *all[] = {EACH(R)};
        sum += *all[i - 10] == i;
    }
    expect("very wide", sum, 76);
    sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 10; i < 48; i++) {
        long *all[] = {HALF(R)};
        sum += *all[i - 10] == i;
    }
    expect("half as wide", sum, 38);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 100;
    for (round_ = 0; round_ < rounds; round_++) {
        loops();
        sections();
        tasks();
        team();
        cancel();
        old();
        wide();
    }
    printf("right %d %d %d\n", size_max, inner_min, inner_max);
    return 0;
}
