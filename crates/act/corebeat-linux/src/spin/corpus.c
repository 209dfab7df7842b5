// Loops that wait, and loops that compute. The program runs the loop that its argument names, for
// ever: no other thread writes what a waiting loop reads.

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
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

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void trylock(void) {
    pthread_mutex_lock(&mutex);
    while (pthread_mutex_trylock(&mutex)) {}
}

static void trylock_with_yield(void) {
    pthread_mutex_lock(&mutex);
    while (pthread_mutex_trylock(&mutex)) sched_yield();
}

static void trylock_with_pause(void) {
    pthread_mutex_lock(&mutex);
    while (pthread_mutex_trylock(&mutex)) __builtin_ia32_pause();
}

// As parsec_barrier_wait, before it blocks.
static void trylock_with_volatile_counter(void) {
    pthread_mutex_lock(&mutex);
    for (;;) {
        volatile unsigned long i = 0;
        int result;
        while ((result = pthread_mutex_trylock(&mutex)) && i < 1000000000UL) i++;
        if (!result) return;
    }
}

static void spin_trylock(void) {
    pthread_spinlock_t lock;
    pthread_spin_init(&lock, PTHREAD_PROCESS_PRIVATE);
    pthread_spin_lock(&lock);
    while (pthread_spin_trylock(&lock)) {}
}

__attribute__((noinline)) static int is_set(const atomic_int *at) {
    return atomic_load_explicit(at, memory_order_acquire) != 0;
}

static void flag_in_a_function(void) {
    while (!is_set(&flag)) {}
}

__attribute__((noinline)) static int both_set(const atomic_int *a, const volatile int *b) {
    return is_set(a) && *b;
}

static void flag_in_functions(void) {
    while (!both_set(&flag, &plain_flag)) {}
}

struct object { int (*is_done)(struct object *); atomic_int done; };
static int object_is_done(struct object *o) { return atomic_load(&o->done); }
static struct object the_object = {.is_done = object_is_done};

static void flag_in_a_method(void) {
    struct object *volatile hidden = &the_object;
    struct object *o = hidden;
    while (!o->is_done(o)) {}
}

__attribute__((noinline)) static int try_take(atomic_int *from, int *into) {
    int value = atomic_load(from);
    if (!value) return *into = 0;
    *into = atomic_exchange(from, 0);
    return 1;
}

static void take_into_the_frame(void) {
    int taken;
    while (!try_take(&flag, &taken)) {}
    result = taken;
}

static void flag_with_yield(void) {
    while (!atomic_load(&flag)) sched_yield();
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

__attribute__((noinline)) static int at(int i) { return bytes_of[i & 0xffff]; }

static void sum_of_calls(void) {
    for (;;) {
        int total = 0;
        for (int i = 0; i < 1 << 16; i++) total += at(i);
        result = total;
    }
}

static void search_by_calls(void) {
    for (;;) {
        int i = 0;
        while (i < 1 << 16 && !at(i)) i++;
        result = i;
    }
}

__attribute__((noinline)) static void work_if(const atomic_int *enabled, int i) {
    if (!atomic_load(enabled)) return;
    bytes_of[i & 0xffff]++;
}

static void work_that_is_switched_off(void) {
    for (;;)
        for (int i = 0; i < 1000000; i++) work_if(&flag, i);
}

struct machine { int failed, left; unsigned hash; };
__attribute__((noinline)) static int is_finished(const struct machine *m) { return m->left <= 0; }
__attribute__((noinline)) static int advance(struct machine *m) {
    if (m->failed) return -1;
    for (int i = 0; i < 20; i++) m->hash = m->hash * 33 + (unsigned)i;
    m->left--;
    return 0;
}

// Each step may fail, and then changes nothing.
static void steps_with_error_path(void) {
    static struct machine machine;
    for (;;) {
        machine.left = 1000000;
        while (!is_finished(&machine)) advance(&machine);
        result = (int)machine.hash;
    }
}

static void steps_with_result(void) {
    static struct machine machine;
    for (;;) {
        machine.left = 1000000;
        while (!is_finished(&machine) && advance(&machine) == 0) {}
        result = (int)machine.hash;
    }
}

static void allocations(void) {
    for (;;) {
        void *blocks[16];
        for (int i = 0; i < 16; i++) blocks[i] = malloc(16 * (size_t)(i + 1));
        for (int i = 0; i < 16; i++) free(blocks[i]);
    }
}

static void characters_of_a_file(void) {
    FILE *file = fopen("/proc/self/exe", "r");
    if (!file) return;
    for (;;) {
        int c, lines = 0;
        rewind(file);
        while ((c = getc(file)) != EOF) lines += c == '\n';
        result = lines;
    }
}

// Nearly all attempts succeed.
static void additions_in_attempts(void) {
    pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
    for (;;)
        if (!pthread_mutex_trylock(&own)) {
            bytes_of[0]++;
            pthread_mutex_unlock(&own);
        }
}

static void locked_additions(void) {
    for (;;) {
        pthread_mutex_lock(&mutex);
        bytes_of[0]++;
        pthread_mutex_unlock(&mutex);
    }
}

static void numbers_as_text(void) {
    char line[64];
    for (;;)
        for (int i = 0; i < 1000; i++) {
            snprintf(line, sizeof line, "%d %g", i, i * 0.37);
            result = atoi(line);
        }
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
    LOOP(trylock), LOOP(trylock_with_yield), LOOP(trylock_with_pause),
    LOOP(trylock_with_volatile_counter), LOOP(spin_trylock), LOOP(flag_in_a_function),
    LOOP(flag_in_functions), LOOP(flag_in_a_method), LOOP(take_into_the_frame),
    LOOP(flag_with_yield),
    LOOP(sum), LOOP(search), LOOP(product_of_matrices), LOOP(random_numbers), LOOP(sort),
    LOOP(list), LOOP(sieve), LOOP(count_by_a_constant), LOOP(volatile_delay), LOOP(text),
    LOOP(sum_of_calls), LOOP(search_by_calls), LOOP(work_that_is_switched_off),
    LOOP(steps_with_error_path), LOOP(steps_with_result), LOOP(allocations),
    LOOP(characters_of_a_file), LOOP(locked_additions), LOOP(additions_in_attempts),
    LOOP(numbers_as_text),
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
