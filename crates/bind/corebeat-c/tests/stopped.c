/* Calls a function twice while the daemon is stopped: stopped FUNCTION. */
#define EXPECT_WHY hrm_why()
#include "hrm.h"
#include "expect.h"
#include "invasive_computing.h"

#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

/* A call that hangs is killed. */
#define HANGS_AFTER_S 300

int main(int argc, char **argv)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(HANGS_AFTER_S);
	EXPECT(argc == 2);
	const char *name = argv[1];
#define IS(function) (strcmp(name, #function) == 0)
	hrm_t hrm = {0};
	corebeat_claim *claim = NULL;
	uint32_t rate;
	size_t size;
	unsigned cpus[4];
	int changed;
	if (strncmp(name, "corebeat_", 9) == 0 && !IS(corebeat_claim_begin))
		EXPECT(corebeat_claim_begin(&claim) == 0);
	if (strncmp(name, "corebeat_", 9) != 0 && !IS(hrm_attach))
		EXPECT(hrm_attach(&hrm, 1, 0) == 0);
	fprintf(stderr, "ready\n");
	getchar();

	/* The second call connects again, or waits for the answer to the first one. */
	for (int call = 0; call < 2; call++) {
		if (IS(hrm_attach))
			EXPECT(hrm_attach(&hrm, 1, 0) == ETIMEDOUT);
		else if (IS(hrm_detach))
			EXPECT(hrm_detach(&hrm) == (call == 0 ? 0 : EINVAL));
		else if (IS(hrm_set_min_heart_rate))
			EXPECT(hrm_set_min_heart_rate(&hrm, 1) == ETIMEDOUT);
		else if (IS(hrm_set_max_heart_rate))
			EXPECT(hrm_set_max_heart_rate(&hrm, 1) == ETIMEDOUT);
		else if (IS(hrm_set_window_size))
			EXPECT(hrm_set_window_size(&hrm, 3) == ETIMEDOUT);
		/* The measurements are read without the daemon. */
		else if (IS(hrm_get_min_heart_rate))
			EXPECT(hrm_get_min_heart_rate(&hrm, &rate) == 0);
		else if (IS(hrm_get_max_heart_rate))
			EXPECT(hrm_get_max_heart_rate(&hrm, &rate) == 0);
		else if (IS(hrm_get_window_size))
			EXPECT(hrm_get_window_size(&hrm, &size) == 0);
		else if (IS(hrm_get_global_heart_rate))
			EXPECT(hrm_get_global_heart_rate(&hrm, &rate) == 0);
		else if (IS(hrm_get_window_heart_rate))
			EXPECT(hrm_get_window_heart_rate(&hrm, &rate) == 0);
		else if (IS(hrm_why))
			EXPECT(hrm_why() != NULL);
		else if (IS(heartbeat))
			EXPECT(heartbeat(&hrm, 1) == 0);
		else if (IS(corebeat_claim_begin))
			EXPECT(corebeat_claim_begin(&claim) == ETIMEDOUT);
		else if (IS(corebeat_invade))
			EXPECT(corebeat_invade(claim, 1, 2, COREBEAT_ANY) == ETIMEDOUT);
		else if (IS(corebeat_retreat))
			EXPECT(corebeat_retreat(claim, 1) == ETIMEDOUT);
		/* If another claim has changed, the call queries the daemon. */
		else if (IS(corebeat_claim_poll))
			changed = corebeat_claim_poll(claim, &changed);
		else if (IS(corebeat_heed))
			changed = corebeat_heed(claim, &changed);
		else if (IS(corebeat_claim_cpus))
			EXPECT(corebeat_claim_cpus(claim, cpus, 4) <= 4);
		else if (IS(corebeat_claim_fd))
			EXPECT(corebeat_claim_fd(claim) >= 0);
		else if (IS(corebeat_claim_end)) {
			corebeat_claim_end(claim);
			claim = NULL;
		} else if (IS(corebeat_why))
			EXPECT(corebeat_why() != NULL);
		else
			EXPECT(!"this function has a case here");
	}
	/* The end of the process releases the rest. */
	_exit(0);
}
