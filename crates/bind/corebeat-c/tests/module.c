/* A sorted list whose operations are transactions, or unit loads followed by a conditional store,
 * with all modules. The program follows TinySTM's own tests: their macros,
 *        modules and order of calls. */
#include "mod_ab.h"
#include "mod_cb.h"
#include "mod_log.h"
#include "mod_mem.h"
#include "mod_order.h"
#include "mod_print.h"
#include "expect.h"
#include "stm.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#define START(place, ro)                                                                           \
	{                                                                                          \
		stm_tx_attr_t attr_ = {{.id = place, .read_only = ro}};                            \
		sigjmp_buf *env_ = stm_start(attr_);                                               \
		if (env_ != NULL)                                                                  \
			sigsetjmp(*env_, 0);
#define COMMIT                                                                                     \
	stm_commit();                                                                              \
	}
#define LOAD(addr) stm_load((stm_word_t *)(addr))
#define STORE(addr, value) stm_store((stm_word_t *)(addr), (stm_word_t)(value))
#define UNIT_LOAD(addr, ts) stm_unit_load((stm_word_t *)(addr), ts)
#define UNIT_STORE(addr, value, ts) stm_unit_store((stm_word_t *)(addr), (stm_word_t)(value), ts)

enum { CONTAINS, ADD, REMOVE };

#define THREADS 4
#define OPERATIONS 20000
#define RANGE 64

struct node {
	intptr_t value;
	struct node *next;
};

static struct node last = {INTPTR_MAX, NULL}, first = {INTPTR_MIN, &last};

static struct node *node(intptr_t value, struct node *next, void *(*allocate)(size_t))
{
	struct node *made = allocate(sizeof *made);
	EXPECT(made != NULL);
	made->value = value;
	made->next = next;
	return made;
}

/* Adds, removes or finds a value. Returns whether the list contained it. */
static int in_transaction(int what, intptr_t value)
{
	volatile int found;
	START(what, what == CONTAINS)
	struct node *before = &first, *at = (struct node *)LOAD(&first.next);
	while ((intptr_t)LOAD(&at->value) < value) {
		before = at;
		at = (struct node *)LOAD(&at->next);
	}
	found = (intptr_t)LOAD(&at->value) == value;
	if (what == ADD && !found)
		STORE(&before->next, node(value, at, stm_malloc));
	if (what == REMOVE && found) {
		STORE(&before->next, LOAD(&at->next));
		stm_free(at, sizeof *at);
	}
	COMMIT
	return found;
}

/* The same by unit loads. No loaded value is newer than `start`, so the loads are consistent. */
static int by_units(int what, intptr_t value)
{
	stm_word_t start, version;
	struct node *before, *at;
	intptr_t got;
	int found;
again:
	start = stm_get_clock();
	before = &first;
	for (;;) {
		at = (struct node *)UNIT_LOAD(&before->next, &version);
		if (version > start)
			goto again;
		got = (intptr_t)UNIT_LOAD(&at->value, &version);
		if (version > start)
			goto again;
		if (got >= value)
			break;
		before = at;
	}
	found = got == value;
	if (what == ADD && !found) {
		struct node *made = node(value, at, malloc);
		version = start;
		if (!UNIT_STORE(&before->next, made, &version)) {
			EXPECT(version > start);
			free(made);
			goto again;
		}
	}
	if (what == REMOVE && found) {
		stm_tx_attr_t attr = {.attrs = 0};
		attr.id = REMOVE;
		/* After a failure the list must be read again before the transaction restarts. */
		attr.no_retry = 1;
		sigjmp_buf *env = stm_start(attr);
		if (env != NULL)
			sigsetjmp(*env, 0);
		stm_set_extension(0, &start);
		STORE(&before->next, LOAD(&at->next));
		if (!stm_aborted())
			stm_free(at, sizeof *at);
		if (!stm_commit())
			goto again;
	}
	return found;
}

static long added[THREADS];

static void *works(void *number)
{
	unsigned seed = (unsigned)(uintptr_t)number;
	stm_init_thread();
	for (int i = 0; i < OPERATIONS; i++) {
		seed = seed * 1103515245 + 12345;
		int what = (seed >> 16) % 3;
		intptr_t value = 1 + (seed >> 20) % RANGE;
		int found = (seed >> 27) % 2 ? by_units(what, value) : in_transaction(what, value);
		added[(uintptr_t)number] += (what == ADD && !found) - (what == REMOVE && found);
	}
	stm_exit_thread();
	return NULL;
}

static void list(void)
{
	pthread_t threads[THREADS];
	for (uintptr_t i = 0; i < THREADS; i++)
		EXPECT(pthread_create(&threads[i], NULL, works, (void *)i) == 0);
	long size = 0, count = 0;
	for (int i = 0; i < THREADS; i++) {
		EXPECT(pthread_join(threads[i], NULL) == 0);
		size += added[i];
	}
	for (struct node *at = first.next, *next; at != &last; at = next) {
		next = at->next;
		EXPECT(at->value < next->value);
		free(at);
		count++;
	}
	EXPECT(count == size);
	unsigned long samples = 0;
	stm_ab_stats_t stats;
	for (int place = CONTAINS; place <= REMOVE; place++) {
		EXPECT(stm_get_ab_stats(place, &stats) == 1);
		EXPECT(stats.samples > 0 && stats.reservoir_size > 0 &&
		       stats.reservoir_size <= 1000);
		EXPECT(0 < stats.min && stats.min <= stats.percentile_50 &&
		       stats.percentile_50 <= stats.percentile_90);
		EXPECT(stats.percentile_90 <= stats.percentile_95 &&
		       stats.percentile_95 <= stats.max);
		EXPECT(stats.min <= stats.mean && stats.mean <= stats.max && stats.variance >= 0);
		for (unsigned i = 1; i < stats.reservoir_size; i++)
			EXPECT(stats.reservoir[i - 1] <= stats.reservoir[i]);
		samples += stats.samples;
	}
	EXPECT(samples > 0 && samples <= THREADS * OPERATIONS / 10 &&
	       stm_get_ab_stats(7, &stats) == 0);
}

static void units(void)
{
	static stm_word_t word = 5;
	stm_word_t version = 0, newer;
	EXPECT(stm_unit_load(&word, NULL) == 5 && stm_unit_load(&word, &version) == 5 &&
	       version <= stm_get_clock());
	newer = version;
	EXPECT(stm_unit_store2(&word, 0x1234, 0xff00, &newer) == 1 && word == 0x1205 &&
	       newer > version);
	EXPECT(stm_unit_store(&word, 7, &version) == 0 && version == newer && word == 0x1205);
	EXPECT(stm_unit_store(&word, 7, NULL) == 1 && word == 7);
	stm_init_thread();
	volatile int tries = 0;
	START(0, 0)
	if (tries++ == 0)
		stm_set_extension(0, &version);
	STORE(&word, LOAD(&word) + 1);
	EXPECT(stm_unit_load(&word, NULL) == 8);
	COMMIT
	/* It was newer than `version`; when it began again, there was no bound. */
	EXPECT(tries == 2 && word == 8);
	tries = 0;
	START(0, 0)
	tries++;
	STORE(&word, LOAD(&word) + 1);
	version = stm_get_clock();
	stm_inc_clock();
	EXPECT(stm_get_clock() > version && LOAD(&word) == 9 && !stm_killed());
	COMMIT
	EXPECT(tries == 1 && word == 9);
	stm_exit_thread();
}

static stm_word_t wanted, others[20];
static volatile int is_held;

static void *kill_other(void *unused)
{
	stm_init_thread();
	while (!is_held)
		sched_yield();
	START(0, 0)
	stm_word_t sum = 0;
	for (int i = 0; i < 20; i++)
		sum += LOAD(&others[i]);
	STORE(&wanted, LOAD(&wanted) + 1 + sum);
	COMMIT
	stm_exit_thread();
	return unused;
}

/* A transaction that has opened fewer words is killed, and observes that. */
static void kills(void)
{
	pthread_t killer;
	EXPECT(stm_set_parameter("cm_policy", "karma") == 1);
	EXPECT(pthread_create(&killer, NULL, kill_other, NULL) == 0);
	stm_init_thread();
	EXPECT(!stm_killed());
	volatile int tries = 0;
	START(0, 0)
	STORE(&wanted, LOAD(&wanted) + 1);
	is_held = 1;
	if (tries++ == 0)
		while (!stm_killed())
			sched_yield();
	COMMIT
	EXPECT(tries >= 2 && !stm_killed());
	EXPECT(pthread_join(killer, NULL) == 0);
	EXPECT(wanted == 2 && stm_set_parameter("cm_policy", "backoff") == 1);
	stm_exit_thread();
}

static void note(void *to)
{
	*(int *)to += 1;
}

static void callbacks(void)
{
	static int committed, failed;
	static struct {
		char c;
		double d;
		uint8_t bytes[5];
		void *ptr;
	} own = {'a', 1.5, "1234", &own};
	volatile int tries = 0;
	stm_init_thread();
	START(0, 0)
	EXPECT(own.c == 'a' && own.d == 1.5 && own.bytes[2] == '3' && own.ptr == &own);
	stm_log_char(&own.c);
	stm_log_double(&own.d);
	stm_log_bytes(own.bytes, sizeof own.bytes);
	stm_log_ptr(&own.ptr);
	own.c = 'b';
	stm_log_char(&own.c);
	own.c = 'c';
	own.d = 2.5;
	own.bytes[2] = 'x';
	own.ptr = NULL;
	stm_log_bytes(NULL, 0);
	EXPECT(stm_on_commit(note, &committed) == 1 && stm_on_commit(note, &committed) == 1);
	EXPECT(stm_on_abort(note, &failed) == 1);
	if (tries++ < 3)
		stm_abort(0);
	COMMIT
	EXPECT(committed == 2 && failed == 3);
	EXPECT(own.c == 'c' && own.d == 2.5 && own.bytes[2] == 'x' && own.ptr == NULL);
	stm_exit_thread();
}

static int refuses;

static void refuse(void *unused)
{
	(void)unused;
	if (refuses)
		stm_abort(STM_ABORT_NO_RETRY);
}

static void give_up(void *unused)
{
	(void)unused;
	stm_abort(0);
}

/* A callback on_precommit may abort the transaction. */
static void refusals(void)
{
	static stm_word_t word = 5;
	stm_tx_attr_t attr = {.attrs = 0};
	stm_init_thread();
	for (refuses = 1; refuses >= 0; refuses--) {
		sigjmp_buf *env = stm_start(attr);
		if (env != NULL)
			sigsetjmp(*env, 0);
		STORE(&word, LOAD(&word) + 1);
		EXPECT(stm_commit() == !refuses && stm_aborted() == refuses && !stm_active());
		EXPECT(word == (refuses ? 5 : 6));
	}
	stm_exit_thread();
}

#define ORDERED 50

static stm_word_t turns, line[2 + THREADS], total;
static volatile int has_begun, is_ready;

static void *second(void *unused)
{
	stm_init_thread();
	while (!has_begun)
		sched_yield();
	START(0, 0)
	STORE(&line[LOAD(&turns)], 2);
	STORE(&turns, LOAD(&turns) + 1);
	is_ready = 1;
	COMMIT
	for (int i = 0; i < ORDERED; i++) {
		START(0, 0)
		STORE(&total, LOAD(&total) + 1);
		COMMIT
	}
	stm_exit_thread();
	return unused;
}

static stm_word_t unordered;

static void *stores(void *unused)
{
	EXPECT(stm_unit_store(&unordered, 1, NULL) == 1);
	return unused;
}

/* A unit store has no turn. It succeeds although a transaction whose turn it is holds the lock. */
static void store_between(void)
{
	pthread_t thread;
	volatile int tries = 0;
	START(0, 0)
	STORE(&unordered, LOAD(&unordered) + 1);
	if (tries++ == 0) {
		EXPECT(pthread_create(&thread, NULL, stores, NULL) == 0);
		while (!stm_killed())
			sched_yield();
	}
	COMMIT
	EXPECT(pthread_join(thread, NULL) == 0);
	EXPECT(tries >= 2 && unordered == 2);
}

/* The transaction that begins first commits first, although the other one holds the locks. */
static void order(void)
{
	pthread_t threads[THREADS];
	stm_init_thread();
	stm_tx_attr_t once = {.attrs = 0};
	START(0, 0)
	if (!has_begun) {
		has_begun = 1;
		EXPECT(pthread_create(&threads[0], NULL, second, NULL) == 0);
	}
	while (!is_ready)
		sched_yield();
	STORE(&line[LOAD(&turns)], 1);
	STORE(&turns, LOAD(&turns) + 1);
	COMMIT
	for (int i = 1; i < THREADS; i++)
		EXPECT(pthread_create(&threads[i], NULL, second, NULL) == 0);
	/* The turn of a transaction that does not restart passes, too. */
	once.no_retry = 1;
	for (int i = 0; i < 10; i++) {
		sigjmp_buf *env = stm_start(once);
		if (env == NULL || sigsetjmp(*env, 0) == 0)
			stm_abort(0);
	}
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_join(threads[i], NULL) == 0);
	EXPECT(line[0] == 1 && line[1] == 2 && total == THREADS * ORDERED);
	store_between();
	stm_exit_thread();
}

static int always(void)
{
	return 1;
}

int main(int argc, char **argv)
{
	char *flags;
	stm_init();
	if (argc > 1 && strcmp(argv[1], "print") == 0) {
		mod_print_init();
		volatile int tries = 0;
		stm_init_thread();
		START(0, 0)
		if (tries++ == 0)
			stm_abort(0);
		COMMIT
		stm_exit_thread();
		return 0;
	}
	if (argc > 1 && strcmp(argv[1], "order") == 0) {
		mod_order_init();
		order();
		puts("in order");
		return 0;
	}
	if (argc > 1 && strcmp(argv[1], "early") == 0) {
		EXPECT(stm_register(NULL, NULL, give_up, NULL, NULL, NULL, NULL) == 1);
		stm_init_thread();
		START(0, 0)
		COMMIT
	}
	if (argc > 1 && strcmp(argv[1], "late") == 0) {
		stm_init_thread();
		mod_cb_init();
		stm_on_commit(note, NULL);
	}
	mod_mem_init(0);
	mod_ab_init(10, always);
	mod_cb_init();
	mod_log_init();
	EXPECT(stm_register(NULL, NULL, NULL, refuse, NULL, NULL, NULL) == 1);
	EXPECT(stm_get_parameter("compile_flags", &flags) == 1);
	units();
	kills();
	list();
	callbacks();
	refusals();
	stm_exit();
	puts("the headers are correct");
	return 0;
}
