/* Loads and stores of words without calls: a part of stm.h, and no interface for programs.
 *
 * If a word's lock is free and old enough, or this transaction holds it, and if the logs have room,
 * a load or a store is complete here. Otherwise, and where the compiler does not inline, the
 * functions of the library do the same (corebeat-stm, `descriptor::access`). Compiled programs
 * contain this layout. Its number is in the name of corebeat_stm_self_1: programs do not link with
 * a library of another layout.
 *
 * COREBEAT_STM_CALLS turns this off, and so do sanitizers: code here reads the whole word that
 * contains a smaller value, and synchronizes by locks in the library. */
#ifndef COREBEAT_STM_INLINE_H
#define COREBEAT_STM_INLINE_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COREBEAT_STM_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define COREBEAT_STM_SANITIZED 1
#endif
#endif

#if defined(__GNUC__) && defined(__x86_64__) && defined(__LP64__) && defined(__linux__) \
	&& !defined(COREBEAT_STM_CALLS) && !defined(COREBEAT_STM_SANITIZED)
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

/* As in the library. */
#define COREBEAT_STM_AT(part) __builtin_offsetof(struct corebeat_stm_front, part)
typedef char corebeat_stm_layout
	[sizeof(struct corebeat_stm_write) == 32 &&
	 __builtin_offsetof(struct corebeat_stm_write, lock) == 24 && COREBEAT_STM_AT(locks) == 16 &&
	 COREBEAT_STM_AT(writes.limit) == 32 && COREBEAT_STM_AT(reads.limit) == 64 &&
	 COREBEAT_STM_AT(reads.step_bytes) == 88 ? 1 : -1];
#undef COREBEAT_STM_AT

/* The front of this thread's transaction. */
extern __thread struct corebeat_stm_front *corebeat_stm_self_1;

/* The same with conflicts, for words and for values of `size` bytes at any address. */
stm_word_t corebeat_stm_load(volatile stm_word_t *addr);
void corebeat_stm_store2(volatile stm_word_t *addr, stm_word_t value, stm_word_t mask);
stm_word_t corebeat_stm_load_part(volatile void *addr, size_t size);
void corebeat_stm_store_part(volatile void *addr, stm_word_t value, size_t size);

COREBEAT_STM_ALWAYS corebeat_stm_lock *corebeat_stm_lock_of(struct corebeat_stm_front *self,
							    corebeat_stm_word *addr)
{
	return &self->locks[(uintptr_t)addr >> 5 & 0xfffff];
}

/* Reads a word. Returns 0 if the library must do so. */
COREBEAT_STM_ALWAYS int corebeat_stm_try_load(corebeat_stm_word *addr, stm_word_t *value)
{
	struct corebeat_stm_front *self = corebeat_stm_self_1;
	corebeat_stm_lock **next = self->reads.next;
	/* Also false without a transaction, in which the address may be invalid. */
	if (!COREBEAT_STM_LIKELY(next < self->reads.limit))
		return 0;
	corebeat_stm_lock *lock = corebeat_stm_lock_of(self, addr);
	uint64_t observed = __atomic_load_n(lock, __ATOMIC_SEQ_CST);
	*value = __atomic_load_n(addr, __ATOMIC_ACQUIRE);
	if (COREBEAT_STM_LIKELY(observed <= self->time)) {
		if (!COREBEAT_STM_LIKELY(__atomic_load_n(lock, __ATOMIC_RELAXED) == observed))
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
	struct corebeat_stm_front *self = corebeat_stm_self_1;
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

#ifdef __GLIBC__
/* With a buffer of transactions, to which only the library jumps, and without the mask of signals,
 * saves the registers only. Otherwise sigsetjmp of the C library. */
extern int corebeat_stm_sigsetjmp(struct __jmp_buf_tag *env, int saves_mask) __THROWNL
	__attribute__((__returns_twice__));

/* glibc defines sigsetjmp as a macro that calls this function. */
#define __sigsetjmp(env, saves_mask) corebeat_stm_sigsetjmp(env, saves_mask)
#endif

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
		corebeat_stm_store2(addr, value, ~(stm_word_t)0);
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
