/* A thread that is to be cancelled completes its calls, with and without a daemon. */
#define EXPECT_WHY hrm_why()
#include "hrm.h"
#include "expect.h"
#include "invasive_computing.h"

#include <pthread.h>

static void *cancelled(void *unused)
{
	hrm_t hrm;
	uint32_t rate;
	corebeat_claim *claim;
	EXPECT(pthread_cancel(pthread_self()) == 0);
	EXPECT(hrm_attach(&hrm, 7, 0) == 0 && hrm_set_min_heart_rate(&hrm, 5) == 0);
	EXPECT(hrm_get_min_heart_rate(&hrm, &rate) == 0 && rate == 5);
	EXPECT(heartbeat(&hrm, 1) == 0 && hrm_detach(&hrm) == 0);
	EXPECT(corebeat_claim_begin(&claim) == 0 && corebeat_invade(claim, 1, 2, 0) == 0);
	EXPECT(corebeat_claim_poll(claim, NULL) == 0 && corebeat_retreat(claim, 1) == 0);
	corebeat_claim_end(claim);
	EXPECT(hrm_attach(&hrm, 7, 0) == 0);
	pthread_testcancel();
	return unused;
}

int main(void)
{
	pthread_t thread;
	void *result = NULL;
	EXPECT(pthread_create(&thread, NULL, cancelled, NULL) == 0);
	EXPECT(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	printf("the thread has ended\n");
}
