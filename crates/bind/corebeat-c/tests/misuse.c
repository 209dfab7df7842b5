/* Misuse returns the documented errors, with and without a daemon. */
#define _GNU_SOURCE
#define EXPECT_WHY hrm_why()
#include "hrm.h"
#include "expect.h"
#include "invasive_computing.h"

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Limit on the claims of a process. */
#define CLAIMS_MAX 16

static void *detach(void *hrm)
{
	return (void *)(intptr_t)hrm_detach(hrm);
}

/* The child ends with its parent, and after a minute if it hangs. */
static pid_t limited_fork(void)
{
	pid_t child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(60);
	}
	return child;
}

int main(void)
{
	/* The function that the library exports, not the inline one of the header. */
	int (*exported)(hrm_t *, uint64_t);
	*(void **)&exported = dlsym(RTLD_DEFAULT, "heartbeat");
	EXPECT(exported != NULL);

	hrm_t none = {0}, producer, second, consumer;
	uint32_t rate = 1;
	/* C may evaluate hrm_why() before the call that fails. */
	const char *why = hrm_why();

	EXPECT(hrm_attach(NULL, 1, 0) == EINVAL);
	EXPECT(hrm_attach(&producer, -1, 0) == EINVAL && strstr(why, "-1"));
	EXPECT(hrm_detach(&none) == EINVAL && hrm_detach(NULL) == EINVAL);
	EXPECT(strcmp(why, hrm_why()) == 0 && why == hrm_why());
	EXPECT(heartbeat(&none, 1) == EINVAL && heartbeat(NULL, 1) == EINVAL);
	EXPECT(exported(&none, 1) == EINVAL && exported(NULL, 1) == EINVAL);
	EXPECT(hrm_get_min_heart_rate(&none, &rate) == EINVAL && rate == 1);

	EXPECT(hrm_attach(&producer, 1, 0) == 0);
	EXPECT(hrm_attach(&second, 1, 0) == EBUSY && hrm_attach(&second, 2, 0) == EBUSY);
	EXPECT(hrm_attach(&producer, 1, 0) == EBUSY && strstr(hrm_why(), "hrm_detach"));
	EXPECT(hrm_attach(&consumer, 1, 1) == 0 && hrm_attach(&consumer, 2, 1) == EBUSY);
	EXPECT(hrm_attach(&second, 2, 1) == 0 && hrm_detach(&second) == 0 &&
	       hrm_attach(&second, 2, 1) == 0);
	EXPECT(hrm_detach(&second) == 0);
	EXPECT(hrm_set_min_heart_rate(&consumer, 5) == EPERM && heartbeat(&consumer, 1) == EPERM &&
	       exported(&consumer, 1) == EPERM);
	EXPECT(hrm_set_max_heart_rate(&producer, 10) == 0 &&
	       hrm_set_min_heart_rate(&producer, 11) == EINVAL);
	EXPECT(hrm_set_min_heart_rate(&producer, -5) == EINVAL && strstr(hrm_why(), "-5"));
	EXPECT(hrm_set_window_size(&producer, 0) == EINVAL &&
	       hrm_set_window_size(&producer, SIZE_MAX) == EINVAL);
	EXPECT(hrm_get_max_heart_rate(&consumer, &rate) == 0 && rate == 10);
	EXPECT(hrm_get_min_heart_rate(&consumer, &rate) == 0 && rate == 0);
	EXPECT(hrm_get_global_heart_rate(&consumer, NULL) == EINVAL);
	EXPECT(hrm_set_max_heart_rate(&producer, 0) == 0);
	EXPECT(hrm_get_max_heart_rate(&consumer, &rate) == 0 && rate == 0);
	pthread_t thread;
	void *error = NULL;
	EXPECT(pthread_create(&thread, NULL, detach, &producer) == 0 &&
	       pthread_join(thread, &error) == 0);
	EXPECT((intptr_t)error == EPERM);
	uint64_t counted = *producer.counter;
	EXPECT(heartbeat(&producer, UINT64_MAX) == 0 && heartbeat(&producer, 5) == 0);
	EXPECT(*producer.counter == UINT64_MAX);
	*producer.counter = counted;
	EXPECT(exported(&producer, UINT64_MAX) == 0 && exported(&producer, 5) == 0);
	EXPECT(*producer.counter == UINT64_MAX);
	*producer.counter = counted;
	uint64_t beats = *producer.counter;
	pid_t child = limited_fork();
	if (child == 0)
		_exit(hrm_set_max_heart_rate(&producer, 10) != EPERM ||
		      heartbeat(&producer, 1000) || hrm_detach(&producer) != EPERM ||
		      hrm_attach(&producer, 1, 0) || heartbeat(&producer, 1) ||
		      hrm_detach(&producer));
	int status = -1;
	EXPECT(waitpid(child, &status, 0) == child && status == 0);
	EXPECT(heartbeat(&producer, 1) == 0 && *producer.counter == beats + 1);
	EXPECT(hrm_detach(&producer) == 0 && hrm_detach(&producer) == EINVAL &&
	       hrm_detach(&consumer) == 0);

	corebeat_claim *claim = NULL;
	unsigned cpus[4];
	EXPECT(corebeat_claim_begin(NULL) == EINVAL && corebeat_invade(NULL, 1, 1, 0) == EINVAL);
	EXPECT(corebeat_claim_begin(&claim) == 0 && corebeat_claim_cpus(claim, cpus, 4) == 1);
	EXPECT(corebeat_invade(claim, 2, 1, 0) == EINVAL &&
	       corebeat_invade(claim, 1, 1, 7) == EINVAL);
	EXPECT(strstr(corebeat_why(), "7") && corebeat_claim_cpus(claim, NULL, 0) == 1);
	struct pollfd news = {.fd = corebeat_claim_fd(claim), .events = POLLIN};
	EXPECT(poll(&news, 1, 0) >= 0 && corebeat_claim_fd(NULL) == -1);
	EXPECT(corebeat_claim_poll(claim, NULL) == 0 && corebeat_heed(claim, NULL) == 0);
	EXPECT(corebeat_retreat(claim, 0) == 0);
	EXPECT(corebeat_claim_cpus(claim, NULL, 0) == 1 && corebeat_claim_cpus(NULL, cpus, 4) == 0);
	/* The same limit with and without a daemon. */
	corebeat_claim *more[CLAIMS_MAX] = {NULL};
	for (int begun = 1; begun < CLAIMS_MAX; begun++)
		EXPECT(corebeat_claim_begin(&more[begun]) == 0);
	EXPECT(corebeat_claim_begin(&more[0]) == ENOSPC && strstr(corebeat_why(), "limit of 16"));
	for (int begun = 1; begun < CLAIMS_MAX; begun++)
		corebeat_claim_end(more[begun]);
	child = limited_fork();
	if (child == 0) {
		int failed = corebeat_claim_cpus(claim, NULL, 0) != 0 ||
			     corebeat_invade(claim, 1, 1, COREBEAT_ANY) != EPERM ||
			     corebeat_retreat(claim, 1) != EPERM ||
			     corebeat_claim_poll(claim, NULL) != EPERM;
		corebeat_claim_end(claim);
		failed |= corebeat_claim_begin(&claim) != 0;
		_exit(failed);
	}
	EXPECT(waitpid(child, &status, 0) == child && status == 0);
	EXPECT(corebeat_claim_cpus(claim, NULL, 0) == 1);
	corebeat_claim_end(claim);
	corebeat_claim_end(NULL);
	printf("the header is correct\n");
}
