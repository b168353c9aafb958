/*
 * A source of memory in C, as a program that uses the library would write it. Its memory is of
 * malloc, or one anonymous file for each block. It gives at most `capacity` bytes in all, filled
 * with 0xAB. `answer` makes it misbehave.
 */
#ifndef OUTSIDE_SOURCE_H
#define OUTSIDE_SOURCE_H

#include <fsccl/allocator.h>
#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OUTSIDE_BLOCKS 4096

enum outside_answer {
  OUTSIDE_RIGHT = 0,
  OUTSIDE_NULL,       /* FSCCL_OK, and NULL */
  OUTSIDE_MISALIGNED, /* 8 bytes beyond an aligned address */
  OUTSIDE_TWICE,      /* the previous block once more */
  OUTSIDE_ODD_STATUS, /* a status that no source may return */
  OUTSIDE_NO_FILE     /* share() returns FSCCL_OK, and no descriptor */
};

typedef struct outside_source {
  pthread_mutex_t mutex;
  size_t capacity, out;
  int files; /* nonzero: each block is a file */
  enum outside_answer answer;
  int allocations, frees, wrong_frees;
  struct {
    void* pointer; /* the address that the caller got */
    void* whole;   /* the pointer of malloc */
    size_t bytes;
    int fd;
  } blocks[OUTSIDE_BLOCKS];
} outside_source_t;

/* Initializes the source and the table of its functions. The table has share() if `files`. */
void outside_source_init(outside_source_t* source, size_t capacity, int files,
                         fsccl_allocator_t* allocator);

#ifdef __cplusplus
}
#endif
#endif
