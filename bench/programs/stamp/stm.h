/* The macros that STAMP (Cao Minh et al., "STAMP: Stanford Transactional Applications for
 * Multi-processing", 2008; lib/tm.h) expects of a library, by the interface of TinySTM, for
 * TinySTM and for libcorebeat alike. The library's own header of this name follows in the path.
 */
#ifndef STAMP_STM_H
#define STAMP_STM_H

#include_next <stm.h>
#include <mod_mem.h>
#include <wrappers.h>

#define STM_THREAD_T void
#define STM_SELF thread_of_stamp
#define STM_STARTUP() do { stm_init(); mod_mem_init(0); } while (0)
#define STM_SHUTDOWN() stm_exit()
#define STM_NEW_THREAD() NULL
#define STM_INIT_THREAD(thread, number) ((void)(thread), stm_init_thread())
#define STM_FREE_THREAD(thread) stm_exit_thread()

/* The size of a block is not known here. */
#define STM_MALLOC(size) stm_malloc(size)
#define STM_FREE(block) stm_free(block, sizeof(stm_word_t))

#define STM_BEGIN(only_reads) do { \
		stm_tx_attr_t attributes_ = {.attrs = 0}; \
		sigjmp_buf *restart_; \
		attributes_.read_only = only_reads; \
		restart_ = stm_start(attributes_); \
		if (restart_) \
			sigsetjmp(*restart_, 0); \
	} while (0)
#define STM_BEGIN_WR() STM_BEGIN(0)
#define STM_BEGIN_RD() STM_BEGIN(1)
#define STM_END() stm_commit()
#define STM_RESTART() stm_abort(0)

/* STAMP applies these to `long` and to `int`. */
#define STM_READ(place) \
	((__typeof__(place))(sizeof(place) == 4 ? stm_load_u32((volatile uint32_t *)&(place)) : \
						  stm_load((volatile stm_word_t *)&(place))))
#define STM_WRITE(place, value) \
	(sizeof(place) == 4 ? stm_store_u32((volatile uint32_t *)&(place), (uint32_t)(value)) : \
			      stm_store((volatile stm_word_t *)&(place), (stm_word_t)(value)))
#define STM_READ_P(place) stm_load_ptr((volatile void **)&(place))
#define STM_WRITE_P(place, value) stm_store_ptr((volatile void **)&(place), (void *)(value))
#define STM_READ_F(place) stm_load_float((volatile float *)&(place))
#define STM_WRITE_F(place, value) stm_store_float((volatile float *)&(place), value)

#define STM_LOCAL_WRITE(place, value) ({ place = value; place; })
#define STM_LOCAL_WRITE_P STM_LOCAL_WRITE
#define STM_LOCAL_WRITE_F STM_LOCAL_WRITE

#endif
