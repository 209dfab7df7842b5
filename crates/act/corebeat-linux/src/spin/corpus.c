// Loops that wait, and loops that compute. The program runs the loop that its argument names, for
// ever: no other thread writes what a waiting loop reads.

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Not static: the compiler must assume that other threads write these.
atomic_int flag, held = 1, serving, result;
atomic_long phase;
volatile int plain_flag;
void *volatile sink;

struct node { _Atomic(struct node *) next; atomic_int locked; };
_Atomic(struct node *) tail;

static void flag_until_set(void) {
    while (!atomic_load_explicit(&flag, memory_order_acquire)) {}
}

static void plain_flag_until_set(void) {
    while (!plain_flag) {}
}

static void flag_with_pause(void) {
    while (!atomic_load(&flag)) __builtin_ia32_pause();
}

static void bounded_with_counter(void) {
    for (;;) {
        for (long i = 0; i < 1000000000L && !atomic_load(&flag); i++) {}
        if (atomic_load(&flag)) return;
    }
}

// As parsec_barrier_wait.
static void bounded_with_volatile_counter(void) {
    for (;;) {
        volatile unsigned long i = 0;
        while (!plain_flag && i < 1000000000UL) i++;
        if (plain_flag) return;
    }
}

static void test_and_set(void) {
    while (atomic_exchange(&held, 1)) {}
}

static void test_and_test_and_set(void) {
    while (atomic_exchange(&held, 1))
        while (atomic_load(&held)) {}
}

static void compare_and_swap(void) {
    int free_value;
    do free_value = 0;
    while (!atomic_compare_exchange_strong(&held, &free_value, 1));
}

static void ticket(void) {
    int mine = 1;
    while (atomic_load(&serving) != mine) {}
}

static void mcs(void) {
    struct node own = {.locked = 1};
    struct node *before = atomic_exchange(&tail, &own);
    if (before) atomic_store(&before->next, &own);
    sink = &own;
    while (atomic_load(&own.locked)) {}
}

static void phase_of_barrier(void) {
    long now = atomic_load(&phase);
    while (atomic_load_explicit(&phase, memory_order_relaxed) == now) {}
}

static void pthread_spin(void) {
    pthread_spinlock_t lock;
    pthread_spin_init(&lock, PTHREAD_PROCESS_PRIVATE);
    pthread_spin_lock(&lock);
    pthread_spin_lock(&lock);
}

static int bytes_of[1 << 16];

static void sum(void) {
    for (;;) {
        int total = 0;
        for (int i = 0; i < 1 << 16; i++) total += bytes_of[i];
        result = total;
    }
}

static void search(void) {
    for (;;) {
        int at = 0;
        while (at < 1 << 16 && bytes_of[at] != 1) at++;
        result = at;
    }
}

static void product_of_matrices(void) {
    enum { N = 120 };
    static double a[N][N], b[N][N], c[N][N];
    for (;;)
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) {
                double total = 0;
                for (int k = 0; k < N; k++) total += a[i][k] * b[k][j];
                c[i][j] = total;
            }
}

static void random_numbers(void) {
    unsigned x = 1;
    for (;;) {
        for (int i = 0; i < 1000000; i++) {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
        }
        result = (int)x;
    }
}

static int compare(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

static void sort(void) {
    static int values[4096];
    unsigned x = 1;
    for (;;) {
        for (int i = 0; i < 4096; i++) values[i] = (int)(x = x * 1664525 + 1013904223);
        qsort(values, 4096, sizeof values[0], compare);
    }
}

static void list(void) {
    struct item { struct item *next; int value; } *first = NULL;
    for (int i = 0; i < 4096; i++) {
        struct item *item = malloc(sizeof *item);
        *item = (struct item){.next = first, .value = i};
        first = item;
    }
    for (;;) {
        int n = 0;
        for (struct item *i = first; i; i = i->next) n += i->value;
        result = n;
    }
}

static void sieve(void) {
    static char composite[1 << 18];
    for (;;) {
        memset(composite, 0, sizeof composite);
        for (int i = 2; i * i < 1 << 18; i++)
            if (!composite[i])
                for (int j = i * i; j < 1 << 18; j += i) composite[j] = 1;
    }
}

// Its condition does not change within the loop.
static void count_by_a_constant(void) {
    for (;;) {
        volatile int limit = 100000000;
        int odd = 0, is_odd = (int)(size_t)sink & 1;
        for (int i = 0; i < limit; i++) odd += is_odd ? 1 : 2;
        result = odd;
    }
}

static void volatile_delay(void) {
    for (;;)
        for (volatile int i = 0; i < 1000000; i++) {}
}

static void text(void) {
    static char characters[1 << 16];
    memset(characters, 'a', sizeof characters - 1);
    sink = characters; // hides the content from the compiler
    const char *words = sink;
    for (;;) {
        unsigned hash = 5381;
        for (const char *c = words; *c; c++) hash = hash * 33 + (unsigned char)*c;
        result = (int)hash;
    }
}

#define LOOP(name) {#name, name}
static const struct { const char *name; void (*run)(void); } LOOPS[] = {
    LOOP(flag_until_set), LOOP(plain_flag_until_set), LOOP(flag_with_pause),
    LOOP(bounded_with_counter), LOOP(bounded_with_volatile_counter), LOOP(test_and_set),
    LOOP(test_and_test_and_set), LOOP(compare_and_swap), LOOP(ticket), LOOP(mcs),
    LOOP(phase_of_barrier), LOOP(pthread_spin),
    LOOP(sum), LOOP(search), LOOP(product_of_matrices), LOOP(random_numbers), LOOP(sort),
    LOOP(list), LOOP(sieve), LOOP(count_by_a_constant), LOOP(volatile_delay), LOOP(text),
};

int main(int count, char **arguments) {
    for (size_t i = 0; count == 2 && i < sizeof LOOPS / sizeof LOOPS[0]; i++)
        if (!strcmp(arguments[1], LOOPS[i].name)) {
            puts("ready");
            fflush(stdout);
            LOOPS[i].run();
        }
    return 1;
}
