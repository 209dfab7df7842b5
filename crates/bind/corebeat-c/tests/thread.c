/* Threads that end without hrm_detach, with and without a daemon. */
#define EXPECT_WHY hrm_why()
#include "hrm.h"
#include "expect.h"

#include <dirent.h>
#include <pthread.h>

/* More than the daemon's limit of connections of a user. */
#define THREADS 80

static pthread_key_t key;

static int descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	EXPECT(folder != NULL);
	int count = 0;
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

/* A destructor of the program runs before the thread's members end. */
static void detach(void *hrm)
{
	hrm_t other;
	EXPECT(hrm_attach(&other, 8, 0) == EIO);
	EXPECT(hrm_detach(hrm) == 0 && hrm_detach(hrm) == EINVAL);
	free(hrm);
}

static void *without_detach(void *unused)
{
	hrm_t producer, consumer;
	EXPECT(hrm_attach(&producer, 7, 0) == 0 && hrm_attach(&consumer, 7, 1) == 0);
	heartbeat(&producer, 1);
	return unused;
}

static void *detaches_at_its_end(void *unused)
{
	hrm_t *hrm = malloc(sizeof *hrm);
	EXPECT(hrm && hrm_attach(hrm, 7, 0) == 0 && pthread_setspecific(key, hrm) == 0);
	return unused;
}

static void run(void *(*thread)(void *), void *argument)
{
	pthread_t id;
	EXPECT(pthread_create(&id, NULL, thread, argument) == 0 && pthread_join(id, NULL) == 0);
}

/* The hrm_t of a thread that has ended, whose number no other thread gets. */
static void *attaches(void *hrm)
{
	EXPECT(hrm_attach(hrm, 7, 0) == 0);
	return hrm;
}

int main(void)
{
	EXPECT(pthread_key_create(&key, detach) == 0);
	int before = descriptors();
	for (int thread = 0; thread < THREADS; thread++)
		run(without_detach, NULL);
	EXPECT(descriptors() == before);
	run(detaches_at_its_end, NULL);
	EXPECT(descriptors() == before);

	hrm_t ended, own;
	run(attaches, &ended);
	EXPECT(hrm_attach(&own, 7, 0) == 0);
	EXPECT(hrm_detach(&ended) == EPERM && hrm_set_min_heart_rate(&ended, 5) == EPERM);
	hrm_t copy = own;
	EXPECT(hrm_detach(&own) == 0 && hrm_detach(&copy) == EPERM);
	printf("no descriptor is left\n");
}
