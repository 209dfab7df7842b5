/* Transactions on words of memory, for C and C++: the API of TinySTM on the engine of Corebeat.
 *
 * Source: Felber, Fetzer, Riegel, Dynamic performance tuning of word-based software transactional
 * memory (PPoPP 2008). Names, types and prototypes are those of TinySTM since 1.0.4. Programs for
 * TinySTM can be compiled with these headers, or just be linked:
 *
 *     stm_tx_attr_t attr = {.attrs = 0};
 *     sigjmp_buf *env = stm_start(attr);
 *     if (env)                              NULL in a nested transaction
 *         sigsetjmp(*env, 0);               a failed transaction restarts here
 *     stm_store(&from, stm_load(&from) - 1);
 *     stm_store(&to, stm_load(&to) + 1);
 *     stm_commit();
 *
 * Link with -lcorebeat; calls are faster with static linking (libcorebeat.a). With optimization,
 * the compiler inlines loads and stores (stm_inline.h). Differences from TinySTM:
 *
 * - Writes are visible in memory immediately, as in TinySTM's WRITE_THROUGH design: code outside
 *   transactions may read them before the commit.
 * - Each `_tx` function requires the calling thread's own transaction.
 * - A transaction that has failed 100 times blocks the commits of all others until it is done.
 * - stm_set_irrevocable(1) is not supported.
 *
 * Misuse that cannot be reported ends the process with a line on standard error. */
#ifndef _STM_H_
#define _STM_H_

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define STM_VERSION "1.0.6"
#define STM_VERSION_NB 106

#ifdef __cplusplus
extern "C" {
#endif

/* The transactions of a thread. */
struct stm_tx;

/* Data of transactions: aligned words, which must stay mapped while any transaction may use them.
 */
typedef uintptr_t stm_word_t;

typedef union stm_tx_attr {
	struct {
		unsigned int id : 16;           /* position in the program, for mod_ab */
		unsigned int read_only : 1;     /* cheaper; a write restarts the transaction without it */
		unsigned int visible_reads : 1; /* ignored */
		unsigned int no_retry : 1;      /* after a failure the call returns; see stm_aborted */
		unsigned int no_extend : 1;     /* ignored */
	};
	int32_t attrs;
} stm_tx_attr_t;

/* The result of sigsetjmp when a transaction restarts: one of these, and STM_PATH_INSTRUMENTED. */
enum {
	STM_PATH_INSTRUMENTED = 0x01,
	STM_PATH_UNINSTRUMENTED = 0x02,
	STM_ABORT_EXPLICIT = (1 << 5),                /* stm_abort */
	STM_ABORT_NO_RETRY = (1 << 5) | (0x01 << 8),  /* argument of stm_abort: do not restart */
	STM_ABORT_IMPLICIT = (1 << 6),
	STM_ABORT_RR_CONFLICT = (1 << 6) | (0x01 << 8),
	STM_ABORT_RW_CONFLICT = (1 << 6) | (0x02 << 8),
	STM_ABORT_WR_CONFLICT = (1 << 6) | (0x03 << 8), /* read a word that another one was writing */
	STM_ABORT_WW_CONFLICT = (1 << 6) | (0x04 << 8), /* wrote a word that another one was writing */
	STM_ABORT_VAL_READ = (1 << 6) | (0x05 << 8),    /* read newer data; earlier reads are outdated */
	STM_ABORT_VAL_WRITE = (1 << 6) | (0x06 << 8),
	STM_ABORT_VALIDATE = (1 << 6) | (0x07 << 8),    /* at commit: earlier reads are outdated */
	STM_ABORT_IRREVOCABLE = (1 << 6) | (0x09 << 8), /* an irrevocable transaction blocks commits */
	STM_ABORT_KILLED = (1 << 6) | (0x0a << 8),      /* another transaction has priority */
	STM_ABORT_SIGNAL = (1 << 6) | (0x0b << 8),
	STM_ABORT_EXTEND_WS = (1 << 6) | (0x0c << 8),
	STM_ABORT_OTHER = (1 << 6) | (0x0f << 8)        /* for example, a read-only one has written */
};

/* To be called once, before and after all other functions. stm_init writes to the memory of the
 * locks: 8 MiB, on the NUMA node of the caller unless a policy states otherwise. With other threads
 * it takes some 10 ms longer. stm_exit must be called outside transactions, because it frees all
 * pending memory. */
void stm_init(void);
void stm_exit(void);

/* To be called in each thread, before its first transaction and after its last one. */
struct stm_tx *stm_init_thread(void);
void stm_exit_thread(void);
void stm_exit_thread_tx(struct stm_tx *tx);
/* The result of stm_init_thread of this thread, or NULL. */
struct stm_tx *stm_current_tx(void);

/* Starts a transaction. The result must be passed to sigsetjmp immediately, in a function that does
 * not return before the transaction ends. Only the library may jump there. In another transaction,
 * the new one becomes a part of it, and the result is NULL. */
sigjmp_buf *stm_start(stm_tx_attr_t attr);
sigjmp_buf *stm_start_tx(struct stm_tx *tx, stm_tx_attr_t attr);
/* Commits. Returns 1, or restarts the transaction (with no_retry: returns 0). */
int stm_commit(void);
int stm_commit_tx(struct stm_tx *tx);
/* Undoes the outermost transaction and restarts it, unless `abort_reason` is STM_ABORT_NO_RETRY. */
void stm_abort(int abort_reason);
void stm_abort_tx(struct stm_tx *tx, int abort_reason);

/* Reads and writes a word. stm_store2 writes only the bits that are set in `mask`. */
stm_word_t stm_load(volatile stm_word_t *addr);
stm_word_t stm_load_tx(struct stm_tx *tx, volatile stm_word_t *addr);
void stm_store(volatile stm_word_t *addr, stm_word_t value);
void stm_store_tx(struct stm_tx *tx, volatile stm_word_t *addr, stm_word_t value);
void stm_store2(volatile stm_word_t *addr, stm_word_t value, stm_word_t mask);
void stm_store2_tx(struct stm_tx *tx, volatile stm_word_t *addr, stm_word_t value,
		   stm_word_t mask);

/* Whether the thread is in a transaction; whether its last one has failed and does not restart. In
 * the latter case, until the next stm_start, loads return 0, stores do nothing and stm_commit
 * returns 0. */
int stm_active(void);
int stm_active_tx(struct stm_tx *tx);
int stm_aborted(void);
int stm_aborted_tx(struct stm_tx *tx);

/* Whether another transaction has killed the one in progress, by its priority ("karma", "greedy",
 * mod_order). A killed transaction fails at its commit at the latest, unless it is irrevocable. */
int stm_killed(void);
int stm_killed_tx(struct stm_tx *tx);

/* With 0: from now on the transaction cannot fail, and no other one commits a write. Returns 1, or
 * restarts the transaction. */
int stm_set_irrevocable(int serial);
int stm_set_irrevocable_tx(struct stm_tx *tx, int serial);
int stm_irrevocable(void);
int stm_irrevocable_tx(struct stm_tx *tx);

/* The result that stm_start would return now. */
sigjmp_buf *stm_get_env(void);
sigjmp_buf *stm_get_env_tx(struct stm_tx *tx);
/* The attributes of the last stm_start. */
stm_tx_attr_t stm_get_attributes(void);
stm_tx_attr_t stm_get_attributes_tx(struct stm_tx *tx);

/* Values of this thread, as unsigned int: nb_commits, nb_aborts, max_retries; nb_aborts_1 and
 * nb_aborts_2, the transactions that failed at least once and twice; and nb_aborts_locked_read,
 * _locked_write, _validate_read, _validate_commit, _killed. Returns 1, or 0 for an unknown name, in
 * which case nothing is written. */
int stm_get_stats(const char *name, void *val);
int stm_get_stats_tx(struct stm_tx *tx, const char *name, void *val);

/* Reads and writes a word outside transactions, as a separate transaction. Each lock has a version,
 * the time of the last write under it; `timestamp` may be NULL. A load stores the version there,
 * which never exceeds stm_get_clock. A store writes only if the version does not exceed *timestamp;
 * it then stores the new version there and returns 1. Otherwise it stores the present version there
 * and returns 0. After the first of these calls in a program, blocks that transactions free get a
 * new version. Such blocks must stay readable (malloc keeps small ones) while any thread may load
 * from them. A load in a transaction returns the transaction's own writes. */
stm_word_t stm_unit_load(volatile stm_word_t *addr, stm_word_t *timestamp);
int stm_unit_store(volatile stm_word_t *addr, stm_word_t value, stm_word_t *timestamp);
int stm_unit_store2(volatile stm_word_t *addr, stm_word_t value, stm_word_t mask,
		    stm_word_t *timestamp);
stm_word_t stm_get_clock(void);
/* Advances the clock by one: transactions in progress stay valid. */
void stm_inc_clock(void);
/* In a running transaction: fails it if it accesses data newer than *timestamp (NULL: no limit),
 * and with `enable` 0 also data newer than its begin. A restart resets both. */
void stm_set_extension(int enable, stm_word_t *timestamp);
void stm_set_extension_tx(struct stm_tx *tx, int enable, stm_word_t *timestamp);

/* Parameters as strings: "design", "compile_flags", and "contention_manager", which is set as
 * "cm_policy": "backoff" (default), "suicide", "karma" or "greedy". Returns 1, or 0 for an unknown
 * name or value. */
int stm_get_parameter(const char *name, void *val);
int stm_set_parameter(const char *name, void *val);

/* For modules: keys for data of each thread, at most 7 (then -1); and callbacks, at most 7 for each
 * event (then 0). To be called before stm_init_thread. Accesses of on_precommit to transactional
 * memory belong to the transaction that is about to commit, which the callback may abort. on_start
 * runs before sigsetjmp, where no transaction can restart, so it must not use such memory. */
int stm_create_specific(void);
void *stm_get_specific(int key);
void *stm_get_specific_tx(struct stm_tx *tx, int key);
void stm_set_specific(int key, void *data);
void stm_set_specific_tx(struct stm_tx *tx, int key, void *data);
int stm_register(void (*on_thread_init)(void *arg), void (*on_thread_exit)(void *arg),
		 void (*on_start)(void *arg), void (*on_precommit)(void *arg),
		 void (*on_commit)(void *arg), void (*on_abort)(void *arg), void *arg);

/* The library reserves 448 bytes for a sigjmp_buf. */
typedef char corebeat_stm_env_fits[sizeof(sigjmp_buf) <= 448 ? 1 : -1];

#include "stm_inline.h"

#ifdef __cplusplus
}
#endif

#endif
