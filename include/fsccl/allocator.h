/*
 * FSCCL allocators: the table of functions that a source of memory implements, the library's own
 * sources, and adaptors that go over any of them. A source gives large pieces that live long (the
 * arena of a pool, segments of another allocator), not small objects.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Tables of the library's own and tables of yours are alike: whatever takes one takes any, and
 * adaptors nest in any order.
 *
 *   fsccl_allocator_t host, limited, logged;
 *   fsccl_allocator_host(&host);
 *   fsccl_allocator_limit(&host, 1 << 30, &limited);
 *   fsccl_allocator_log(&limited, "allocations.csv", &logged);
 *   logged.allocate(logged.context, bytes, 64, NULL, &pointer);
 *
 * Ownership: a function that takes a table copies it. The object behind `context` must live until
 * every pool and adaptor that was made with the table is destroyed. The library's own tables keep
 * the tables below them alive, so they may be destroyed in any order. The library never calls
 * destroy: the maker of a table does. Threads: several threads call allocate, deallocate and share
 * at once. Errors: these functions return FSCCL_OK, or an error and change nothing. For the
 * library's own tables fsccl_last_error() explains the error. FSCCL_ERR_OUT_OF_MEMORY and the other
 * resource errors (-20 .. -39) mean that there is no memory now.
 */
#ifndef FSCCL_ALLOCATOR_H
#define FSCCL_ALLOCATOR_H

#include <sys/types.h>

#include "fsccl/fsccl.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FSCCL_ALLOCATOR_ABI 1

/* A source of memory. */
typedef struct fsccl_allocator {
  size_t size;           /* size of this struct: set by FSCCL_ALLOCATOR_INIT */
  uint32_t abi;          /* FSCCL_ALLOCATOR_ABI */
  const char* name;      /* for messages; NULL: "allocator" */
  fsccl_memory_t memory; /* the kind of memory that it gives */
  int device;            /* the GPU of device memory */
  void* context;         /* first argument of the functions below */
  /* Writes to *pointer the address of `bytes` bytes, aligned to `alignment`, a power of two; their
   * contents are undefined. The library asks for one byte or more, and checks the address. Its own
   * tables also take bytes == 0 (a unique address) and alignment == 0 (64). `stream` is as in
   * fsccl_pool_alloc(): a source that orders nothing by streams ignores it. */
  fsccl_status_t (*allocate)(void* context, size_t bytes, size_t alignment, void* stream,
                             void** pointer);
  /* Gives back a block, with the size that was asked for. The library's own tables return
   * FSCCL_ERR_INVALID_ARGUMENT for a foreign pointer, another size, or a block that was given back
   * before; they never pass such a pointer to a table of yours. They return an error of a table
   * below, and the block is given back all the same. */
  fsccl_status_t (*deallocate)(void* context, void* pointer, size_t bytes, void* stream);
  /* NULL if the source has no files. Writes the file behind a block, so that other processes of
   * this host can map it. *fd is the caller's to close; the block begins at byte *offset, a
   * multiple of the page size, and reaches to its end. The file may be sparse: a range exists when
   * it was reserved with fallocate(). Processes may keep it mapped beyond deallocate(), so a block
   * that was shared is given to nobody else, and its file not truncated. */
  fsccl_status_t (*share)(void* context, void* pointer, int* fd, uint64_t* offset);
  /* Ends the source; NULL: there is nothing to end. The library's own tables return
   * FSCCL_ERR_INVALID_STATE while blocks of theirs are allocated. */
  fsccl_status_t (*destroy)(void* context);
} fsccl_allocator_t;
#define FSCCL_ALLOCATOR_INIT  \
  {sizeof(fsccl_allocator_t), \
   FSCCL_ALLOCATOR_ABI,       \
   NULL,                      \
   FSCCL_MEMORY_HOST,         \
   0,                         \
   NULL,                      \
   NULL,                      \
   NULL,                      \
   NULL,                      \
   NULL}

/* --------------------------------------------------------------------------------- sources ---- */

/* Host memory of the system: each block is an anonymous file of whole pages, zero at first, which
 * takes a descriptor. A shortage is FSCCL_ERR_OUT_OF_MEMORY, never a signal later. Any alignment up
 * to 1 GiB. share() works. Any thread. */
FSCCL_API fsccl_status_t fsccl_allocator_host(fsccl_allocator_t* allocator);

/* Memory of GPU `device` from the driver: each block is a physical allocation of its own, of whole
 * pages of the device (2 MiB), so this is for arenas and segments. Not ordered by streams:
 * deallocate waits until all work on its stream (NULL: on all streams of the context) is complete;
 * no other stream may use the block then. If its stream is being captured, it returns
 * FSCCL_ERR_NOT_AVAILABLE, and the memory stays allocated until the source ends. share() gives no
 * file. FSCCL_ERR_NOT_AVAILABLE without a driver or such a device. Any thread. */
FSCCL_API fsccl_status_t fsccl_allocator_cuda(int device, fsccl_allocator_t* allocator);

/* Blocks of `pool`, as of fsccl_pool_alloc() with any alignment up to a page (of a GPU: 2 MiB). For
 * a pool on a GPU the memory is FSCCL_MEMORY_CUDA, and streams are CUDA's. The pool may be
 * destroyed when none of these blocks is allocated; the allocator then fails. Any thread. */
FSCCL_API fsccl_status_t fsccl_pool_allocator(fsccl_pool_t pool, fsccl_allocator_t* allocator);

/* -------------------------------------------------------------------------------- adaptors ---- */

/* Each makes *allocator, which passes what is asked of it on to `upstream`. Any thread. */

/* Returns FSCCL_ERR_OUT_OF_MEMORY for a block with which more than `limit_bytes` would be
 * allocated. */
FSCCL_API fsccl_status_t fsccl_allocator_limit(const fsccl_allocator_t* upstream,
                                               uint64_t limit_bytes, fsccl_allocator_t* allocator);

/* The counts of an allocator of fsccl_allocator_count(). */
typedef struct fsccl_allocator_stats_s {
  size_t size;
  uint64_t live_bytes;  /* allocated now */
  uint64_t peak_bytes;  /* the most that were allocated at once */
  uint64_t total_bytes; /* the sum of all allocations so far */
  uint64_t allocations, frees;
  uint64_t failures; /* requests that `upstream` refused */
} fsccl_allocator_stats_t;
#define FSCCL_ALLOCATOR_STATS_INIT {sizeof(fsccl_allocator_stats_t), 0, 0, 0, 0, 0, 0}
/* Counts blocks and bytes for fsccl_allocator_stats(). */
FSCCL_API fsccl_status_t fsccl_allocator_count(const fsccl_allocator_t* upstream,
                                               fsccl_allocator_t* allocator);
/* The counts of `allocator`, which fsccl_allocator_count() made. Any thread. */
FSCCL_API fsccl_status_t fsccl_allocator_stats(const fsccl_allocator_t* allocator,
                                               fsccl_allocator_stats_t* stats);

/* Appends a line for each call to the file `path`, in the form of RMM's logs, whose tools read it:
 * Thread,Time,Action,Pointer,Size,Stream, where actions are "allocate", "free" and "allocate
 * failure". Lines are written whole, as they happen. FSCCL_ERR_CONFIG: the file cannot be
 * written. */
FSCCL_API fsccl_status_t fsccl_allocator_log(const fsccl_allocator_t* upstream, const char* path,
                                             fsccl_allocator_t* allocator);

/* For host memory: surrounds each block with 64 bytes or more of a pattern, and fills it with 0xFF,
 * a NaN of every floating-point type, when it is given out and when it comes back. When a block
 * that was written beyond its ends is freed, report(context, text) is called with its address and
 * the bytes that were written; NULL: the library's log. A block takes as many more bytes of
 * `upstream`. It cannot be the source of a pool; use fsccl_pool_config_t.debug there. */
FSCCL_API fsccl_status_t fsccl_allocator_guard(const fsccl_allocator_t* upstream,
                                               void (*report)(void* context, const char* text),
                                               void* context, fsccl_allocator_t* allocator);

/* When `upstream` has no memory, calls on_failure(context, bytes), which may free memory, also of
 * this allocator, and returns how many bytes it freed. Unless that is 0, `upstream` is asked once
 * more. on_failure runs without a lock of the library. */
FSCCL_API fsccl_status_t fsccl_allocator_on_failure(const fsccl_allocator_t* upstream,
                                                    uint64_t (*on_failure)(void* context,
                                                                           uint64_t bytes),
                                                    void* context, fsccl_allocator_t* allocator);

/* ----------------------------------------------------------------------- sources of a pool ---- */

/*
 * The sources that fsccl_pool_config_t.source takes. A source gives the pool's kind of memory. It
 * lives longer than the pool; each rank gives its own, all of them or none where it is from
 * outside.
 *
 * Adaptors over fsccl_allocator_host(): the pool's arena is the library's own as ever, and each
 * growth of what a rank hosts (its slots and blocks, and on one rank the shared ones) passes
 * through the adaptors of that rank. When they refuse, the pool gives back memory that blocks do
 * not use, asks on_pressure and asks its source once more; then it refuses, too. It gives memory
 * back in other pieces than it took it, whole pages each.
 *
 * Any other source is asked for the whole arena, by the first rank of each host, when the pool is
 * made: three parts (shared slots, slots, blocks) for each rank of the host, each as large as that
 * rank's limit_bytes (or a third of FSCCL_POOL_REGION_BYTES), and a little more. The file that it
 * shares is mapped by all of them, and reserved as the pool grows; its pages have 2 MiB at most.
 * Memory that has no file serves a communicator with one rank on this host, without imports and
 * FSCCL_SHARING_COPY_ON_WRITE; for more ranks it is FSCCL_ERR_NOT_AVAILABLE. Adaptors above it see
 * the growth, not the arena.
 *
 * A pool on a GPU takes adaptors over fsccl_allocator_cuda() of its device: each growth passes
 * through them, and the memory is a segment of the pool's own, which peers can map. Other sources
 * are FSCCL_ERR_INVALID_ARGUMENT.
 */

/* --------------------------------------------------------------------------------- PyTorch ---- */

/*
 * The two functions that torch.cuda.memory.CUDAPluggableAllocator takes by name:
 *
 *   allocator = torch.cuda.memory.CUDAPluggableAllocator(
 *       "libfsccl.so", "fsccl_torch_malloc", "fsccl_torch_free")
 *
 * for torch.cuda.MemPool(allocator.allocator()) or change_current_allocator. They serve from the
 * allocator that fsccl_torch_use() named for the device. A block goes back to the allocator that
 * gave it, whichever serves then.
 */

/* From now on `allocator` serves `device` (0 or more) in this process; NULL: none does. Its memory
 * must be such that the device can use it: fsccl_allocator_cuda(), adaptors over it, or a table of
 * yours. Memory of another device is FSCCL_ERR_INVALID_ARGUMENT. Any thread. */
FSCCL_API fsccl_status_t fsccl_torch_use(int device, const fsccl_allocator_t* allocator);
/* NULL when there is no memory or no allocator: fsccl_last_error() and the log say why, and a
 * torch.cuda.MemPool takes it for out-of-memory. Also for 0 bytes, which is no error. `stream` is a
 * cudaStream_t. Any thread. */
FSCCL_API void* fsccl_torch_malloc(ssize_t size, int device, void* stream);
/* NULL does nothing. Memory that fsccl_torch_malloc() did not give is left alone, and reported
 * to fsccl_last_error() and the log. */
FSCCL_API void fsccl_torch_free(void* pointer, ssize_t size, int device, void* stream);

#ifdef __cplusplus
}
#endif
#endif /* FSCCL_ALLOCATOR_H */
