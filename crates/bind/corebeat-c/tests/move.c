/* A claim in an epoll set moves from a daemon to this process, to another daemon, and back. */
#define EXPECT_WHY corebeat_why()
#include "invasive_computing.h"
#include "expect.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

/* A wait that does not end is killed. */
#define HANGS_AFTER_S 300
#define ALL 1000

static corebeat_claim *first, *second;
static int set, fd;

static size_t cpus(corebeat_claim *claim)
{
	return corebeat_claim_cpus(claim, NULL, 0);
}

static int is_readable(int timeout_ms)
{
	struct epoll_event event;
	int count = epoll_wait(set, &event, 1, timeout_ms);
	EXPECT(count >= 0 && (count == 0 || event.data.fd == fd));
	return count;
}

/* Polls the first claim, whose descriptor must stay the same. */
static void poll_first(void)
{
	EXPECT(corebeat_claim_poll(first, NULL) == 0 && corebeat_claim_fd(first) == fd);
}

int main(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(HANGS_AFTER_S);
	EXPECT(corebeat_claim_begin(&first) == 0 && corebeat_invade(first, 1, ALL, 0) == 0);
	size_t all = cpus(first);
	fd = corebeat_claim_fd(first);
	set = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event added = {.events = EPOLLIN, .data.fd = fd};
	EXPECT(fd >= 0 && set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &added) == 0);

	/* The test ends the daemon. The claim moves to this process. */
	fprintf(stderr, "ready\n");
	EXPECT(is_readable(-1));
	poll_first();
	EXPECT(cpus(first) == all && !is_readable(0));
	EXPECT(corebeat_claim_begin(&second) == 0);
	EXPECT(is_readable(0) == (all > 1));
	poll_first();
	EXPECT(corebeat_claim_poll(second, NULL) == 0 && !is_readable(0));
	EXPECT(all == 1 || (cpus(first) == all - 1 && cpus(second) == 1));

	/* The test starts another daemon, and writes a line when both claims have moved there. */
	fprintf(stderr, "ready\n");
	struct pollfd input = {.fd = 0, .events = POLLIN};
	do {
		poll_first();
		EXPECT(corebeat_claim_poll(second, NULL) == 0);
		/* The daemon limits the rate of calls. */
	} while (poll(&input, 1, 10) == 0 ||
		 (all > 1 && (cpus(first) != all - 1 || cpus(second) != 1)));
	while (is_readable(0))
		poll_first();
	corebeat_claim_end(second);
	while (cpus(first) != all) {
		EXPECT(is_readable(-1));
		poll_first();
	}

	/* The test ends that daemon as well. */
	fprintf(stderr, "ready\n");
	EXPECT(is_readable(-1));
	poll_first();
	EXPECT(cpus(first) == all && !is_readable(0));
	corebeat_claim_end(first);
	return 0;
}
