/*
 * A source of memory as a program outside would write it, in C: on malloc, or on one anonymous file
 * a block, of at most `capacity` bytes, with contents of 0xAB. It can be told to misbehave.
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
  OUTSIDE_TWICE,      /* the block before once more */
  OUTSIDE_ODD_STATUS, /* a status that no source may return */
  OUTSIDE_NO_FILE     /* share() returns FSCCL_OK, and no descriptor */
};

typedef struct outside_source {
  pthread_mutex_t mutex;
  size_t capacity, out;
  int files; /* nonzero: blocks are files */
  enum outside_answer answer;
  int allocations, frees, wrong_frees;
  struct {
    void* pointer; /* given out */
    void* whole;   /* the pointer of malloc */
    size_t bytes;
    int fd;
  } blocks[OUTSIDE_BLOCKS];
} outside_source_t;

/* Fills the source, and *allocator with functions on it; share() is there if `files`. */
void outside_source_init(outside_source_t* source, size_t capacity, int files,
                         fsccl_allocator_t* allocator);

#ifdef __cplusplus
}
#endif
#endif
