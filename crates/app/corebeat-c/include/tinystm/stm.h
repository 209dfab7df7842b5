/* Transactions on words of memory, for C and C++: TinySTM's calls, on Corebeat's engine.
 *
 * Source: Felber, Fetzer, Riegel, Dynamic performance tuning of word-based software transactional memory (PPoPP 2008). Names, types and
 * prototypes are those of TinySTM since 1.0.4, so that programs for it are compiled with these headers, or only linked:
 *
 *     stm_tx_attr_t attr = {.attrs = 0};
 *     sigjmp_buf *env = stm_start(attr);
 *     if (env)                              NULL in a transaction inside another one
 *         sigsetjmp(*env, 0);               here it begins again when it has failed
 *     stm_store(&from, stm_load(&from) - 1);
 *     stm_store(&to, stm_load(&to) + 1);
 *     stm_commit();
 *
 * Link with -lcorebeat; statically (libcorebeat.a), calls are faster. What differs from TinySTM:
 *
 * - What is written stands in memory at once, as in TinySTM's WRITE_THROUGH design: code outside of transactions may see it before
 *   it is committed.
 * - Each `_tx` function wants the calling thread's own transaction.
 * - A transaction that has failed 100 times lets nobody else commit until it is done.
 * - stm_set_irrevocable(1) is not there.
 *
 * Misuse that has no way to be told ends the process with a line on standard error. */
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

/* A thread's transactions. */
struct stm_tx;

/* What is read and written: aligned words, which stay where they are as long as anybody's transaction may use them. */
typedef uintptr_t stm_word_t;

typedef union stm_tx_attr {
	struct {
		unsigned int id : 16;           /* which place in the program it is; mod_ab looks */
		unsigned int read_only : 1;     /* it only reads: cheaper. If it does write it begins again as one that may */
		unsigned int visible_reads : 1; /* nobody looks */
		unsigned int no_retry : 1;      /* where it fails, the call that has noticed returns; see stm_aborted */
		unsigned int no_extend : 1;     /* nobody looks */
	};
	int32_t attrs;
} stm_tx_attr_t;

/* What sigsetjmp gives when a transaction begins again: one of these, and STM_PATH_INSTRUMENTED. */
enum {
	STM_PATH_INSTRUMENTED = 0x01,
	STM_PATH_UNINSTRUMENTED = 0x02,
	STM_ABORT_EXPLICIT = (1 << 5),                /* stm_abort */
	STM_ABORT_NO_RETRY = (1 << 5) | (0x01 << 8),  /* for stm_abort: not to begin again */
	STM_ABORT_IMPLICIT = (1 << 6),
	STM_ABORT_RR_CONFLICT = (1 << 6) | (0x01 << 8),
	STM_ABORT_RW_CONFLICT = (1 << 6) | (0x02 << 8),
	STM_ABORT_WR_CONFLICT = (1 << 6) | (0x03 << 8), /* it read what another was writing */
	STM_ABORT_WW_CONFLICT = (1 << 6) | (0x04 << 8), /* it wrote what another was writing */
	STM_ABORT_VAL_READ = (1 << 6) | (0x05 << 8),    /* it met something newer, and what it had read was changed */
	STM_ABORT_VAL_WRITE = (1 << 6) | (0x06 << 8),
	STM_ABORT_VALIDATE = (1 << 6) | (0x07 << 8),    /* before it could commit, what it had read was changed */
	STM_ABORT_IRREVOCABLE = (1 << 6) | (0x09 << 8), /* another one lets nobody commit */
	STM_ABORT_KILLED = (1 << 6) | (0x0a << 8),      /* another one wanted it to give way */
	STM_ABORT_SIGNAL = (1 << 6) | (0x0b << 8),
	STM_ABORT_EXTEND_WS = (1 << 6) | (0x0c << 8),
	STM_ABORT_OTHER = (1 << 6) | (0x0f << 8)        /* such as: it was to read only, and wrote */
};

/* Before and after all others, once; stm_exit outside of transactions: it frees what is left to free. */
void stm_init(void);
void stm_exit(void);

/* In each thread, before its first transaction and after its last. */
struct stm_tx *stm_init_thread(void);
void stm_exit_thread(void);
void stm_exit_thread_tx(struct stm_tx *tx);
/* What stm_init_thread gave, or NULL. */
struct stm_tx *stm_current_tx(void);

/* Begins a transaction. What it gives is for sigsetjmp, to be called at once, in a function that does not return before the transaction
 * is over. NULL inside of another transaction, of which this one becomes a part. */
sigjmp_buf *stm_start(stm_tx_attr_t attr);
sigjmp_buf *stm_start_tx(struct stm_tx *tx, stm_tx_attr_t attr);
/* Ends it: 1, or it begins again (or, with no_retry, 0). */
int stm_commit(void);
int stm_commit_tx(struct stm_tx *tx);
/* Undoes it, and lets it begin again, unless `abort_reason` is STM_ABORT_NO_RETRY. The outermost one, wherever it is called. */
void stm_abort(int abort_reason);
void stm_abort_tx(struct stm_tx *tx, int abort_reason);

/* Reads and writes a word; of it, with stm_store2, the bits that are set in `mask`. */
stm_word_t stm_load(volatile stm_word_t *addr);
stm_word_t stm_load_tx(struct stm_tx *tx, volatile stm_word_t *addr);
void stm_store(volatile stm_word_t *addr, stm_word_t value);
void stm_store_tx(struct stm_tx *tx, volatile stm_word_t *addr, stm_word_t value);
void stm_store2(volatile stm_word_t *addr, stm_word_t value, stm_word_t mask);
void stm_store2_tx(struct stm_tx *tx, volatile stm_word_t *addr, stm_word_t value, stm_word_t mask);

/* Whether the thread is in a transaction; whether its last one has failed and does not begin again. Then, until the next stm_start, loads
 * give 0, stores do nothing, and stm_commit gives 0. */
int stm_active(void);
int stm_active_tx(struct stm_tx *tx);
int stm_aborted(void);
int stm_aborted_tx(struct stm_tx *tx);

/* With 0: from here on the transaction cannot fail, and nobody else commits a write; 1, or it begins again. */
int stm_set_irrevocable(int serial);
int stm_set_irrevocable_tx(struct stm_tx *tx, int serial);
int stm_irrevocable(void);
int stm_irrevocable_tx(struct stm_tx *tx);

/* What stm_start would give now. */
sigjmp_buf *stm_get_env(void);
sigjmp_buf *stm_get_env_tx(struct stm_tx *tx);
/* What it was given last. */
stm_tx_attr_t stm_get_attributes(void);
stm_tx_attr_t stm_get_attributes_tx(struct stm_tx *tx);

/* Of this thread so far, as an unsigned int: nb_commits, nb_aborts, max_retries; transactions that failed at least once and twice,
 * nb_aborts_1 and nb_aborts_2; and nb_aborts_locked_read, _locked_write, _validate_read, _validate_commit, _killed. 1, or 0 if there is no
 * such name: then nothing is written. */
int stm_get_stats(const char *name, void *val);
int stm_get_stats_tx(struct stm_tx *tx, const char *name, void *val);

/* Reads and writes a word outside of transactions, as a transaction by itself. Each lock has a version, the time of the last write under it;
 * `timestamp` may be NULL. A load puts the version there, which is never beyond stm_get_clock. A store writes only if the version is not
 * beyond *timestamp, puts the new one there, and gives 1; else it puts the version there that is in the way, and gives 0. From the first of these
 * calls on in a program, blocks that transactions free get a new version. They must stay readable (malloc keeps small ones) as long
 * as somebody may load from there. A load in a transaction gives what that has written. */
stm_word_t stm_unit_load(volatile stm_word_t *addr, stm_word_t *timestamp);
int stm_unit_store(volatile stm_word_t *addr, stm_word_t value, stm_word_t *timestamp);
int stm_unit_store2(volatile stm_word_t *addr, stm_word_t value, stm_word_t mask, stm_word_t *timestamp);
stm_word_t stm_get_clock(void);
/* In a transaction that has begun: it fails where it would read or write what is newer than *timestamp (NULL: no such bound), and with
 * `enable` 0 also what is newer than its begin. When it begins again both are as at first. */
void stm_set_extension(int enable, stm_word_t *timestamp);
void stm_set_extension_tx(struct stm_tx *tx, int enable, stm_word_t *timestamp);

/* As a string: "design", "compile_flags", and "contention_manager", which is set as "cm_policy": "backoff" (default), "suicide", "karma" or "greedy". 1, or 0 if
 * there is no such name or value. */
int stm_get_parameter(const char *name, void *val);
int stm_set_parameter(const char *name, void *val);

/* For modules: keys of data that each thread has, 7 at most (then -1); and functions that are called when something happens, 7 at most
 * for each (then 0). To be called before stm_init_thread. What on_precommit does with memory of transactions is a part of the one that
 * is to commit, which it may abort; on_start comes before sigsetjmp, where no transaction can begin again: it leaves such memory alone. */
int stm_create_specific(void);
void *stm_get_specific(int key);
void *stm_get_specific_tx(struct stm_tx *tx, int key);
void stm_set_specific(int key, void *data);
void stm_set_specific_tx(struct stm_tx *tx, int key, void *data);
int stm_register(void (*on_thread_init)(void *arg), void (*on_thread_exit)(void *arg), void (*on_start)(void *arg),
		 void (*on_precommit)(void *arg), void (*on_commit)(void *arg), void (*on_abort)(void *arg), void *arg);

/* The library has so much room. */
typedef char corebeat_stm_env_fits[sizeof(sigjmp_buf) <= 512 ? 1 : -1];

#ifdef __cplusplus
}
#endif

#endif
