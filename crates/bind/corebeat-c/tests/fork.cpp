/* A child of fork ends a claim of its parent, whose CPUs run threads of OpenMP. */
#include "invasive_computing.h"
#include "expect.h"

#include <csignal>
#include <cstdlib>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static int usable_cpus()
{
	cpu_set_t set;
	EXPECT(sched_getaffinity(0, sizeof set, &set) == 0);
	return CPU_COUNT(&set);
}

int main()
{
	int usable = usable_cpus();
	Claim *owned = new Claim;
	Claim &claim = *owned;
	unsigned count = claim.invade(CPUQuantity(1, 8));
	unsigned threads = 0;
#pragma omp parallel reduction(+ : threads)
	threads += 1;
	EXPECT(threads == count && claim.cpus().size() == count);

	pid_t child = fork();
	if (child == 0) {
		/* The child ends with its parent, and after a minute if it hangs. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(60);
		EXPECT(claim.cpus().empty());
		delete owned;
		EXPECT(usable_cpus() == usable);
		exit(0);
	}
	int status = -1;
	EXPECT(waitpid(child, &status, 0) == child && status == 0);
	EXPECT(claim.cpus().size() == count && claim.invade(CPUQuantity(1, 8)) == count);
	printf("a claim of %u CPUs\n", count);
	delete owned;
	EXPECT(usable_cpus() == usable);
}
