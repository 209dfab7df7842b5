/* A program with functions of its own that have names of zstd, linked with the static library. */
#define EXPECT_WHY hrm_why()
#include "hrm.h"
#include "expect.h"
#include "stm.h"

#include <stdio.h>

unsigned HIST_count(void);
unsigned ZSTD_compress(void);

unsigned HIST_count(void)
{
	return 1;
}

unsigned ZSTD_compress(void)
{
	return 2;
}

int main(void)
{
	hrm_t producer = {0};
	EXPECT(hrm_attach(&producer, 7, 0) == 0);
	EXPECT(hrm_detach(&producer) == 0);
	stm_init();
	stm_init_thread();
	volatile int tries = 0;
	sigjmp_buf *env = stm_start((stm_tx_attr_t){.attrs = 0});
	sigsetjmp(*env, 0);
	if (tries++ < 2)
		stm_abort(0);
	EXPECT(stm_commit() == 1 && tries == 3);
	stm_exit_thread();
	stm_exit();
	printf("%u\n", HIST_count() + ZSTD_compress());
	return 0;
}
