/* Boxes of S-Net networks in C and C++, for Corebeat.
 *
 * A box ((A, <T>) -> (A) | (<T>)) is a function of the same name:
 *
 *     void *box(void *hnd, c4snet_data_t *A, int T)
 *     {
 *         int a = *(int *)C4SNetGetData(A);
 *         C4SNetFree(A);
 *         a += T;
 *         C4SNetOut(hnd, 1, C4SNetCreate(CTYPE_int, 1, &a));
 *         return hnd;
 *     }
 *
 * A box can output any number of records of any of its variants while it runs. In C++, it must be
 * extern "C", and no exception may leave it.
 *
 * A box owns its field arguments: it must free them or output them. C4SNetOut takes ownership of
 * the fields in a record. The box can still read and output its arguments until it returns, and
 * other fields until the next C4SNetOut. The use of a freed field is detected: it is an error of
 * the box, or returns 0.
 *
 * All copies of a field except deep copies share their data. Only one thread at a time may use a
 * field. Fields are opaque handles, not addresses.
 *
 * A box writes only to the data of fields that it has created and not yet output. Other records may
 * share the data of an argument, or of a field that was output: other boxes may read it at the same
 * time, and so may the network, which sends it to another process. To change an argument, change a
 * deep copy.
 *
 * Build: cc -O2 -shared -fPIC -o boxes.so box.c. No library is needed.
 */
#ifndef _C4SNET_H_
#define _C4SNET_H_

#include <stdarg.h>
#include <stddef.h>

/* Version of the interface between this header and the program that loads the library. */
#define COREBEAT_SNET_VERSION 1

/* Fields and tags that a box can take, and that it can output in one record. */
#define COREBEAT_SNET_ENTRIES_MAX 24

#ifdef __cplusplus
extern "C" {
#endif

/* A field. */
typedef struct cdata c4snet_data_t;

/* Type of a box's first argument in the thesis (void *hnd). */
typedef void snet_handle_t;

typedef enum {
  CTYPE_uchar,
  CTYPE_char,
  CTYPE_ushort,
  CTYPE_short,
  CTYPE_uint,
  CTYPE_int,
  CTYPE_ulong,
  CTYPE_long,
  CTYPE_float,
  CTYPE_double,
  CTYPE_ldouble,
  CTYPE_pointer
} c4snet_type_t;

/* Internal interface between the functions below and the program, up to the next line of dashes. */

union corebeat_snet_value {
  c4snet_data_t *field;
  int tag;
};

struct corebeat_snet_view {
  void *data;
  size_t count;
  int type;
  int size;
};

struct corebeat_snet_functions {
  c4snet_data_t *(*create)(int type, size_t count, const void *data);
  void (*release)(c4snet_data_t *field);
  c4snet_data_t *(*copy)(c4snet_data_t *field, int deep);
  void (*look)(c4snet_data_t *field, struct corebeat_snet_view *view);
  const char *(*variant)(void *hnd, int variant);
  void (*out)(void *hnd, int variant, const union corebeat_snet_value *values);
  int (*wanted)(void *hnd);
  void (*fail)(void *hnd, const char *message);
};

/* One variable for each library. The program that loads the library sets it. */
struct corebeat_snet_link {
  unsigned version;
  const struct corebeat_snet_functions *call;
};

#ifdef __cplusplus
extern struct corebeat_snet_link corebeat_snet_api;
#endif
__attribute__((weak, visibility("default"))) struct corebeat_snet_link corebeat_snet_api = {
  COREBEAT_SNET_VERSION, 0
};

/* Number of this node of a distributed network, which has only this node. */
#ifdef __cplusplus
extern int node_location;
#endif
__attribute__((weak)) int node_location = 0;

#define COREBEAT_SNET_FUNCTION __attribute__((unused)) static inline

/* ------------------------------------------------------------------------------------------ */

/* Creates a field of `count` elements with all bits 0, which the box can write through *data. One
 * element is a scalar; any other number is an array. Returns NULL and sets *data to NULL if the
 * type is invalid or memory is exhausted. */
COREBEAT_SNET_FUNCTION c4snet_data_t *C4SNetAlloc(c4snet_type_t type, size_t count, void **data)
{
  struct corebeat_snet_view view;
  c4snet_data_t *field = corebeat_snet_api.call->create((int)type, count, NULL);
  corebeat_snet_api.call->look(field, &view);
  *data = view.data;
  return field;
}

/* Creates a field with a copy of `count` elements at `data`. */
COREBEAT_SNET_FUNCTION c4snet_data_t *C4SNetCreate(c4snet_type_t type, size_t count,
                                                   const void *data)
{
  return corebeat_snet_api.call->create((int)type, count, data);
}

/* Frees a field. */
COREBEAT_SNET_FUNCTION void C4SNetFree(c4snet_data_t *field)
{
  corebeat_snet_api.call->release(field);
}

/* Creates a field that shares the data: a write to the array of one field changes the other. */
COREBEAT_SNET_FUNCTION c4snet_data_t *C4SNetShallowCopy(c4snet_data_t *field)
{
  return corebeat_snet_api.call->copy(field, 0);
}

/* Creates a field with a copy of the data. */
COREBEAT_SNET_FUNCTION c4snet_data_t *C4SNetDeepCopy(c4snet_data_t *field)
{
  return corebeat_snet_api.call->copy(field, 1);
}

/* Size of one element in bytes. */
COREBEAT_SNET_FUNCTION int C4SNetSizeof(c4snet_data_t *field)
{
  struct corebeat_snet_view view;
  corebeat_snet_api.call->look(field, &view);
  return view.size;
}

/* Number of elements. */
COREBEAT_SNET_FUNCTION size_t C4SNetArraySize(c4snet_data_t *field)
{
  struct corebeat_snet_view view;
  corebeat_snet_api.call->look(field, &view);
  return view.count;
}

/* Address of the elements, to which the box writes only if it has created the field and has not yet
 * output it. NULL for Rust values, which a box in C can only pass on. */
COREBEAT_SNET_FUNCTION void *C4SNetGetData(c4snet_data_t *field)
{
  struct corebeat_snet_view view;
  corebeat_snet_api.call->look(field, &view);
  return view.data;
}

/* Type of the elements. */
COREBEAT_SNET_FUNCTION c4snet_type_t C4SNetGetType(c4snet_data_t *field)
{
  struct corebeat_snet_view view;
  corebeat_snet_api.call->look(field, &view);
  return (c4snet_type_t)view.type;
}

/* Allocates memory like malloc, but aborts on failure. Free it with free or SNetMemFree. */
COREBEAT_SNET_FUNCTION void *SNetMemAlloc(size_t size)
{
  void *memory = size == 0 ? NULL : __builtin_malloc(size);
  if (memory == NULL && size != 0) {
    __builtin_abort();
  }
  return memory;
}

COREBEAT_SNET_FUNCTION void SNetMemFree(void *memory)
{
  __builtin_free(memory);
}

COREBEAT_SNET_FUNCTION void *SNetMemResize(void *memory, size_t size)
{
  void *resized = __builtin_realloc(memory, size);
  if (resized == NULL && size != 0) {
    __builtin_abort();
  }
  return resized;
}

#define SNetNew(type) ((type *)SNetMemAlloc(sizeof(type)))
#define SNetNewN(count, type) ((type *)SNetMemAlloc((count) * sizeof(type)))
#define SNetDelete(memory) SNetMemFree(memory)
#define SNetDeleteN(count, memory) SNetMemFree(memory)

/* Returns a copy of a text field with a 0 at its end, which the caller frees, or NULL for other
 * fields. */
COREBEAT_SNET_FUNCTION char *C4SNetGetString(c4snet_data_t *field)
{
  struct corebeat_snet_view view;
  char *text;
  corebeat_snet_api.call->look(field, &view);
  if (view.data == NULL || (view.type != CTYPE_char && view.type != CTYPE_uchar)) {
    return NULL;
  }
  text = (char *)SNetMemAlloc(view.count + 1);
  __builtin_memcpy(text, view.data, view.count);
  text[view.count] = '\0';
  return text;
}

/* Outputs a record: the fields (c4snet_data_t *) and tags (int) of output `variant`, counted from
 * 1, in the order of the declaration. NULL is a field without characters. Blocks while the stream
 * is full. */
COREBEAT_SNET_FUNCTION void C4SNetOut(void *hnd, int variant, ...)
{
  union corebeat_snet_value values[COREBEAT_SNET_ENTRIES_MAX];
  const char *kinds = corebeat_snet_api.call->variant(hnd, variant);
  va_list list;
  int i;
  if (kinds == NULL) {
    return;
  }
  va_start(list, variant);
  for (i = 0; kinds[i] != '\0'; i++) {
    if (kinds[i] == 'f') {
      values[i].field = va_arg(list, c4snet_data_t *);
    } else {
      values[i].tag = va_arg(list, int);
    }
  }
  va_end(list);
  corebeat_snet_api.call->out(hnd, variant, values);
}

/* Returns 0 if the network is shutting down, so that the box can stop its output. */
COREBEAT_SNET_FUNCTION int corebeat_snet_wanted(void *hnd)
{
  return corebeat_snet_api.call->wanted(hnd);
}

/* Reports a failure of the box. Records that were output before remain valid. */
COREBEAT_SNET_FUNCTION void corebeat_snet_fail(void *hnd, const char *message)
{
  corebeat_snet_api.call->fail(hnd, message);
}

/* Record that is built value by value. Fields, tags and binding tags each have the order of the
 * declaration. */
typedef struct container {
  void *hnd;
  const char *kinds;
  int variant;
  int set;
  int next[3];
  union corebeat_snet_value values[COREBEAT_SNET_ENTRIES_MAX];
} c4snet_container_t;

COREBEAT_SNET_FUNCTION c4snet_container_t *C4SNetContainerCreate(void *hnd, int variant)
{
  c4snet_container_t *record = (c4snet_container_t *)SNetMemAlloc(sizeof(c4snet_container_t));
  record->hnd = hnd;
  record->kinds = corebeat_snet_api.call->variant(hnd, variant);
  record->variant = variant;
  record->set = 0;
  record->next[0] = record->next[1] = record->next[2] = 0;
  return record;
}

/* Address of the next value of a kind. */
COREBEAT_SNET_FUNCTION union corebeat_snet_value *corebeat_snet_next(c4snet_container_t *record,
                                                                     int which, char kind)
{
  int *next = &record->next[which];
  if (record->kinds == NULL) {
    return NULL;
  }
  while (record->kinds[*next] != '\0' && record->kinds[*next] != kind) {
    *next += 1;
  }
  if (record->kinds[*next] == '\0') {
    corebeat_snet_api.call->fail(record->hnd,
                                 "the box set more values of a container than the variant has");
    return NULL;
  }
  record->set += 1;
  return &record->values[(*next)++];
}

COREBEAT_SNET_FUNCTION c4snet_container_t *C4SNetContainerSetField(c4snet_container_t *record,
                                                                   void *field)
{
  union corebeat_snet_value *value = corebeat_snet_next(record, 0, 'f');
  if (value != NULL) {
    value->field = (c4snet_data_t *)field;
  }
  return record;
}

COREBEAT_SNET_FUNCTION c4snet_container_t *C4SNetContainerSetTag(c4snet_container_t *record,
                                                                 int tag)
{
  union corebeat_snet_value *value = corebeat_snet_next(record, 1, 't');
  if (value != NULL) {
    value->tag = tag;
  }
  return record;
}

COREBEAT_SNET_FUNCTION c4snet_container_t *C4SNetContainerSetBTag(c4snet_container_t *record,
                                                                  int tag)
{
  union corebeat_snet_value *value = corebeat_snet_next(record, 2, 'b');
  if (value != NULL) {
    value->tag = tag;
  }
  return record;
}

/* Outputs the record and frees the container. */
COREBEAT_SNET_FUNCTION void C4SNetContainerOut(c4snet_container_t *record)
{
  if (record->kinds != NULL) {
    if (record->set == (int)__builtin_strlen(record->kinds)) {
      corebeat_snet_api.call->out(record->hnd, record->variant, record->values);
    } else {
      corebeat_snet_api.call->fail(record->hnd,
                                   "the box output a container without all its values");
    }
  }
  SNetMemFree(record);
}

/* Names in older programs. */
#define snetout C4SNetOut
#define C4SNetDataFree C4SNetFree
#define C4SNetDataGetData C4SNetGetData
#define C4SNetDataGetType C4SNetGetType
#define C4SNetDataGetArraySize(field) ((int)C4SNetArraySize(field))
#define C4SNetDataAlloc(type, count, data) C4SNetAlloc(type, (size_t)(count), data)
#define C4SNetDataAllocCreateArray(type, count, data) C4SNetAlloc(type, (size_t)(count), data)
#define C4SNetDataCopy C4SNetDeepCopy
#define C4SNetDataShallowCopy C4SNetShallowCopy

/* C4SNetDataCreate(type, count, data), or the older C4SNetDataCreate(type, data). */
#define C4SNetDataCreate(...)                                                        \
  COREBEAT_SNET_CREATE(__VA_ARGS__, COREBEAT_SNET_CREATE_3, COREBEAT_SNET_CREATE_2, 0) \
  (__VA_ARGS__)
#define COREBEAT_SNET_CREATE(a, b, c, function, ...) function
#define COREBEAT_SNET_CREATE_2(type, data) C4SNetCreate(type, 1, data)
#define COREBEAT_SNET_CREATE_3(type, count, data) C4SNetCreate(type, (size_t)(count), data)

/* Creates a field of elements in memory from SNetMemAlloc or malloc, and frees this memory. */
COREBEAT_SNET_FUNCTION c4snet_data_t *C4SNetDataCreateArray(c4snet_type_t type, size_t count,
                                                            void *data)
{
  c4snet_data_t *field = C4SNetCreate(type, count, data);
  __builtin_free(data);
  return field;
}

#ifdef __cplusplus
}
#endif

#endif
