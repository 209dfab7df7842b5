/* Loads and stores of words without calls: a part of stm.h, and no interface for programs.
 *
 * If a word's lock is free and old enough, or this transaction holds it, and if the logs have room,
 * a load or a store is complete here. Otherwise, and where the compiler does not inline, the
 * functions of the library do the same (corebeat-stm, `descriptor::access`). Compiled programs
 * contain this layout: it is the same in all libraries with the same minor version.
 *
 * COREBEAT_STM_CALLS turns this off. */
#ifndef COREBEAT_STM_INLINE_H
#define COREBEAT_STM_INLINE_H

#if defined(__GNUC__) && defined(__x86_64__) && defined(__LP64__) && defined(__linux__) \
	&& !defined(COREBEAT_STM_CALLS)
#define COREBEAT_STM_INLINES 1

/* The external definition of such a function is that of the library. */
#define COREBEAT_STM_INLINE extern __inline__ __attribute__((__gnu_inline__))
#define COREBEAT_STM_ALWAYS \
	extern __inline__ __attribute__((__gnu_inline__, __always_inline__))
#define COREBEAT_STM_LIKELY(condition) __builtin_expect(!!(condition), 1)

typedef volatile uint64_t corebeat_stm_lock;
/* Data of any type, as words. */
typedef volatile stm_word_t __attribute__((__may_alias__)) corebeat_stm_word;

struct corebeat_stm_write {
	corebeat_stm_word *place;
	stm_word_t old;
	void (*drop)(void *value);
	corebeat_stm_lock *lock; /* that this write acquired */
};

/* A part of a transaction. Between transactions the logs have no room. */
struct corebeat_stm_front {
	uint64_t time;  /* the newest version that may be read */
	uint64_t owner; /* the content of the locks that the transaction holds */
	corebeat_stm_lock *locks;
	struct {
		struct corebeat_stm_write *next, *limit, *begin, *end;
	} writes;
	struct {
		corebeat_stm_lock **next, **limit, **begin, **end;
		uintptr_t step_bytes;
	} reads;
};

/* The front of this thread's transaction. */
extern __thread struct corebeat_stm_front *corebeat_stm_self;

stm_word_t corebeat_stm_load(volatile stm_word_t *addr) __asm__("stm_load");
void corebeat_stm_store(volatile stm_word_t *addr, stm_word_t value) __asm__("stm_store");
void corebeat_stm_store2(volatile stm_word_t *addr, stm_word_t value, stm_word_t mask)
	__asm__("stm_store2");

COREBEAT_STM_ALWAYS corebeat_stm_lock *corebeat_stm_lock_of(struct corebeat_stm_front *self,
							    corebeat_stm_word *addr)
{
	return &self->locks[(uintptr_t)addr >> 5 & 0xfffff];
}

/* Reads a word. Returns 0 if the library must do so. */
COREBEAT_STM_ALWAYS int corebeat_stm_try_load(corebeat_stm_word *addr, stm_word_t *value)
{
	struct corebeat_stm_front *self = corebeat_stm_self;
	corebeat_stm_lock *lock = corebeat_stm_lock_of(self, addr);
	uint64_t observed = __atomic_load_n(lock, __ATOMIC_SEQ_CST);
	*value = __atomic_load_n(addr, __ATOMIC_ACQUIRE);
	if (COREBEAT_STM_LIKELY(observed <= self->time)) {
		corebeat_stm_lock **next = self->reads.next;
		if (!COREBEAT_STM_LIKELY(__atomic_load_n(lock, __ATOMIC_RELAXED) == observed &&
					 next < self->reads.limit))
			return 0;
		*next = lock;
		self->reads.next = (corebeat_stm_lock **)((char *)next + self->reads.step_bytes);
		return 1;
	}
	return observed == self->owner;
}

/* Writes the bits of a word that are set in `mask`. Returns 0 if the library must do so. */
COREBEAT_STM_ALWAYS int corebeat_stm_try_store(corebeat_stm_word *addr, stm_word_t value,
					       stm_word_t mask)
{
	struct corebeat_stm_front *self = corebeat_stm_self;
	struct corebeat_stm_write *write = self->writes.next;
	corebeat_stm_lock *lock = corebeat_stm_lock_of(self, addr);
	uint64_t observed = __atomic_load_n(lock, __ATOMIC_SEQ_CST);
	if (!COREBEAT_STM_LIKELY(write < self->writes.limit))
		return 0;
	if (COREBEAT_STM_LIKELY(observed <= self->time)) {
		if (!COREBEAT_STM_LIKELY(__atomic_compare_exchange_n(lock, &observed, self->owner, 0,
								     __ATOMIC_SEQ_CST,
								     __ATOMIC_RELAXED)))
			return 0;
	} else {
		if (observed != self->owner)
			return 0;
		lock = NULL;
	}
	write->place = addr;
	write->old = __atomic_load_n(addr, __ATOMIC_RELAXED);
	write->drop = NULL;
	write->lock = lock;
	self->writes.next = write + 1;
	/* A reader of this value finds the lock held, or newer, at its second load of the lock. */
	__atomic_store_n(addr, (write->old & ~mask) | (value & mask), __ATOMIC_RELEASE);
	return 1;
}

COREBEAT_STM_INLINE stm_word_t stm_load(volatile stm_word_t *addr)
{
	stm_word_t value;
	return COREBEAT_STM_LIKELY(corebeat_stm_try_load(addr, &value)) ? value :
									  corebeat_stm_load(addr);
}

COREBEAT_STM_INLINE stm_word_t stm_load_tx(struct stm_tx *tx, volatile stm_word_t *addr)
{
	(void)tx;
	return stm_load(addr);
}

COREBEAT_STM_INLINE void stm_store(volatile stm_word_t *addr, stm_word_t value)
{
	if (!COREBEAT_STM_LIKELY(corebeat_stm_try_store(addr, value, ~(stm_word_t)0)))
		corebeat_stm_store(addr, value);
}

COREBEAT_STM_INLINE void stm_store_tx(struct stm_tx *tx, volatile stm_word_t *addr,
				      stm_word_t value)
{
	(void)tx;
	stm_store(addr, value);
}

COREBEAT_STM_INLINE void stm_store2(volatile stm_word_t *addr, stm_word_t value, stm_word_t mask)
{
	if (!COREBEAT_STM_LIKELY(corebeat_stm_try_store(addr, value, mask)))
		corebeat_stm_store2(addr, value, mask);
}

COREBEAT_STM_INLINE void stm_store2_tx(struct stm_tx *tx, volatile stm_word_t *addr,
				       stm_word_t value, stm_word_t mask)
{
	(void)tx;
	stm_store2(addr, value, mask);
}

#endif

#endif
