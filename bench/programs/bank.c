/* Transactions on accounts with the functions of TinySTM. The benches `stm.*` run this program with
 * libraries that have these functions.
 *
 * With LIMIT, a transfer only saves the registers and locks both accounts.
 *
 * bank WORK THREADS ACCOUNTS OPERATIONS LEAST_MS
 *
 * WORK is transfer or read. Each thread runs on its own CPU. A lap has OPERATIONS per thread, and
 * laps are repeated until LEAST_MS are measured. The first lap warms up. The program prints the
 * nanoseconds of a thread per operation, and the sum of all accounts. */
#define _GNU_SOURCE
#include "stm.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#define BALANCE 1000

static int reads;
static uint64_t accounts, operations;
static stm_word_t *balances;
static pthread_barrier_t lap;
static volatile int is_over;

static void die(const char *why)
{
	fprintf(stderr, "bank: %s\n", why);
	exit(1);
}

#ifdef LIMIT
static uint64_t *lock_of(stm_word_t *account)
{
	static uint64_t locks[1 << 20];
	return &locks[((uintptr_t)account >> 5) % (1 << 20)];
}

/* sigsetjmp saves the registers in the buffer of transactions, and each account is changed while
 * its lock is held. Nothing is logged, and no transfer restarts. */
static void transfer(stm_word_t *from, stm_word_t *to)
{
	static __thread sigjmp_buf *env;
	uint64_t *locks[] = {lock_of(from < to ? from : to), lock_of(from < to ? to : from)};
	if (!env)
		env = stm_get_env();
	sigsetjmp(*env, 0);
	while (__atomic_exchange_n(locks[0], 1, __ATOMIC_ACQUIRE))
		;
	while (locks[1] != locks[0] && __atomic_exchange_n(locks[1], 1, __ATOMIC_ACQUIRE))
		;
	*from -= 1;
	*to += 1;
	__atomic_store_n(locks[1], 0, __ATOMIC_RELEASE);
	__atomic_store_n(locks[0], 0, __ATOMIC_RELEASE);
}
#else
static void transfer(stm_word_t *from, stm_word_t *to)
{
	stm_tx_attr_t attr = {.attrs = 0};
	sigjmp_buf *env = stm_start(attr);
	if (env)
		sigsetjmp(*env, 0);
	stm_store(from, stm_load(from) - 1);
	stm_store(to, stm_load(to) + 1);
	stm_commit();
}
#endif

static stm_word_t sum(void)
{
	volatile stm_word_t result;
	stm_tx_attr_t attr = {.attrs = 0};
	attr.read_only = 1;
	sigjmp_buf *env = stm_start(attr);
	if (env)
		sigsetjmp(*env, 0);
	stm_word_t total = 0;
	for (uint64_t i = 0; i < accounts; i++)
		total += stm_load(&balances[i]);
	result = total;
	stm_commit();
	return result;
}

static void *teller(void *argument)
{
	uint64_t number = (uint64_t)(uintptr_t)argument, state = 0x9e3779b97f4a7c15 ^ (number + 1);
	cpu_set_t allowed, own;
	CPU_ZERO(&own);
	if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
		for (uint64_t cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++)
			if (CPU_ISSET(cpu, &allowed) && seen++ == number) {
				CPU_SET(cpu, &own);
				sched_setaffinity(0, sizeof own, &own);
			}
	stm_init_thread();
	for (;;) {
		pthread_barrier_wait(&lap);
		if (is_over)
			break;
		for (uint64_t i = 0; i < operations; i++) {
			if (reads) {
				if (sum() != accounts * BALANCE)
					die("money is missing");
				continue;
			}
			/* Marsaglia, Xorshift RNGs, 2003. */
			state ^= state << 13;
			state ^= state >> 7;
			state ^= state << 17;
			uint64_t from = (state >> 32) * accounts >> 32;
			uint64_t to = from + 1 + ((state & 0xffffffff) * (accounts - 1) >> 32);
			transfer(&balances[from], &balances[to < accounts ? to : to - accounts]);
		}
		pthread_barrier_wait(&lap);
	}
	stm_exit_thread();
	return NULL;
}

static uint64_t now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int main(int argc, char **argv)
{
	if (argc != 6)
		die("usage: bank WORK THREADS ACCOUNTS OPERATIONS LEAST_MS");
	reads = strcmp(argv[1], "read") == 0;
	uint64_t threads = strtoull(argv[2], NULL, 10), least_ns = strtoull(argv[5], NULL, 10) * 1000000;
	accounts = strtoull(argv[3], NULL, 10);
	operations = strtoull(argv[4], NULL, 10);
	balances = malloc(accounts * sizeof *balances);
	if (threads < 1 || threads > 64 || accounts < 2 || !balances)
		die("the number of threads or accounts is not supported");
	for (uint64_t i = 0; i < accounts; i++)
		balances[i] = BALANCE;
	stm_init();
	pthread_t tellers[64];
	pthread_barrier_init(&lap, NULL, threads + 1);
	for (uint64_t i = 0; i < threads; i++)
		if (pthread_create(&tellers[i], NULL, teller, (void *)(uintptr_t)i))
			die("cannot start a thread");
	uint64_t laps = 0, time_ns = 0;
	while (laps < 2 || time_ns < least_ns) {
		pthread_barrier_wait(&lap);
		uint64_t begin_ns = now_ns();
		pthread_barrier_wait(&lap);
		time_ns += laps++ ? now_ns() - begin_ns : 0;
	}
	is_over = 1;
	pthread_barrier_wait(&lap);
	for (uint64_t i = 0; i < threads; i++)
		pthread_join(tellers[i], NULL);
	stm_exit();
	uint64_t total = 0;
	for (uint64_t i = 0; i < accounts; i++)
		total += balances[i];
	if (total != accounts * BALANCE)
		die("money is missing at the end");
	printf("value %f\nchecksum %016llx\n", (double)time_ns / (double)((laps - 1) * operations), (unsigned long long)total);
	return 0;
}
