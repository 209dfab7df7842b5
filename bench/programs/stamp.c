/* Transactional programs with the functions of TinySTM. The bench `stm.program` runs this file with
 * libraries that have these functions. The programs do the same work, with the same sizes, as the
 * Rust programs of the same names (the example `workload` of corebeat-stm).
 *
 * stamp PROGRAM THREADS TIMES LEAST_MS FIGURE
 *
 * PROGRAM is kmeans, vacation, intruder or labyrinth. FIGURE is time or aborts. A run does TIMES
 * the smallest work, and runs are repeated until LEAST_MS are measured. The first run warms up. The
 * output is the nanoseconds of a thread per transaction, or the aborts per commit. The program
 * fails if a result is wrong. */
#define _GNU_SOURCE
#include "mod_mem.h"
#include "mod_stats.h"
#include "stm.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#define THREADS_MAX 64
/* Variables that change after `sigsetjmp` are in separate functions, so that each attempt
 * initialises them. */
#define OWN __attribute__((noinline))
#define ATOMICALLY(body)                                                                                                                   \
	do {                                                                                                                               \
		stm_tx_attr_t attr_ = {.attrs = 0};                                                                                        \
		sigjmp_buf *env_ = stm_start(attr_);                                                                                       \
		if (env_)                                                                                                                  \
			sigsetjmp(*env_, 0);                                                                                               \
		body;                                                                                                                      \
		stm_commit();                                                                                                              \
	} while (0)

static size_t threads;
static uint64_t time_ns;

static void die(const char *why)
{
	fprintf(stderr, "stamp: %s\n", why);
	exit(1);
}

static void *room(size_t count, size_t size)
{
	void *memory = calloc(count, size);
	if (!memory)
		die("out of memory");
	return memory;
}

/* Steele, Lea, Flood, Fast splittable pseudorandom number generators, 2014 (SplitMix64). Returns
 * a number from 0 to bound, exclusive. */
static size_t below(uint64_t *state, size_t bound)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return (unsigned __int128)(z ^ (z >> 31)) * bound >> 64;
}

static void shuffle(uint64_t *state, void *items, size_t count, size_t size)
{
	char *bytes = items, other[64];
	for (size_t last = count; last-- > 1;) {
		char *a = bytes + last * size, *b = bytes + below(state, last + 1) * size;
		memcpy(other, a, size);
		memmove(a, b, size);
		memcpy(b, other, size);
	}
}

static uint64_t now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void (*work)(size_t number);

static void *thread(void *number)
{
	stm_init_thread();
	work((size_t)(uintptr_t)number);
	stm_exit_thread();
	return NULL;
}

/* Runs a function on all threads with their numbers, and adds the elapsed time to time_ns. */
static void together(void (*what)(size_t number))
{
	pthread_t all[THREADS_MAX];
	work = what;
	uint64_t begin_ns = now_ns();
	for (size_t i = 0; i < threads; i++)
		if (pthread_create(&all[i], NULL, thread, (void *)(uintptr_t)i))
			die("cannot start a thread");
	for (size_t i = 0; i < threads; i++)
		pthread_join(all[i], NULL);
	time_ns += now_ns() - begin_ns;
}

static void add(stm_word_t *word, int64_t what)
{
	stm_store(word, stm_load(word) + (stm_word_t)what);
}

/* kmeans: each point belongs to the group of its nearest centre. Centres move to the means of their
 * groups. */

enum { POINTS = 4000, CENTRES = 12, ROUNDS = 5 };
typedef int64_t point[3];
typedef stm_word_t group[4]; /* number of points, and the sums of their coordinates */

static size_t point_count;
static point *points, centres[CENTRES];
static group groups[CENTRES];

static size_t nearest(const int64_t *p, point *among)
{
	size_t best = 0;
	int64_t least = INT64_MAX;
	for (size_t at = 0; at < CENTRES; at++) {
		int64_t distance = 0;
		for (int i = 0; i < 3; i++)
			distance += (p[i] - among[at][i]) * (p[i] - among[at][i]);
		if (distance < least) {
			least = distance;
			best = at;
		}
	}
	return best;
}

static OWN void join_group(stm_word_t *into, const int64_t *p)
{
	add(&into[0], 1);
	for (int i = 0; i < 3; i++)
		add(&into[i + 1], p[i]);
}

static void group_part(size_t number)
{
	size_t each = (point_count + threads - 1) / threads, end = (number + 1) * each;
	for (size_t i = number * each; i < end && i < point_count; i++) {
		stm_word_t *into = groups[nearest(points[i], centres)];
		ATOMICALLY(join_group(into, points[i]));
	}
}

static void kmeans(size_t times)
{
	uint64_t state = 1;
	point alone[CENTRES];
	point_count = POINTS * times;
	points = room(point_count, sizeof *points);
	for (size_t i = 0; i < point_count; i++)
		for (int j = 0; j < 3; j++)
			points[i][j] = below(&state, 1 << 20);
	memcpy(centres, points, sizeof centres);
	memcpy(alone, points, sizeof alone);
	for (int round = 0; round < ROUNDS; round++) {
		int64_t sums[CENTRES][4] = {{0}};
		memset(groups, 0, sizeof groups);
		together(group_part);
		for (size_t i = 0; i < point_count; i++) {
			int64_t *sum = sums[nearest(points[i], alone)];
			sum[0]++;
			for (int j = 0; j < 3; j++)
				sum[j + 1] += points[i][j];
		}
		for (int at = 0; at < CENTRES; at++)
			for (int j = 0; j < 3; j++) {
				if (groups[at][0])
					centres[at][j] = (int64_t)groups[at][j + 1] / (int64_t)groups[at][0];
				if (sums[at][0])
					alone[at][j] = sums[at][j + 1] / sums[at][0];
			}
		if (memcmp(centres, alone, sizeof centres))
			die("the centres differ from those of a run with one thread");
	}
	free(points);
}

/* vacation: customers book the cheapest of some seats, rooms and cars, and cancel their
 * bookings. */

enum { OFFERS = 64, CUSTOMERS = 128, VISITS = 6000, LOOKS = 8 };
struct booking {
	stm_word_t offer, rest;
};

static size_t visits;
static stm_word_t available[OFFERS], price[OFFERS], customers[CUSTOMERS];

static OWN void book(stm_word_t *customer, const size_t *looks)
{
	size_t best = OFFERS;
	stm_word_t least = 0;
	for (int i = 0; i < LOOKS; i++) {
		stm_word_t there = stm_load(&available[looks[i]]), asked = stm_load(&price[looks[i]]);
		if (there > 0 && (best == OFFERS || asked < least)) {
			best = looks[i];
			least = asked;
		}
	}
	if (best == OFFERS)
		return;
	add(&available[best], -1);
	/* No other thread can reach this memory yet. */
	struct booking *made = stm_malloc(sizeof *made);
	made->offer = best;
	made->rest = stm_load(customer);
	stm_store(customer, (stm_word_t)made);
}

static OWN void give_up(stm_word_t *customer)
{
	for (struct booking *next = (void *)stm_load(customer); next;) {
		struct booking *rest = (void *)stm_load(&next->rest);
		add(&available[stm_load(&next->offer)], 1);
		stm_free(next, sizeof *next);
		next = rest;
	}
	stm_store(customer, 0);
}

static void visit(size_t number)
{
	uint64_t state = 3 + number;
	for (size_t i = 0; i < visits / threads; i++) {
		stm_word_t *customer = &customers[below(&state, CUSTOMERS)];
		size_t what = below(&state, 10);
		if (what < 8) {
			size_t looks[LOOKS];
			for (int look = 0; look < LOOKS; look++)
				looks[look] = below(&state, OFFERS);
			ATOMICALLY(book(customer, looks));
		} else if (what == 8) {
			ATOMICALLY(give_up(customer));
		} else {
			size_t offer = below(&state, OFFERS), asked = below(&state, 1000);
			ATOMICALLY(stm_store(&price[offer], asked));
		}
	}
}

static void vacation(size_t times)
{
	uint64_t state = 2;
	size_t total[OFFERS];
	for (int i = 0; i < OFFERS; i++) {
		available[i] = total[i] = 20 + below(&state, 20);
		price[i] = below(&state, 1000);
	}
	memset(customers, 0, sizeof customers);
	visits = VISITS * times;
	together(visit);
	for (int i = 0; i < CUSTOMERS; i++)
		for (struct booking *next = (void *)customers[i]; next;) {
			struct booking *rest = (void *)next->rest;
			available[next->offer]++;
			free(next);
			next = rest;
		}
	for (int i = 0; i < OFFERS; i++)
		if (available[i] != total[i])
			die("the bookings do not match the available offers");
}

/* intruder: packets of many flows arrive in any order. The last packet of a flow causes the
 * assembly and inspection of the flow. */

enum { FLOWS = 800, PARTS_MAX = 8, BUCKETS = 64, BYTES = 32 };
static const char attack[] = "attack";
struct packet {
	size_t flow, part, parts, size;
	stm_word_t next;
	char bytes[BYTES];
};
struct node {
	stm_word_t packet, next;
};

static struct packet packets[FLOWS * PARTS_MAX];
static stm_word_t queue, buckets[BUCKETS];
static size_t flows, found;

static int is_attack(const char *bytes)
{
	return memmem(bytes, BYTES, attack, strlen(attack)) != NULL;
}

static OWN struct packet *pop(void)
{
	struct packet *first = (void *)stm_load(&queue);
	if (first)
		stm_store(&queue, stm_load(&first->next));
	return first;
}

/* Stores a packet with the other packets of its flow. The last packet removes all of them. */
static OWN int put(stm_word_t *bucket, struct packet *packet, struct packet **parts)
{
	size_t count = 0;
	parts[count++] = packet;
	for (struct node *next = (void *)stm_load(bucket); next; next = (void *)stm_load(&next->next)) {
		struct packet *other = (void *)stm_load(&next->packet);
		if (other->flow == packet->flow)
			parts[count++] = other;
	}
	if (count < packet->parts) {
		struct node *made = stm_malloc(sizeof *made);
		made->packet = (stm_word_t)packet;
		made->next = stm_load(bucket);
		stm_store(bucket, (stm_word_t)made);
		return 0;
	}
	for (stm_word_t *at = bucket;;) {
		struct node *node = (void *)stm_load(at);
		if (!node)
			return 1;
		if (((struct packet *)stm_load(&node->packet))->flow == packet->flow) {
			stm_store(at, stm_load(&node->next));
			stm_free(node, sizeof *node);
		} else {
			at = &node->next;
		}
	}
}

static void look_through(size_t number)
{
	(void)number;
	for (;;) {
		struct packet *volatile packet;
		struct packet *parts[PARTS_MAX];
		volatile int is_whole;
		ATOMICALLY(packet = pop());
		if (!packet)
			return;
		ATOMICALLY(is_whole = put(&buckets[packet->flow % BUCKETS], packet, parts));
		if (!is_whole)
			continue;
		char bytes[BYTES];
		size_t each = parts[0]->part + 1 == parts[0]->parts && parts[0]->parts > 1 ? parts[1]->size : parts[0]->size;
		for (size_t i = 0; i < parts[0]->parts; i++)
			memcpy(bytes + parts[i]->part * each, parts[i]->bytes, parts[i]->size);
		__atomic_fetch_add(&flows, 1, __ATOMIC_RELAXED);
		__atomic_fetch_add(&found, is_attack(bytes), __ATOMIC_RELAXED);
	}
}

static void intruder(size_t times)
{
	for (size_t number = 0; number < times; number++) {
		uint64_t state = 4 + number;
		size_t count = 0, attacks = 0;
		for (size_t flow = 0; flow < FLOWS; flow++) {
			char bytes[BYTES];
			for (int i = 0; i < BYTES; i++)
				bytes[i] = below(&state, 256);
			if (below(&state, 10) == 0)
				memcpy(bytes + 13, attack, strlen(attack));
			attacks += is_attack(bytes);
			size_t parts = 1 + below(&state, PARTS_MAX), size = (BYTES + parts - 1) / parts;
			parts = (BYTES + size - 1) / size;
			for (size_t part = 0; part < parts; part++) {
				size_t at = part * size, own = BYTES - at < size ? BYTES - at : size;
				packets[count] = (struct packet){.flow = flow, .part = part, .parts = parts, .size = own};
				memcpy(packets[count++].bytes, bytes + at, own);
			}
		}
		size_t *order = room(count, sizeof *order);
		for (size_t i = 0; i < count; i++)
			order[i] = i;
		shuffle(&state, order, count, sizeof *order);
		queue = 0;
		for (size_t i = 0; i < count; i++) {
			packets[order[i]].next = queue;
			queue = (stm_word_t)&packets[order[i]];
		}
		free(order);
		flows = found = 0;
		together(look_through);
		if (flows != FLOWS || found != attacks)
			die("the program did not find all flows and attacks");
		for (int i = 0; i < BUCKETS; i++)
			if (buckets[i])
				die("the buckets are not empty");
	}
}

/* labyrinth: paths through a maze, which must not cross each other. */

enum { SIDE = 32, FIELDS = SIDE * SIDE, PATHS = 24 };
static const stm_word_t wall = UINT32_MAX;

static stm_word_t maze[FIELDS];
static size_t ends[FIELDS], lengths[PATHS], paths[PATHS][FIELDS], next_path;

static size_t neighbours(size_t field, size_t *of)
{
	size_t count = 0, x = field % SIDE, y = field / SIDE;
	if (x > 0)
		of[count++] = field - 1;
	if (x + 1 < SIDE)
		of[count++] = field + 1;
	if (y > 0)
		of[count++] = field - SIDE;
	if (y + 1 < SIDE)
		of[count++] = field + SIDE;
	return count;
}

/* Searches the shortest path breadth first. Returns its length, or 0 if no path exists. */
static OWN size_t lay(size_t from, size_t to, size_t *path)
{
	size_t came_from[FIELDS], open[FIELDS], first = 0, last = 0, of[4];
	for (size_t i = 0; i < FIELDS; i++)
		came_from[i] = FIELDS;
	open[last++] = from;
	came_from[from] = from;
	while (first < last && came_from[to] == FIELDS) {
		size_t field = open[first++], count = neighbours(field, of);
		for (size_t i = 0; i < count; i++) {
			if (came_from[of[i]] != FIELDS || (of[i] != to && stm_load(&maze[of[i]]) != 0))
				continue;
			came_from[of[i]] = field;
			open[last++] = of[i];
		}
	}
	if (came_from[to] == FIELDS)
		return 0;
	stm_word_t number = stm_load(&maze[from]);
	size_t length = 0;
	path[length++] = to;
	while (path[length - 1] != from) {
		path[length] = came_from[path[length - 1]];
		length++;
	}
	for (size_t i = 0; i < length; i++)
		stm_store(&maze[path[i]], number);
	return length;
}

static void lay_paths(size_t number)
{
	(void)number;
	for (;;) {
		size_t path = __atomic_fetch_add(&next_path, 1, __ATOMIC_RELAXED);
		if (path >= PATHS)
			return;
		volatile size_t length;
		ATOMICALLY(length = lay(ends[2 * path], ends[2 * path + 1], paths[path]));
		lengths[path] = length;
	}
}

static void labyrinth(size_t times)
{
	for (size_t number = 0; number < times; number++) {
		uint64_t state = 5 + number;
		size_t count = 0, laid = 0;
		stm_word_t expected[FIELDS] = {0};
		for (int i = 0; i < FIELDS / 8; i++)
			expected[below(&state, FIELDS)] = wall;
		for (size_t field = 0; field < FIELDS; field++)
			if (!expected[field])
				ends[count++] = field;
		shuffle(&state, ends, count, sizeof *ends);
		for (size_t i = 0; i < 2 * PATHS; i++)
			expected[ends[i]] = i / 2 + 1;
		memcpy(maze, expected, sizeof maze);
		next_path = 0;
		together(lay_paths);
		for (size_t path = 0; path < PATHS; path++)
			for (size_t i = 0; i < lengths[path]; i++) {
				size_t field = paths[path][i], of[4], steps = neighbours(field, of), is_step = i == 0;
				for (size_t step = 0; step < steps; step++)
					is_step |= i > 0 && of[step] == paths[path][i - 1];
				if (!is_step || (expected[field] && expected[field] != path + 1))
					die("a path has a gap or crosses another path");
				expected[field] = path + 1;
				laid++;
			}
		if (!laid || memcmp(maze, expected, sizeof maze))
			die("the maze does not match the paths");
	}
}

static unsigned long counted(const char *name)
{
	unsigned long value = 0;
	if (!stm_get_global_stats(name, &value))
		die("the library has no statistics");
	return value;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(size_t times);
	} programs[] = {{"kmeans", kmeans}, {"vacation", vacation}, {"intruder", intruder}, {"labyrinth", labyrinth}};
	if (argc != 6)
		die("usage: stamp PROGRAM THREADS TIMES LEAST_MS FIGURE");
	threads = strtoull(argv[2], NULL, 10);
	size_t times = strtoull(argv[3], NULL, 10);
	uint64_t least_ns = strtoull(argv[4], NULL, 10) * 1000000;
	if (threads < 1 || threads > THREADS_MAX || times < 1)
		die("the number of threads or times is not supported");
	void (*run)(size_t times) = NULL;
	for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
		if (strcmp(argv[1], programs[i].name) == 0)
			run = programs[i].run;
	if (!run)
		die("unknown program; use kmeans, vacation, intruder or labyrinth");
	stm_init();
	mod_mem_init(0);
	mod_stats_init();
	run(times);
	unsigned long commits = counted("global_nb_commits"), aborts = counted("global_nb_aborts");
	time_ns = 0;
	do
		run(times);
	while (time_ns < least_ns);
	commits = counted("global_nb_commits") - commits;
	aborts = counted("global_nb_aborts") - aborts;
	stm_exit();
	double value = strcmp(argv[5], "aborts") == 0 ? (double)aborts / (double)commits
						      : (double)time_ns * (double)threads / (double)commits;
	printf("value %f\nchecksum %s\n", value, argv[1]);
	return 0;
}
