/* A program that replaces malloc, but not malloc_usable_size. That of glibc would return a wrong
 * size for its blocks. */
#include "expect.h"
#include "mod_mem.h"

#include <stdio.h>
#include <string.h>

#define BLOCKS 1000
#define SPACE (64 << 20)

static _Alignas(16) char space[SPACE];
static size_t used;

/* Before each block: a size for glibc that is too large, with the bit of a block of mmap. */
struct header {
	size_t bytes, of_glibc;
};

void *malloc(size_t bytes)
{
	size_t whole = sizeof(struct header) + (bytes + 15) / 16 * 16;
	if (bytes > SPACE)
		return NULL;
	size_t at = __atomic_fetch_add(&used, whole, __ATOMIC_RELAXED);
	if (at + whole > SPACE)
		return NULL;
	struct header *header = (struct header *)(space + at);
	*header = (struct header){bytes, 280 | 2};
	return header + 1;
}

void free(void *block)
{
	(void)block;
}

/* The memory is not used twice, so it is 0. */
void *calloc(size_t count, size_t bytes)
{
	return bytes && count > SIZE_MAX / bytes ? NULL : malloc(count * bytes);
}

void *realloc(void *block, size_t bytes)
{
	void *larger = malloc(bytes);
	if (block && larger) {
		size_t old = ((struct header *)block - 1)->bytes;
		memcpy(larger, block, old < bytes ? old : bytes);
	}
	return larger;
}

int main(void)
{
	stm_init();
	stm_init_thread();
	void *blocks[BLOCKS];
	for (int i = 0; i < BLOCKS; i++)
		blocks[i] = stm_malloc(24);
	sigjmp_buf *env = stm_start((stm_tx_attr_t){.attrs = 0});
	sigsetjmp(*env, 0);
	for (int i = 0; i < BLOCKS; i++)
		stm_free(blocks[i], 24);
	EXPECT(stm_commit() == 1);
	for (int i = 0; i < BLOCKS; i++) {
		void *block = stm_malloc(264);
		EXPECT(block && ((struct header *)block - 1)->bytes == 264);
	}
	stm_exit_thread();
	stm_exit();
	puts("every block is large enough");
	return 0;
}
