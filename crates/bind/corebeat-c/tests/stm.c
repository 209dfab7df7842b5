/* Transactions behave as their headers document. */
#include "expect.h"
#include "mod_mem.h"
#include "mod_stats.h"
#include "wrappers.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define BEGIN(bits)                                                                                \
	{                                                                                          \
		stm_tx_attr_t attr_ = {.attrs = (bits)};                                           \
		sigjmp_buf *env_ = stm_start(attr_);                                               \
		if (env_)                                                                          \
			sigsetjmp(*env_, 0);
#define END                                                                                        \
	stm_commit();                                                                              \
	}

#define READ_ONLY (1 << 16)
#define NO_RETRY (1 << 18)
#define THREADS 4
#define TRANSFERS 20000
#define ACCOUNTS 64

static stm_word_t accounts[ACCOUNTS];

struct pair {
	stm_word_t first, second;
	int number;
};

static stm_word_t sum(void)
{
	volatile stm_word_t total;
	BEGIN(READ_ONLY)
	total = 0;
	for (int i = 0; i < ACCOUNTS; i++)
		total += stm_load(&accounts[i]);
	END
	return total;
}

/* A part of another transaction, or a separate one. */
static void add(int account, long amount)
{
	BEGIN(0)
	stm_store(&accounts[account], stm_load(&accounts[account]) + amount);
	END
}

static void *teller(void *number)
{
	unsigned seed = (unsigned)(uintptr_t)number;
	stm_init_thread();
	for (int i = 0; i < TRANSFERS; i++) {
		int from = rand_r(&seed) % ACCOUNTS, to = rand_r(&seed) % ACCOUNTS;
		BEGIN(0)
		add(from, -1);
		add(to, 1);
		END
		if (i % 64 == 0)
			EXPECT(sum() == ACCOUNTS * 1000);
	}
	unsigned commits = 0;
	EXPECT(stm_get_stats("nb_commits", &commits) == 1 &&
	       commits == TRANSFERS + (TRANSFERS + 63) / 64);
	stm_exit_thread();
	return NULL;
}

static void in_threads(void *(*function)(void *))
{
	pthread_t threads[THREADS];
	for (uintptr_t i = 0; i < THREADS; i++)
		EXPECT(pthread_create(&threads[i], NULL, function, (void *)(i + 1)) == 0);
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_join(threads[i], NULL) == 0);
}

static void bank(void)
{
	for (int i = 0; i < ACCOUNTS; i++)
		accounts[i] = 1000;
	in_threads(teller);
	EXPECT(sum() == ACCOUNTS * 1000);
	unsigned long commits = 0, aborts = 0, other = 7;
	EXPECT(stm_get_global_stats("global_nb_commits", &commits) == 1);
	EXPECT(commits == THREADS * (TRANSFERS + (TRANSFERS + 63) / 64));
	EXPECT(stm_get_global_stats("global_nb_aborts", &aborts) == 1);
	EXPECT(stm_get_global_stats("nothing", &other) == 0 && other == 7);
}

static void nested(void)
{
	stm_tx_attr_t attr = {.attrs = 0};
	EXPECT(stm_get_env() != NULL && !stm_active());
	sigjmp_buf *env = stm_start(attr);
	EXPECT(env != NULL && stm_get_env() == NULL && stm_active());
	sigsetjmp(*env, 0);
	EXPECT(stm_start(attr) == NULL);
	EXPECT(stm_commit() == 1 && stm_active());
	EXPECT(stm_commit() == 1 && !stm_active());
}

/* A nested abort undoes and restarts the outermost transaction, and reports its reason. */
static void aborts(void)
{
	volatile int tries = 0;
	stm_tx_attr_t attr = {.attrs = 0};
	unsigned failed = 0, failed_before = 0;
	EXPECT(stm_get_stats("nb_aborts", &failed_before));
	accounts[0] = 5;
	sigjmp_buf *env = stm_start(attr);
	int why = sigsetjmp(*env, 0);
	EXPECT(why == (tries ? (STM_ABORT_EXPLICIT | STM_PATH_INSTRUMENTED) : 0));
	EXPECT(stm_load(&accounts[0]) == 5);
	stm_store(&accounts[0], 6);
	stm_store(&accounts[1], 7);
	stm_store(&accounts[0], 8);
	stm_start(attr);
	if (tries++ < 3)
		stm_abort(0);
	stm_commit();
	EXPECT(stm_commit() == 1 && tries == 4 && accounts[0] == 8 && accounts[1] == 7);

	/* For good. */
	for (int by_attribute = 0; by_attribute < 2; by_attribute++) {
		attr.attrs = by_attribute ? NO_RETRY : 0;
		env = stm_start(attr);
		EXPECT(sigsetjmp(*env, 0) == 0);
		stm_store(&accounts[0], 9);
		stm_abort(by_attribute ? 0 : STM_ABORT_NO_RETRY);
		EXPECT(stm_aborted() && !stm_active() && accounts[0] == 8);
		EXPECT(stm_load(&accounts[0]) == 0);
		/* An address that such a load returns. */
		struct pair *next = (struct pair *)stm_load(&accounts[0]);
		EXPECT(stm_load(&next->second) == 0 && stm_load_int(&next->number) == 0);
		stm_store(&next->second, 10);
		stm_store_int(&next->number, 10);
		stm_store(&accounts[0], 10);
		EXPECT(stm_commit() == 0 && accounts[0] == 8);
	}
	EXPECT(stm_get_stats("nb_aborts", &failed) && failed == failed_before + 5);
	EXPECT(stm_get_stats("max_retries", &failed) && failed >= 3);
}

static void only_reads(void)
{
	volatile int tries = 0;
	BEGIN(READ_ONLY)
	tries++;
	EXPECT(stm_load(&accounts[0]) == 8);
	stm_store(&accounts[0], 11);
	EXPECT(stm_get_attributes().read_only == 0);
	END
	EXPECT(tries == 2 && accounts[0] == 11);
}

/* A number at the begin of a word that is larger than its block. */
static void small(void)
{
	int *number = malloc(sizeof *number);
	EXPECT(number != NULL);
	*number = 1;
	BEGIN(0)
	stm_store_int(number, stm_load_int(number) + 1);
	END
	EXPECT(*number == 2);
	free(number);
}

static void irrevocable(void)
{
	BEGIN(0)
	EXPECT(!stm_irrevocable());
	stm_store(&accounts[0], 1);
	EXPECT(stm_set_irrevocable(0) == 1 && stm_irrevocable());
	stm_store(&accounts[2], 2);
	END
	EXPECT(!stm_irrevocable() && accounts[0] == 1 && accounts[2] == 2);
}

static void memory(void)
{
	static stm_word_t link;
	volatile int tries = 0;
	BEGIN(0)
	stm_word_t *block = stm_malloc(sizeof *block);
	EXPECT(block != NULL);
	*block = 41;
	stm_store(block, stm_load(block) + 1);
	stm_store(&link, (stm_word_t)block);
	if (tries++ == 0)
		stm_abort(0);
	END
	EXPECT(*(stm_word_t *)link == 42);
	/* An undone block is not freed. */
	tries = 0;
	BEGIN(0)
	stm_word_t *block = (stm_word_t *)stm_load(&link);
	EXPECT(stm_load(block) == 42);
	stm_free(block, sizeof *block);
	if (tries++ == 0)
		stm_abort(0);
	stm_store(&link, 0);
	unsigned char *zeroes = stm_calloc(3, 5);
	for (int i = 0; i < 15; i++)
		EXPECT(zeroes[i] == 0);
	stm_free2(zeroes, 0, 15);
	END
	EXPECT(link == 0);
	free(stm_malloc(3));
}

static volatile stm_word_t top;

struct node {
	stm_word_t next, item;
};

/* Pops and pushes nodes. A node that was freed in the meantime must stay readable. */
static void *stacker(void *number)
{
	unsigned seed = (unsigned)(uintptr_t)number;
	volatile stm_word_t taken = 0;
	stm_init_thread();
	for (int i = 0; i < TRANSFERS; i++) {
		int puts = rand_r(&seed) % 2;
		BEGIN(0)
		struct node *first = (struct node *)stm_load(&top);
		taken = 0;
		if (puts) {
			struct node *node = stm_malloc(sizeof *node);
			node->next = (stm_word_t)first;
			node->item = (stm_word_t)node;
			stm_store(&top, (stm_word_t)node);
		} else if (first) {
			taken = stm_load(&first->item);
			EXPECT(taken == (stm_word_t)first);
			stm_store(&top, stm_load(&first->next));
			stm_free(first, sizeof *first);
		}
		END
	}
	stm_exit_thread();
	return NULL;
}

static void stack(void)
{
	in_threads(stacker);
	for (struct node *node = (struct node *)top, *rest; node; node = rest) {
		EXPECT(node->item == (stm_word_t)node);
		rest = (struct node *)node->next;
		free(node);
	}
}

#define NODES 1000

static pthread_barrier_t barrier;

static void *remover(void *unused)
{
	stm_init_thread();
	pthread_barrier_wait(&barrier);
	for (volatile int i = 0; i < NODES; i++) {
		BEGIN(0)
		struct node *first = (struct node *)stm_load(&top);
		stm_store(&top, stm_load(&first->next));
		stm_free(first, sizeof *first);
		END
	}
	pthread_barrier_wait(&barrier);
	stm_exit_thread();
	return unused;
}

/* Data that a transaction has read does not change, even if all of it is freed in the meantime. */
static void reading_on(int bits)
{
	pthread_t thread;
	volatile int tries = 0;
	volatile stm_word_t found = 0;
	top = 0;
	for (int i = 0; i < NODES; i++) {
		struct node *node = malloc(sizeof *node);
		node->next = top;
		node->item = (stm_word_t)node;
		top = (stm_word_t)node;
	}
	EXPECT(pthread_barrier_init(&barrier, NULL, 2) == 0 &&
	       pthread_create(&thread, NULL, remover, NULL) == 0);
	BEGIN(bits)
	found = stm_load(&top);
	if (tries++ == 0) {
		pthread_barrier_wait(&barrier);
		pthread_barrier_wait(&barrier);
		int count = 0;
		for (struct node *node = (struct node *)found; node;
		       node = (struct node *)stm_load(&node->next), count++)
			EXPECT(stm_load(&node->item) == (stm_word_t)node);
		EXPECT(count == NODES);
	}
	END
	EXPECT(pthread_join(thread, NULL) == 0 && pthread_barrier_destroy(&barrier) == 0);
}

/* Every size at every position of a word: adjacent bytes do not change, even after an abort. */
static void sizes(void)
{
	static union {
		stm_word_t words[4];
		uint8_t bytes[32];
	} at, was;
	for (int i = 0; i < 32; i++)
		was.bytes[i] = i * 7;
#define EACH(name, type, value_of)                                                                 \
	for (int offset = 0; offset + (int)sizeof(type) <= 24; offset++)                           \
		for (volatile int times = 0; times < 2; times++) {                                 \
			type value = value_of, old, got;                                           \
			volatile int tries = 0;                                                    \
			volatile type *place = (volatile type *)(void *)&at.bytes[offset];         \
			at = was;                                                                  \
			memcpy(&old, &at.bytes[offset], sizeof old);                               \
			BEGIN(0)                                                                   \
			got = stm_load_##name(place);                                              \
			EXPECT(memcmp(&got, &old, sizeof got) == 0);                               \
			stm_store_##name(place, value);                                            \
			got = stm_load_##name(place);                                              \
			EXPECT(memcmp(&got, &value, sizeof got) == 0);                             \
			if (times && tries++ == 0)                                                 \
				stm_abort(0);                                                      \
			END                                                                        \
			EXPECT(memcmp(&at.bytes[offset], &value, sizeof value) == 0);              \
			memcpy(&at.bytes[offset], &old, sizeof old);                               \
			EXPECT(memcmp(&at, &was, sizeof at) == 0);                                 \
		}
	EACH(u8, uint8_t, 0xa5)
	EACH(u16, uint16_t, 0xa55a)
	EACH(u32, uint32_t, 0xdeadbeef)
	EACH(u64, uint64_t, 0xdeadbeef0badcafe)
	EACH(char, char, -3)
	EACH(uchar, unsigned char, 253)
	EACH(short, short, -30000)
	EACH(ushort, unsigned short, 50000)
	EACH(int, int, -2000000000)
	EACH(uint, unsigned, 4000000000)
	EACH(long, long, -9000000000000000000)
	EACH(ulong, unsigned long, 18000000000000000000u)
	EACH(float, float, -1.5f)
	EACH(double, double, -1e300)

	static void *pointer;
	uint8_t bytes[21], back[21];
	for (int i = 0; i < 21; i++)
		bytes[i] = 200 + i;
	for (volatile int offset = 0; offset < 8; offset++) {
		at = was;
		BEGIN(0)
		stm_store_ptr((volatile void **)&pointer, bytes);
		EXPECT(stm_load_ptr((volatile void **)&pointer) == bytes);
		stm_store_bytes(&at.bytes[offset], bytes, 21);
		stm_load_bytes(&at.bytes[offset], back, 21);
		EXPECT(memcmp(bytes, back, 21) == 0);
		stm_set_bytes(&at.bytes[offset + 1], 9, 19);
		stm_store2(&at.words[3], ~(stm_word_t)0, (stm_word_t)0xff << 56);
		END
		EXPECT(pointer == bytes && at.bytes[offset] == 200 &&
		       at.bytes[offset + 20] == 220 && at.bytes[31] == 255);
		for (int i = 0; i < 31; i++)
			EXPECT(i > offset && i < offset + 20 ? at.bytes[i] == 9
							      : i == offset || i == offset + 20 || at.bytes[i] == was.bytes[i]);
	}
}

static int key, inits, exits, starts, precommits, commits, failures;

static void on_init(void *to)
{
	(*(int *)to)++;
	stm_set_specific(key, &key);
}

static void on_exit_thread(void *to)
{
	(void)to;
	EXPECT(stm_get_specific(key) == &key);
	exits++;
}

static void on_start(void *to)
{
	(void)to;
	starts++;
}

static void on_precommit(void *to)
{
	(void)to;
	EXPECT(stm_active());
	precommits++;
}

static void on_commit(void *to)
{
	(void)to;
	commits++;
}

static void on_abort(void *to)
{
	(void)to;
	failures++;
}

static void *in_module(void *unused)
{
	volatile int tries = 0;
	unsigned long least = 9, most = 9;
	double mean = 9;
	stm_init_thread();
	BEGIN(0)
	if (tries++ == 0)
		stm_abort(0);
	END
	EXPECT(stm_get_local_stats("nb_retries_min", &least) == 1 && least == 1);
	EXPECT(stm_get_local_stats("nb_retries_max", &most) == 1 && most == 1);
	EXPECT(stm_get_local_stats("nb_retries_avg", &mean) == 1 && mean == 1);
	EXPECT(stm_get_local_stats("nothing", &most) == 0 && stm_get_local_stats(NULL, &most) == 0);
	EXPECT(stm_get_stats(NULL, &most) == 0 && stm_get_stats("nb_commits", NULL) == 0);
	EXPECT(stm_get_global_stats(NULL, &most) == 0);
	stm_exit_thread();
	return unused;
}

static void modules(void)
{
	pthread_t thread;
	key = stm_create_specific();
	EXPECT(key == 0);
	EXPECT(stm_register(on_init, on_exit_thread, on_start, on_precommit, on_commit, on_abort,
	       &inits) == 1);
	EXPECT(pthread_create(&thread, NULL, in_module, NULL) == 0 &&
	       pthread_join(thread, NULL) == 0);
	EXPECT(inits == 1 && exits == 1 && starts == 1 && precommits == 1 && commits == 1 &&
	       failures == 1);
	for (int i = 1; i < 7; i++)
		EXPECT(stm_create_specific() == i &&
		       stm_register(NULL, NULL, on_start, NULL, NULL, NULL, NULL) == 1);
	EXPECT(stm_create_specific() == -1 &&
	       stm_register(NULL, NULL, on_start, NULL, NULL, NULL, NULL) == 0);
}

static void parameters(void)
{
	const char *text = NULL;
	EXPECT(stm_get_parameter("contention_manager", &text) == 1 && strcmp(text, "BACKOFF") == 0);
	EXPECT(stm_set_parameter("cm_policy", "suicide") == 1 &&
	       stm_set_parameter("cm_policy", "none") == 0);
	EXPECT(stm_get_parameter("contention_manager", &text) == 1 && strcmp(text, "SUICIDE") == 0);
	EXPECT(stm_set_parameter("cm_policy", "karma") == 1 &&
	       stm_set_parameter("cm_policy", "greedy") == 1);
	EXPECT(stm_get_parameter("design", &text) == 1 && strcmp(text, "WRITE-THROUGH") == 0);
	EXPECT(stm_get_parameter("nothing", &text) == 0 &&
	       stm_set_parameter("nothing", "at all") == 0);
	EXPECT(stm_get_parameter(NULL, &text) == 0 && stm_get_parameter("design", NULL) == 0);
	EXPECT(stm_set_parameter(NULL, "karma") == 0 && stm_set_parameter("cm_policy", NULL) == 0);
}

/* A thread that ends during a transaction releases its locks. */
static void *leaves(void *unused)
{
	stm_init_thread();
	BEGIN(0)
	stm_store(&accounts[0], 99);
	pthread_exit(unused);
	END
	return unused;
}

static void left_behind(void)
{
	pthread_t thread;
	EXPECT(pthread_create(&thread, NULL, leaves, NULL) == 0 && pthread_join(thread, NULL) == 0);
	BEGIN(0)
	EXPECT(stm_load(&accounts[0]) == 1);
	stm_store(&accounts[0], 2);
	END
	EXPECT(accounts[0] == 2);
}

static int calls;

static sigjmp_buf *counted(sigjmp_buf *env)
{
	calls++;
	return env;
}

static void jump(sigjmp_buf *env, int value)
{
	siglongjmp(*env, value);
}

static int is_blocked(int signal)
{
	sigset_t mask;
	EXPECT(sigprocmask(SIG_BLOCK, NULL, &mask) == 0);
	return sigismember(&mask, signal);
}

/* Blocks a signal. A jump ends that if the mask was saved. */
static void block(int signal)
{
	sigset_t mask;
	sigemptyset(&mask);
	sigaddset(&mask, signal);
	EXPECT(sigprocmask(SIG_BLOCK, &mask, NULL) == 0);
}

/* Changes the registers that functions restore, and restarts the transaction. */
static void __attribute__((noinline)) restart(void)
{
#ifdef __x86_64__
	__asm__ volatile("xor %%ebx, %%ebx\n xor %%r12d, %%r12d\n xor %%r13d, %%r13d\n"
			 "xor %%r14d, %%r14d\n xor %%r15d, %%r15d"
			 :
			 :
			 : "rbx", "r12", "r13", "r14", "r15");
#endif
	stm_abort(0);
}

static void __attribute__((noinline)) restarted(volatile int *tries)
{
	stm_tx_attr_t attr = {.attrs = 0};
	sigjmp_buf *env = stm_start(attr);
	int why = sigsetjmp(*counted(env), 0);
	EXPECT((why & STM_ABORT_EXPLICIT) == (*tries ? STM_ABORT_EXPLICIT : 0));
	if ((*tries)++ < 3)
		restart();
	stm_commit();
}

/* The callers of a transaction that restarts find the values that their registers contained. */
static long __attribute__((noinline)) registers(const volatile long *values, volatile int *tries)
{
	long a = values[0], b = values[1], c = values[2], d = values[3], e = values[4], f = values[5];
	restarted(tries);
	return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f;
}

/* sigsetjmp behaves as the C library documents, with buffers of transactions and others. */
static void environments(void)
{
	static const volatile long values[6] = {1, 10, 100, 1000, 10000, 100000};
	static sigjmp_buf own;
	volatile int tries = 0, jumps = 0;
	stm_tx_attr_t attr = {.attrs = 0};
	calls = 0;
	EXPECT(registers(values, &tries) == 654321 && tries == 4 && calls == 1);

	/* The program's own buffer, outside and inside a transaction. */
	for (volatile int inside = 0; inside < 2; inside++) {
		sigjmp_buf *env = inside ? stm_start(attr) : NULL;
		if (env)
			sigsetjmp(*env, 0);
		for (volatile int saves_mask = 0; saves_mask < 2; saves_mask++) {
			int value = sigsetjmp(own, saves_mask);
			if (value == 0) {
				block(SIGUSR1);
				jump(&own, 5);
			}
			EXPECT(value == 5 && is_blocked(SIGUSR1) == !saves_mask);
			jumps++;
			sigset_t mask;
			sigemptyset(&mask);
			EXPECT(sigprocmask(SIG_SETMASK, &mask, NULL) == 0);
		}
		if (inside)
			EXPECT(stm_commit() == 1);
	}
	EXPECT(jumps == 4);

	/* A buffer of transactions that contains the mask, after one that does not. */
	for (volatile int saves_mask = 0; saves_mask < 3; saves_mask++) {
		tries = 0;
		sigjmp_buf *env = stm_start(attr);
		sigsetjmp(*env, saves_mask % 2);
		EXPECT(is_blocked(SIGUSR1) == (tries && saves_mask % 2 == 0));
		block(SIGUSR1);
		if (tries++ == 0)
			stm_abort(0);
		EXPECT(stm_commit() == 1 && tries == 2);
		sigset_t mask;
		sigemptyset(&mask);
		EXPECT(sigprocmask(SIG_SETMASK, &mask, NULL) == 0);
	}
}

/* Whether the registers are not in the buffer of the C library. */
static int __attribute__((unused)) is_short(sigjmp_buf *env)
{
	uint64_t words[8];
	memcpy(words, env, sizeof words);
	return words[7] == 0;
}

/* The last save determines the restart. */
static void saves(void)
{
	stm_tx_attr_t attr = {.attrs = 0};
	/* Before stm_start, as in programs for older versions of TinySTM. */
	for (volatile int saves_mask = 0; saves_mask < 4; saves_mask++) {
		volatile int tries = 0;
		if (!sigsetjmp(*stm_get_env(), saves_mask % 2))
			stm_start(attr);
		if (tries++ < 2)
			stm_abort(0);
		EXPECT(stm_commit() == 1 && tries == 3);
	}
	/* Two in a transaction. */
	for (volatile int way = 0; way < 4; way++) {
		volatile int firsts = 0, seconds = 0;
		sigjmp_buf *volatile env = stm_start(attr);
		sigsetjmp(*env, way % 2);
		firsts++;
		sigsetjmp(*env, way / 2);
		if (seconds++ < 2)
			stm_abort(0);
#if defined(__x86_64__) && defined(__GLIBC__)
		int saves_registers = 0;
#ifdef COREBEAT_STM_INLINES
		uint64_t shadow_stack = 0;
		__asm__ volatile("rdsspq %0" : "+r"(shadow_stack));
		saves_registers = way / 2 == 0 && shadow_stack == 0;
#endif
		EXPECT(is_short(env) == saves_registers);
#endif
		EXPECT(stm_commit() == 1 && firsts == 1 && seconds == 3);
	}
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		/* Misuse: each ends the process. */
		if (strcmp(argv[1], "start") == 0)
			BEGIN(0)
			END
		if (strcmp(argv[1], "load") == 0) {
			stm_init_thread();
			/* Not constant, because compilers would warn. */
			stm_word_t *volatile nowhere = (stm_word_t *)16;
			stm_load(nowhere);
		}
		if (strcmp(argv[1], "free") == 0) {
			stm_init_thread();
			void *block = stm_malloc(40);
			BEGIN(0)
				for (int i = 0; i < 1000; i++)
					stm_free(block, 40);
			END
		}
		return 0;
	}
	stm_init();
	mod_mem_init(0);
	mod_stats_init();
	EXPECT(stm_init_thread() != NULL && stm_init_thread() == stm_current_tx());
	bank();
	nested();
	aborts();
	environments();
	saves();
	only_reads();
	small();
	irrevocable();
	memory();
	stack();
	reading_on(0);
	reading_on(READ_ONLY);
	sizes();
	left_behind();
	parameters();
	stm_exit_thread();
	EXPECT(stm_current_tx() == NULL);
	modules();
	stm_exit();
	puts("the headers are correct");
	return 0;
}
