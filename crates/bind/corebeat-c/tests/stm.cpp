/* The headers of transactions can be used from C++. */
#include "mod_mem.h"
#include "mod_stats.h"
#include "wrappers.h"

#include <pthread.h>

static volatile float sum;

int main()
{
	stm_init();
	stm_init_thread();
	stm_tx_attr_t attr;
	attr.attrs = 0;
	volatile int tries = 0;
	sigjmp_buf *env = stm_start(attr);
	if (env)
		::sigsetjmp(*env, 0);
	if (tries++ < 2)
		stm_abort(0);
	stm_store_float(&sum, stm_load_float(&sum) + 1.5f);
	stm_commit();
	stm_exit_thread();
	unsigned long commits = 0;
	stm_get_global_stats("global_nb_commits", &commits);
	stm_exit();
	printf("%d attempts, %lu commits and %g\n", tries, commits, sum);
}
