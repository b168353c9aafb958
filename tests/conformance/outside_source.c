#include "outside_source.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int find(const outside_source_t* source, const void* pointer) {
  int i;
  for (i = 0; i < OUTSIDE_BLOCKS; ++i)
    if (source->blocks[i].pointer == pointer) return i;
  return -1;
}

static fsccl_status_t make_file(size_t bytes, int* fd, void** pointer) {
  *fd = memfd_create("outside", MFD_CLOEXEC);
  if (*fd < 0) return FSCCL_ERR_SYSTEM;
  if (ftruncate(*fd, (off_t)bytes) == 0) {
    *pointer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, *fd, 0);
    if (*pointer != MAP_FAILED) {
      memset(*pointer, 0xAB, bytes < 65536 ? bytes : 65536); /* the rest is sparse */
      return FSCCL_OK;
    }
  }
  close(*fd);
  return FSCCL_ERR_OUT_OF_MEMORY;
}

/* Memory of malloc, placed by hand, as alignments below that of malloc must work, too. */
static fsccl_status_t make_memory(size_t bytes, size_t alignment, void** whole, void** pointer) {
  uintptr_t address;
  *whole = malloc(bytes + alignment);
  if (!*whole) return FSCCL_ERR_OUT_OF_MEMORY;
  address = ((uintptr_t)*whole + alignment - 1) / alignment * alignment;
  *pointer = (void*)address;
  memset(*pointer, 0xAB, bytes);
  return FSCCL_OK;
}

static fsccl_status_t allocate(void* context, size_t bytes, size_t alignment, void* stream,
                               void** pointer) {
  outside_source_t* const source = (outside_source_t*)context;
  fsccl_status_t status = FSCCL_ERR_OUT_OF_MEMORY;
  void* given = NULL;
  int slot;
  (void)stream;
  /* The library must never ask for no bytes, or with no alignment. */
  if (bytes == 0 || alignment == 0) return FSCCL_ERR_INVALID_ARGUMENT;
  if (source->answer == OUTSIDE_NULL) return FSCCL_OK;
  if (source->answer == OUTSIDE_ODD_STATUS) return (fsccl_status_t)FSCCL_ERR_ABORTED;
  if (source->answer == OUTSIDE_TWICE) return *pointer = source->blocks[0].pointer, FSCCL_OK;
  pthread_mutex_lock(&source->mutex);
  slot = find(source, NULL);
  if (slot >= 0 && source->out <= source->capacity && bytes <= source->capacity - source->out) {
    source->blocks[slot].fd = -1;
    status = source->files ? make_file(bytes, &source->blocks[slot].fd, &given)
                           : make_memory(bytes, alignment, &source->blocks[slot].whole, &given);
  }
  if (status == FSCCL_OK) {
    if (source->answer == OUTSIDE_MISALIGNED) given = (char*)given + 8;
    source->blocks[slot].pointer = given;
    source->blocks[slot].bytes = bytes;
    source->out += bytes;
    source->allocations++;
    *pointer = given;
  }
  pthread_mutex_unlock(&source->mutex);
  return status;
}

static fsccl_status_t deallocate(void* context, void* pointer, size_t bytes, void* stream) {
  outside_source_t* const source = (outside_source_t*)context;
  int slot;
  (void)stream;
  pthread_mutex_lock(&source->mutex);
  slot = pointer ? find(source, pointer) : -1;
  if (slot < 0 || source->blocks[slot].bytes != bytes) {
    source->wrong_frees++;
  } else {
    if (source->files) {
      munmap(pointer, bytes);
      close(source->blocks[slot].fd);
    } else {
      free(source->blocks[slot].whole);
    }
    source->blocks[slot].pointer = NULL;
    source->out -= bytes;
    source->frees++;
  }
  pthread_mutex_unlock(&source->mutex);
  return slot < 0 ? FSCCL_ERR_INVALID_ARGUMENT : FSCCL_OK;
}

static fsccl_status_t share(void* context, void* pointer, int* fd, uint64_t* offset) {
  outside_source_t* const source = (outside_source_t*)context;
  int slot;
  if (source->answer == OUTSIDE_NO_FILE) return FSCCL_OK;
  pthread_mutex_lock(&source->mutex);
  slot = find(source, pointer);
  *fd = slot < 0 ? -1 : dup(source->blocks[slot].fd);
  *offset = 0;
  pthread_mutex_unlock(&source->mutex);
  return *fd < 0 ? FSCCL_ERR_SYSTEM : FSCCL_OK;
}

void outside_source_init(outside_source_t* source, size_t capacity, int files,
                         fsccl_allocator_t* allocator) {
  const fsccl_allocator_t empty = FSCCL_ALLOCATOR_INIT;
  memset(source, 0, sizeof *source);
  pthread_mutex_init(&source->mutex, NULL);
  source->capacity = capacity;
  source->files = files;
  *allocator = empty;
  allocator->name = "outside";
  allocator->context = source;
  allocator->allocate = allocate;
  allocator->deallocate = deallocate;
  allocator->share = files ? share : NULL;
}
