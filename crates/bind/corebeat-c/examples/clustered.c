/* Threads with common counters and a common cache, in C.
 *
 *     cc clustered.c -I../include -L../../../../target/release -lcorebeat -pthread -o clustered
 *     ./clustered
 */
#include "clustered.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, REQUESTS = 100000, PAGES = 100 };

static corebeat_counter *served, *open_now, *released;
static corebeat_histogram *sizes;
static corebeat_ids *ids;
static corebeat_map *pages;

struct page {
	int number;
	uint64_t id;
};

static void release(void *page)
{
	((struct page *)page)->number = -1;
	free(page);
	corebeat_counter_add(released, 1);
}

static void make(int number)
{
	struct page *page = malloc(sizeof *page);

	page->number = number;
	page->id = corebeat_ids_next(ids);
	corebeat_map_put(pages, (uint64_t)number, page);
}

static void *serve(void *unused)
{
	/* The part of this thread, which is incremented without a call. */
	uint64_t *mine = corebeat_counter_part(served);

	for (int i = 0; i < REQUESTS; i++) {
		corebeat_counter_add(open_now, 1);
		corebeat_event_enter();
		const struct page *page = corebeat_map_get(pages, (uint64_t)(i % PAGES));
		if (i % 64 == 0)
			make(i % PAGES); /* `page` stays valid */
		if (page->number != i % PAGES)
			abort();
		corebeat_event_leave();
		corebeat_histogram_record(sizes, (uint64_t)(i % PAGES));
		corebeat_part_add(mine, 1);
		corebeat_counter_add(open_now, -1);
	}
	return unused;
}

int main(void)
{
	pthread_t threads[THREADS];

	served = corebeat_counter_new();
	open_now = corebeat_counter_new();
	released = corebeat_counter_new();
	sizes = corebeat_histogram_new();
	ids = corebeat_ids_new();
	pages = corebeat_map_new(release);
	for (int i = 0; i < PAGES; i++)
		make(i);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, serve, NULL);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	corebeat_map_put(pages, 5, NULL);
	corebeat_event_enter();
	printf("%lld requests served, %lld open, half of the sizes up to %llu of %llu, page 5 is %s\n",
	       (long long)corebeat_counter_value(served), (long long)corebeat_counter_value(open_now),
	       (unsigned long long)corebeat_histogram_quantile(sizes, 0.5),
	       (unsigned long long)corebeat_histogram_count(sizes),
	       corebeat_map_get(pages, 5) ? "there" : "gone");
	corebeat_event_leave();
	corebeat_map_free(pages);
	printf("%lld pages released\n", (long long)corebeat_counter_value(released));
	corebeat_counter_free(served);
	corebeat_counter_free(open_now);
	corebeat_counter_free(released);
	corebeat_histogram_free(sizes);
	corebeat_ids_free(ids);
	return 0;
}
