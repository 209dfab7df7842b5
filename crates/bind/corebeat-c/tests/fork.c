/* Children of fork run transactions with modules, whatever locks other threads held at the fork.
 * The transactions of those threads only read: a child would wait for a word that they have
 * locked. */
#include "mod_ab.h"
#include "expect.h"
#include "stm.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define FORKS 200
#define THREADS 3
/* A child that hangs is killed. */
#define HANGS_AFTER_S 60

static atomic_bool is_over;

static stm_word_t read_once(stm_word_t *word)
{
	stm_tx_attr_t attr = {{.id = 1, .read_only = 1}};
	sigjmp_buf *env = stm_start(attr);
	if (env != NULL)
		sigsetjmp(*env, 0);
	stm_word_t value = stm_load(word);
	stm_commit();
	return value;
}

/* Takes the locks of the modules: of the callbacks, the samples and the settings. */
static void use_modules(stm_word_t *word)
{
	stm_ab_stats_t stats;
	mod_ab_init(1, NULL);
	EXPECT(read_once(word) == 7 && stm_get_ab_stats(1, &stats) == 1 && stats.samples > 0);
}

static void *reads(void *unused)
{
	stm_word_t word = 7;
	stm_init_thread();
	while (!is_over)
		use_modules(&word);
	stm_exit_thread();
	return unused;
}

int main(void)
{
	stm_word_t word = 7;
	pthread_t threads[THREADS];
	stm_init();
	mod_ab_init(1, NULL);
	stm_init_thread();
	use_modules(&word);
	for (int n = 0; n < THREADS; n++)
		EXPECT(pthread_create(&threads[n], NULL, reads, NULL) == 0);
	for (int n = 0; n < FORKS; n++) {
		pid_t child = fork();
		EXPECT(child >= 0);
		if (child == 0) {
			alarm(HANGS_AFTER_S);
			use_modules(&word);
			_exit(0);
		}
		int status;
		EXPECT(waitpid(child, &status, 0) == child && status == 0);
	}
	is_over = 1;
	for (int n = 0; n < THREADS; n++)
		EXPECT(pthread_join(threads[n], NULL) == 0);
	stm_exit_thread();
	stm_exit();
	puts("every child has committed");
	return 0;
}
