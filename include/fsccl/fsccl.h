/*
 * FSCCL, the Fully Sharded Collective Communication Library: the communication and the memory of
 * fully sharded data parallel (FSDP) training behind one C API.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * This header is what a training framework needs. fsccl/insight.h explains, counts and forecasts;
 * fsccl/redistribute.h redistributes shards; fsccl/publish.h sends weights to other processes;
 * fsccl/codec.h names codecs; fsccl/allocator.h has sources of memory; fsccl/transport.h is for
 * plug-ins. docs/api has a page for each noun, with the details that the comments here leave out.
 *
 * Rules that hold for every function (docs/api/README.md has them in full)
 *   Status     A call that can fail returns an fsccl_status_t: 0 is success, positive is progress,
 *              negative is an error. Outputs are written unless the status is an error.
 *              fsccl_last_error() has the details of this thread's last error. Every function may
 *              return the usage errors of its arguments and handles, and FSCCL_ERR_OUT_OF_MEMORY;
 *              every operation may return the error that ended its communicator. A function's
 *              comment lists its other errors.
 *   Handles    A handle is a small number, not an address. A handle that is NULL, foreign or
 *              destroyed is FSCCL_ERR_INVALID_HANDLE. A destroy function waits until the calls of
 *              other threads on the object have returned.
 *   Structs    A struct with a size is initialised with its FSCCL_..._INIT macro. Fields are only
 *              ever appended, and the library reads and writes what the caller's size covers.
 *   Threads    One thread at a time issues operations on a communicator and on its pools and units.
 *              Any number of threads may call a function whose comment says "any thread".
 *   Order      All ranks issue the collective operations of a communicator in the same order. Ranks
 *              that disagree all get FSCCL_ERR_MISMATCH, with both calls in the text. On several
 *              hosts a call in two levels (FSCCL_HIERARCHY) and one that is not, because its kind
 *              or size differs, are not compared: they end with FSCCL_ERR_TIMEOUT.
 *   Blocking   With work == NULL an operation in host memory returns when it is complete on this
 *              rank. With a work it does what it can without a peer, such as its own copies, and
 *              returns; its buffers belong to the library until fsccl_work_wait() returns FSCCL_OK.
 *              Every wait ends at the communicator's deadline.
 *   Streams    `stream` orders an operation on memory of a GPU (a cudaStream_t), whose work is
 *              NULL. `stream` is NULL for host memory.
 *   Sizes      Counts and displacements are in elements. Names that end in _bytes, and sizes of
 *              memory, are in bytes.
 *   Strings    The library copies names and paths. Arguments of a callback live during its call.
 *   Fork       Fork before the first call for a communicator or an id. In a later child every call
 *              that needs one, or changes a setting, returns FSCCL_ERR_FORKED.
 */
#ifndef FSCCL_H
#define FSCCL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FSCCL_VERSION_MAJOR 0
#define FSCCL_VERSION_MINOR 1
#define FSCCL_VERSION_PATCH 0
/* One number, comparable: 10000 * major + 100 * minor + patch. */
#define FSCCL_VERSION \
  (10000 * FSCCL_VERSION_MAJOR + 100 * FSCCL_VERSION_MINOR + FSCCL_VERSION_PATCH)

#if defined(__GNUC__)
#define FSCCL_API __attribute__((visibility("default")))
#else
#define FSCCL_API
#endif

/* ---------------------------------------------------------------------------------- status ---- */

/* Errors are grouped by what they have damaged. Values are never renumbered. */
typedef enum fsccl_status {
  FSCCL_OK = 0,
  FSCCL_IN_PROGRESS = 1, /* not complete, or not there, yet */

  /* usage (-1 .. -19): this call did nothing; correct it and go on. The other ranks of a collective
   * call do not learn of it: they wait for the corrected call */
  FSCCL_ERR_INVALID_ARGUMENT = -1, /* a value is out of range, NULL, overlapping or inconsistent */
  FSCCL_ERR_INVALID_HANDLE = -2,   /* NULL, destroyed, or a handle of another kind */
  FSCCL_ERR_INVALID_STATE = -3,    /* right call, wrong moment (param() before unshard(), say) */
  /* not in this release, build or machine; the text says what to do */
  FSCCL_ERR_NOT_AVAILABLE = -4,
  /* header and library, or the libraries of two ranks, do not fit */
  FSCCL_ERR_VERSION = -5,
  /* an environment variable or configuration value is not accepted */
  FSCCL_ERR_CONFIG = -6,
  FSCCL_ERR_FORKED = -7, /* the process is a child that was forked too late */

  /* resource (-20 .. -39): the machine or a limit refused; state is as before the call */
  /* the machine, the container or a pool's limit has no room; free some and go on */
  FSCCL_ERR_OUT_OF_MEMORY = -20,
  /* a limit on a number (open files, addresses, handles, streams) is too low; the text names it */
  FSCCL_ERR_LIMIT = -21,
  FSCCL_ERR_SYSTEM = -22, /* a system call failed; the text names it and its error */

  /* link (-40 .. -59): a connection between two ranks failed */
  FSCCL_ERR_LINK = -40,
  FSCCL_ERR_PROTOCOL = -41, /* a peer, or somebody else, sent bytes that are not ours */

  /* peer (-60 .. -79): another rank failed or disagrees. The communicator starts no operation any
   * more, and returns this error from then on, unless the function's comment says that the error
   * does not damage it; fsccl_comm_shrink(), fsccl_comm_peer_state(), fsccl_comm_async_error() and
   * fsccl_comm_destroy() still work */
  FSCCL_ERR_PEER_DEAD = -60,
  FSCCL_ERR_MISMATCH = -61, /* ranks disagree on an operation; the text holds both calls */
  FSCCL_ERR_AUTH = -62,     /* a peer could not prove that it belongs to the job */
  FSCCL_ERR_TIMEOUT = -63,  /* a deadline passed; the text names who was missing */

  /* communicator (-80 .. -99): the communicator has ended; the same functions still work */
  FSCCL_ERR_ABORTED = -80,
  FSCCL_ERR_COMM_FAILED = -81, /* not returned in this release: calls return the first error */

  /* internal (-100): a defect of this library; please report it */
  FSCCL_ERR_INTERNAL = -100
} fsccl_status_t;

/* Returns the name of a status and its meaning in one line; never NULL, for any value. Any
 * thread. */
FSCCL_API const char* fsccl_status_string(fsccl_status_t status);

typedef struct fsccl_error_info {
  size_t size;         /* set by FSCCL_ERROR_INFO_INIT */
  fsccl_status_t code; /* FSCCL_OK when this thread had no error yet */
  int rank;            /* this rank in the communicator, -1 if none was concerned */
  int peer;            /* the rank that caused it (after an abort perhaps this one), -1 if none */
  /* the operation's sequence number in its communicator, 0 if none; on ranks that learn of a
   * failure from others the text has it */
  uint64_t sequence;
  const char* operation; /* the function or operation, "" if none */
  const char* text;      /* says what happened, with the values, and what to do */
} fsccl_error_info_t;
#define FSCCL_ERROR_INFO_INIT {sizeof(fsccl_error_info_t), FSCCL_OK, -1, -1, 0, "", ""}
/* Describes the calling thread's last error. The strings live until this thread's next error. Any
 * thread. An `info` that is NULL or not initialised is FSCCL_ERR_INVALID_ARGUMENT, which is not
 * recorded. */
FSCCL_API fsccl_status_t fsccl_last_error(fsccl_error_info_t* info);

/* Writes the library's FSCCL_VERSION, which a program may compare with that of its header. Any
 * thread. */
FSCCL_API fsccl_status_t fsccl_version(int* version);

/* Sets the variable `name` ("FSCCL_TIMEOUT_MS"), which docs/env.md and `fsccl-info config` list,
 * to `value`. This overrides the environment, which overrides the file FSCCL_CONFIG_FILE. Objects
 * that are created afterwards see it. Any thread. FSCCL_ERR_CONFIG names the accepted values, or
 * the nearest known name. */
FSCCL_API fsccl_status_t fsccl_config_set(const char* name, const char* value);

/* ----------------------------------------------------------------------------------- types ---- */

/* Handles. Create functions make them, destroy functions end them; zero is the null handle. */
typedef struct fsccl_comm_s* fsccl_comm_t; /* a group of ranks */
typedef struct fsccl_pool_s* fsccl_pool_t; /* the caching allocator over one arena */
typedef struct fsccl_unit_s* fsccl_unit_t; /* parameters that are gathered and freed together */
typedef struct fsccl_work_s* fsccl_work_t; /* an operation in flight */

typedef enum fsccl_dtype {
  FSCCL_INT8 = 0,
  FSCCL_UINT8 = 1,
  FSCCL_INT16 = 2,
  FSCCL_UINT16 = 3,
  FSCCL_INT32 = 4,
  FSCCL_UINT32 = 5,
  FSCCL_INT64 = 6,
  FSCCL_UINT64 = 7,
  FSCCL_FLOAT16 = 8,
  FSCCL_BFLOAT16 = 9,
  FSCCL_FLOAT32 = 10,
  FSCCL_FLOAT64 = 11,
  FSCCL_BOOL = 12,        /* one byte, 0 or 1; sum is "or", product is "and" */
  FSCCL_FLOAT8_E4M3 = 13, /* moved as bytes, not reduced */
  FSCCL_FLOAT8_E5M2 = 14, /* moved as bytes, not reduced */
  FSCCL_DTYPE_COUNT = 15
} fsccl_dtype_t;

/* Returns the bytes of an element; 0 for an unknown dtype. Any thread. */
FSCCL_API size_t fsccl_dtype_size(fsccl_dtype_t dtype);

typedef enum fsccl_op_kind {
  FSCCL_OP_SUM = 0,
  FSCCL_OP_AVG = 1, /* the sum, divided by the number of ranks: see fsccl_op_t */
  FSCCL_OP_MIN = 2,
  FSCCL_OP_MAX = 3,
  FSCCL_OP_PROD = 4,
  FSCCL_OP_PREMUL_SUM = 5 /* each contribution times `scale`, then summed (floating point only) */
} fsccl_op_kind_t;

/*
 * A reduction operator, passed by value. Sums of 16-bit floats and of fp32 accumulate in fp32,
 * those of fp64 in fp64, those of integers in their own width (wrapping). Contributions are reduced
 * in rank order and rounded once, so a result has the same bits in every run. FSCCL_AVG is the
 * accumulated sum divided by the number of ranks. Minimum and maximum are NaN if a contribution is.
 * docs/api/collectives.md has what several hosts, integers and NCCL change.
 */
typedef struct fsccl_op {
  int32_t kind; /* fsccl_op_kind_t */
  int32_t reserved;
  double scale; /* FSCCL_OP_PREMUL_SUM only */
} fsccl_op_t;

static const fsccl_op_t FSCCL_SUM = {FSCCL_OP_SUM, 0, 1.0};
static const fsccl_op_t FSCCL_AVG = {FSCCL_OP_AVG, 0, 1.0};
static const fsccl_op_t FSCCL_MIN = {FSCCL_OP_MIN, 0, 1.0};
static const fsccl_op_t FSCCL_MAX = {FSCCL_OP_MAX, 0, 1.0};
static const fsccl_op_t FSCCL_PROD = {FSCCL_OP_PROD, 0, 1.0};
/* Every rank must pass the same scale: it is part of the operation's fingerprint. */
static inline fsccl_op_t fsccl_premul_sum(double scale) {
  const fsccl_op_t op = {FSCCL_OP_PREMUL_SUM, 0, scale};
  return op;
}

/* ---------------------------------------------------------------------------- communicator ---- */

/*
 * An id names a job and carries its secret and the address where its ranks meet. Hand it to every
 * rank over a channel that you trust (a file with mode 0600, a pipe, MPI): whoever has it can join.
 * Its bytes are opaque. It is not valid after fsccl_comm_create() of all ranks.
 */
typedef struct fsccl_unique_id {
  unsigned char bytes[256];
} fsccl_unique_id_t;

/*
 * Makes an id and begins to listen for its ranks in this process, on a Unix socket and, unless
 * FSCCL_BOOTSTRAP_TCP=0, on TCP. The process, usually that of rank 0, must live until all ranks
 * have joined, and listens until then. One id makes one communicator: whoever uses it again waits
 * for the deadline. Does not block. FSCCL_ERR_CONFIG: the port
 * FSCCL_BOOTSTRAP_PORT is in use, or there is no interface FSCCL_BOOTSTRAP_INTERFACE.
 * FSCCL_ERR_SYSTEM: the system refuses the sockets.
 */
FSCCL_API fsccl_status_t fsccl_unique_id_create(fsccl_unique_id_t* id);

/*
 * A caller's own all-gather. Every rank gives `bytes` bytes at `mine` and receives size * bytes
 * bytes at `all`, in rank order. The function is collective and blocks. It returns 0, or anything
 * else to fail the communicator's creation. The thread that creates the communicator calls it or,
 * if `nonblocking` is set, a thread of the library; `context` must live until the communicator is
 * there.
 */
typedef int (*fsccl_all_gather_fn)(void* context, const void* mine, void* all, size_t bytes);

typedef struct fsccl_comm_config {
  size_t size; /* set by FSCCL_COMM_CONFIG_INIT, like `version` */
  int version;
  /* The ranks find each other in one of three ways. With unique_id, which every rank has, rank and
   * ranks are required. With all_gather, which the library calls to exchange an id of its own, they
   * are required too. With neither, rank, ranks and the address come from the launcher's
   * environment, as fsccl_launcher() reports it. */
  const fsccl_unique_id_t* unique_id;
  fsccl_all_gather_fn all_gather;
  void* all_gather_context;
  int rank;
  int ranks;
  /* 1: fsccl_comm_create() returns FSCCL_IN_PROGRESS at once; until fsccl_comm_async_error() writes
   * FSCCL_OK, other functions return FSCCL_ERR_INVALID_STATE */
  int nonblocking;
  /* the deadline of every wait on this communicator; 0: FSCCL_TIMEOUT_MS, or that of the
   * communicator from which this one is made */
  int64_t timeout_ms;
  const char* name; /* for messages; copied; NULL: "comm" and a number */
} fsccl_comm_config_t;
#define FSCCL_COMM_CONFIG_INIT \
  {sizeof(fsccl_comm_config_t), FSCCL_VERSION, NULL, NULL, NULL, -1, 0, 0, 0, NULL}

/*
 * Joins a communicator. Every rank calls it; a rank is a process, or a thread with a handle of its
 * own. A config of NULL is FSCCL_COMM_CONFIG_INIT, which takes everything from the launcher's
 * environment. Blocks until every rank has joined or the deadline has passed. Every link is
 * authenticated on both sides (docs/api/communicator.md).
 *
 * FSCCL_ERR_AUTH: a rank could not prove that it belongs to the job. FSCCL_ERR_TIMEOUT says how
 * many joined. FSCCL_ERR_MISMATCH: ranks have different settings. FSCCL_ERR_LIMIT: a rank may open
 * too few files. FSCCL_ERR_NOT_AVAILABLE: a rank cannot use the transport. FSCCL_ERR_VERSION and
 * FSCCL_ERR_CONFIG are possible as well.
 */
FSCCL_API fsccl_status_t fsccl_comm_create(const fsccl_comm_config_t* config, fsccl_comm_t* comm);

#define FSCCL_COLOR_NONE (-1)
/*
 * Divides `comm`: the ranks that give the same color (>= 0) form a new communicator, ordered by
 * key, then by rank. A rank that gives FSCCL_COLOR_NONE gets the null handle. Collective; blocks.
 * Only timeout_ms and name of `config`, which may be NULL, are used, and nonblocking must be 0
 * (FSCCL_ERR_NOT_AVAILABLE). `comm` stays usable; the two may be destroyed in any order.
 */
FSCCL_API fsccl_status_t fsccl_comm_split(fsccl_comm_t comm, int color, int key,
                                          const fsccl_comm_config_t* config, fsccl_comm_t* result);

/*
 * Makes a communicator of the ranks of `comm` that ranks[count] lists; the list's i-th rank is its
 * rank i. Only the listed ranks call, with the same list and the same tag. Lists that begin with
 * the same rank need different tags. Blocks. `config` is as with fsccl_comm_split(); `comm` stays
 * usable, and the two may be destroyed in any order. Any thread, also while operations on `comm`
 * are in flight.
 *
 * A listed rank that lacks memory or descriptors for it ends `comm` with its error, because others
 * may wait for that rank; other errors do not damage `comm`. FSCCL_ERR_INVALID_ARGUMENT: a number
 * is in the list twice, is no rank of `comm`, or this rank is not in it. FSCCL_ERR_MISMATCH: the
 * first rank has given another list for this tag. FSCCL_ERR_TIMEOUT: a listed rank has not come
 * (try again with another tag).
 */
FSCCL_API fsccl_status_t fsccl_comm_subset(fsccl_comm_t comm, const int* ranks, size_t count,
                                           uint64_t tag, const fsccl_comm_config_t* config,
                                           fsccl_comm_t* result);

/*
 * Makes a communicator of the survivors of `comm`, in the order of their old ranks, after a rank
 * has died or left. Every survivor calls it. Blocks until the survivors agree on their list, at
 * most for the timeout of `config` or else of `comm`. `comm` must have failed on every survivor,
 * else the call returns FSCCL_ERR_INVALID_STATE. It does not change `comm`. Make new pools and
 * units, and fill them with fsccl_redistribute(). `config` is as with fsccl_comm_split(). Any
 * thread, once at a time.
 *
 * FSCCL_ERR_TIMEOUT names the ranks that did not come; all survivors may call again.
 * FSCCL_ERR_PEER_DEAD: the other ranks consider this one dead. If a survivor cannot make the
 * communicator, as for lack of memory, no survivor gets it: all return that survivor's error, which
 * names its rank in `comm`, and may call again.
 */
FSCCL_API fsccl_status_t fsccl_comm_shrink(fsccl_comm_t comm, const fsccl_comm_config_t* config,
                                           fsccl_comm_t* result);

/*
 * Ends every operation of `comm` on every rank with FSCCL_ERR_ABORTED, including those in which
 * threads wait now. Needs no cooperation of other ranks and returns at once. Afterwards `comm` can
 * be shrunk and destroyed. Any thread, at any time.
 */
FSCCL_API fsccl_status_t fsccl_comm_abort(fsccl_comm_t comm);

/*
 * Ends the handle and frees what the communicator holds. First complete or abort the operations in
 * flight, and destroy the pools and units on `comm`: else the call returns FSCCL_ERR_INVALID_STATE
 * and changes nothing. It also does so inside a function given to fsccl_work_callback(). Does not
 * wait for other ranks, unless `comm` is still being created. A rank that waits for this one
 * afterwards gets FSCCL_ERR_PEER_DEAD ("rank N has left").
 */
FSCCL_API fsccl_status_t fsccl_comm_destroy(fsccl_comm_t comm);

/* Write this rank's number, 0 .. size - 1, and the number of ranks. Any thread. */
FSCCL_API fsccl_status_t fsccl_comm_rank(fsccl_comm_t comm, int* rank);
FSCCL_API fsccl_status_t fsccl_comm_size(fsccl_comm_t comm, int* size);
/* Writes this rank's number among the ranks of its host, and how many those are. Any thread. */
FSCCL_API fsccl_status_t fsccl_comm_local_rank(fsccl_comm_t comm, int* local_rank, int* local_size);
/* Writes FSCCL_OK, FSCCL_IN_PROGRESS (`comm` is still being created), or the error that ended
 * `comm`, of which fsccl_last_error() then tells more. Does not block. Any thread. */
FSCCL_API fsccl_status_t fsccl_comm_async_error(fsccl_comm_t comm, fsccl_status_t* state);

/* ---------------------------------------------------------------------------------- memory ---- */

typedef enum fsccl_memory {
  FSCCL_MEMORY_HOST = 0,
  FSCCL_MEMORY_CUDA = 1 /* memory of a GPU, fsccl_pool_config_t.device */
} fsccl_memory_t;

typedef struct fsccl_pool_config {
  size_t size;
  fsccl_memory_t memory;
  int device; /* for device memory */
  /* the most bytes that this rank may reserve, at most 2^46, rounded down to whole pages. Every
   * rank counts shared slots in full. All slots together stay within the smallest limit of the
   * ranks: a slot that exceeds it is refused on every rank (docs/memory.md). 0: FSCCL_POOL_LIMIT;
   * if that is unset too, half of the memory of the machine or container, for each rank; on a GPU
   * 90 % of its free memory, shared by the ranks of `comm` that are on it */
  uint64_t limit_bytes;
  /* 1 (default): record the first step and plan from it; 0: only a declared schedule plans */
  int record;
  const char* name; /* for messages and metrics; copied; NULL: the library makes one */
  /* 1: a rehearsal, for models that do not fit. Units on this pool move no bytes: addresses, plans,
   * signals, statistics and counters are real, but no memory of the pool or of the caller is
   * reserved or touched, and contents are undefined. The same on all ranks. Units with a
   * replicate_comm are refused. Host memory only. 0 (default): no rehearsal */
  int dry_run;
  /* The pool calls it before it refuses memory: when the soft limit or the limit leaves `bytes` too
   * few, or the machine has no more. It may free blocks of this pool and memory of its own, and
   * returns how many bytes it freed, which the pool does not use: it tries once more in any case. A
   * slot may be tried at several places, with a call for each. It runs in the thread that called
   * the pool, without a lock of the library, and must not call collective functions. NULL: no
   * function. */
  uint64_t (*on_pressure)(void* context, fsccl_pool_t pool, uint64_t bytes);
  void* on_pressure_context;
  /* above this many bytes the pool calls on_pressure, and returns unused memory to the system at
   * the end of a step; it refuses nothing. 0: FSCCL_POOL_SOFT_LIMIT */
  uint64_t soft_limit_bytes;
  /* 1: debug mode, as with FSCCL_POOL_DEBUG=1; the same on all ranks. The first call that detects a
   * wrong use returns FSCCL_ERR_INVALID_STATE, once, or the process gets SIGSEGV (docs/memory.md).
   * On a GPU fresh and freed bytes are filled with 0xFF, a NaN, and nothing else is checked */
  int debug;
  /* where the memory comes from (allocator.h), copied; NULL: the library's own */
  const struct fsccl_allocator* source;
} fsccl_pool_config_t;
#define FSCCL_POOL_CONFIG_INIT \
  {sizeof(fsccl_pool_config_t), FSCCL_MEMORY_HOST, 0, 0, 1, NULL, 0, NULL, NULL, 0, 0, NULL}

/*
 * Makes a pool over one arena: memory that the ranks of a host map together, so that collectives on
 * it move each byte once or not at all. On several hosts it is a pool for each host. A config of
 * NULL is FSCCL_POOL_CONFIG_INIT. Collective over `comm`; blocks. The pool reserves memory when it
 * grows, and a shortage is FSCCL_ERR_OUT_OF_MEMORY of the call that needs it. With
 * FSCCL_MEMORY_CUDA the arena is memory of the GPU `device` (docs/api/pool.md).
 *
 * FSCCL_ERR_LIMIT: a limit on addresses or descriptors. FSCCL_ERR_SYSTEM: the system refuses the
 * memory. FSCCL_ERR_MISMATCH: ranks differ in a setting that must be equal.
 * FSCCL_ERR_NOT_AVAILABLE: there is no driver or no such GPU on some rank.
 */
FSCCL_API fsccl_status_t fsccl_pool_create(fsccl_comm_t comm, const fsccl_pool_config_t* config,
                                           fsccl_pool_t* pool);
/* Ends the pool. Destroy its units, free its blocks and end its imports before: else the call
 * returns FSCCL_ERR_INVALID_STATE, lists them, and leaves the pool as it is. Not collective; does
 * not block in host memory. On a GPU it waits for what streams have been given. */
FSCCL_API fsccl_status_t fsccl_pool_destroy(fsccl_pool_t pool);

/*
 * Allocates a block of `bytes` bytes, aligned to 64 (to 4096 from 64 KiB on; on a GPU to 512). Any
 * rank may allocate alone. The contents are undefined; 0 bytes give a unique address. Blocks of a
 * pool are the fastest buffers for collectives. On a GPU `stream` is the stream whose work uses the
 * block first: what it is given from now on follows the last use of these bytes. In host memory
 * `stream` is NULL. The block is the caller's until fsccl_pool_free(). Any thread.
 *
 * FSCCL_ERR_OUT_OF_MEMORY: the pool's limit, or the machine. FSCCL_ERR_INVALID_STATE (debug mode):
 * somebody wrote to memory after it was freed; nothing was allocated, and the next call goes on.
 */
FSCCL_API fsccl_status_t fsccl_pool_alloc(fsccl_pool_t pool, size_t bytes, void* stream,
                                          void** pointer);
/* Gives a block back, or ends an import. On a GPU that happens when the work is done that `stream`
 * has been given so far; in host memory `stream` is NULL and the block is free at once. A `pointer`
 * of NULL does nothing. Any thread. FSCCL_ERR_INVALID_ARGUMENT: the pointer is foreign or was freed
 * before. FSCCL_ERR_NOT_AVAILABLE: `stream` is being captured. In both cases nothing changes.
 * FSCCL_ERR_INVALID_STATE (debug mode): the block was written beyond its ends; it is freed all the
 * same. */
FSCCL_API fsccl_status_t fsccl_pool_free(fsccl_pool_t pool, void* pointer, void* stream);
/*
 * Makes the caller's own host memory [pointer, pointer + bytes) memory of the pool, so that
 * collectives on it are as fast as on blocks. Addresses and contents stay: the pages behind them
 * are exchanged, which takes as much of the pool's limit and the time of one copy. `pointer` and
 * `bytes` are multiples of the page size, in private anonymous memory; docs/api/pool.md has the
 * conditions. fsccl_pool_free(pool, pointer, NULL) ends the import and keeps the contents. Any rank
 * may import alone. Nobody else may touch the memory during both calls. Does not communicate.
 *
 * FSCCL_ERR_INVALID_ARGUMENT says what other memory it is. FSCCL_ERR_LIMIT: there are 1024 imports.
 * FSCCL_ERR_SYSTEM: the system refuses the mapping. FSCCL_ERR_INVALID_STATE: the pool is a dry_run.
 * FSCCL_ERR_NOT_AVAILABLE: the pool is on a GPU.
 */
FSCCL_API fsccl_status_t fsccl_pool_import(fsccl_pool_t pool, void* pointer, size_t bytes);

/* An event of a step is what happens to the slots of a unit. */
typedef enum fsccl_event_kind {
  FSCCL_EVENT_UNSHARD = 0, /* parameters wanted */
  FSCCL_EVENT_RESHARD = 1, /* parameters given back */
  FSCCL_EVENT_GRAD = 2,    /* gradient slot wanted: first fsccl_unit_grad() */
  FSCCL_EVENT_REDUCE = 3,  /* gradient slot given back: fsccl_unit_reduce_grads() */
  FSCCL_EVENT_RELEASE = 4  /* one parameter given back: fsccl_unit_release() */
} fsccl_event_kind_t;
typedef struct fsccl_event {
  fsccl_event_kind_t kind;
  fsccl_unit_t unit;
  /* The parameters that RELEASE, GRAD and REDUCE are about in a unit with by_parameter = 1:
   * first .. first + count - 1. count == 0: all that the event can be about. 0 for other units. */
  size_t first, count;
} fsccl_event_t;
/*
 * Declares the order of a step before it runs, so that the pool plans it and reserves its memory
 * now. Collective, with the same events on all ranks, between steps. A slot that a unit holds by
 * then may be given back first, or be taken anew. Call it once for each kind of step (training,
 * evaluation), of which a pool knows up to eight. Slots of a step that was not declared are placed
 * in the gaps of the plan and counted as plan_misses (fsccl_pool_stats_t). With `record` the pool
 * then knows this step, too. FSCCL_ERR_INVALID_ARGUMENT names an event that takes a slot which an
 * event before has taken, or gives back one twice. Declare GRAD and REDUCE also where reduce_grads
 * takes the slot.
 */
FSCCL_API fsccl_status_t fsccl_pool_schedule(fsccl_pool_t pool, const fsccl_event_t* events,
                                             size_t count);
/* Marks the end of a step. Every rank calls it at the same place in the order of collective calls.
 * It does not communicate. When a new plan needs less memory than the old one, the call one step
 * later waits until every rank has released the surplus, and gives the surplus back. */
FSCCL_API fsccl_status_t fsccl_pool_step(fsccl_pool_t pool);

/* ----------------------------------------------------------------------------------- units ---- */

/*
 * A unit is a set of parameters that are gathered and freed together. A step of it is: unshard;
 * param(i) is valid; reshard; unshard; the caller fills grad(i); reshard; reduce_grads;
 * sharded_grad(i) is valid; the optimizer writes shard(i). The calls that take a slot or give one
 * back come in the same order on all ranks. On a GPU the calls put their work on `stream` and
 * return, and `work` is NULL (docs/api/unit.md).
 */

typedef enum fsccl_layout {
  /* All parameters end to end, cut into equal parts; only the tail is padded. FSDP1's FlatParameter
   * (arXiv 2304.11277), ZeRO-3. */
  FSCCL_LAYOUT_FLAT = 0,
  /* Each parameter cut along its first dimension into chunks of ceil(dim0 / ranks) rows, later
   * ranks may hold fewer or none. FSDP2 (torch.chunk's rule). */
  FSCCL_LAYOUT_PER_PARAM = 1,
  /* Cut only between blocks that the parameters name (fsccl_param_t), and assigned to ranks so that
   * the largest shard is as small as possible: see fsccl_layout_plan(). Ranks hold different
   * amounts. veScale's RaggedShard (arXiv 2602.22437). */
  FSCCL_LAYOUT_RAGGED = 2
} fsccl_layout_t;

typedef enum fsccl_sharing {
  /* default: one slot per host, mapped by its ranks; do not write to param(i) */
  FSCCL_SHARING_READ_ONLY = 0,
  /* Every rank has a slot of its own. Other ranks never see what a rank writes to param(i) after
   * unshard. In memory of a GPU write only after FSCCL_UNSHARD_WRITABLE: after FSCCL_UNSHARD_READ
   * other ranks may still be reading this rank's slot. A kept slot (fsccl_keep_t) keeps what this
   * rank wrote. Debug mode reports a write after FSCCL_UNSHARD_READ with every sharing. */
  FSCCL_SHARING_PRIVATE = 1,
  /* One slot per host, and param(i) may be written to: a page that a rank writes becomes its own,
   * and is dropped at reshard. It is for a caller that does not know whether the program writes to
   * its parameters. Reshard asks the system which pages were written, in a time proportional to the
   * slot's size. */
  FSCCL_SHARING_COPY_ON_WRITE = 2
} fsccl_sharing_t;

typedef enum fsccl_keep {
  FSCCL_KEEP_NONE = 0, /* reshard gives the slot back (reshard_after_forward = True) */
  /* reshard keeps the slot and its contents; the next unshard moves nothing, unless
   * fsccl_unit_mark_changed() was called */
  FSCCL_KEEP_ALWAYS = 1,
  /* KEEP_ALWAYS for as many units as fit keep_budget_bytes of the pool, in order of creation */
  FSCCL_KEEP_BUDGET = 2
} fsccl_keep_t;

#define FSCCL_MAX_DIMS 8
#define FSCCL_PARAM_FROZEN 1u /* gets no gradient */

typedef struct fsccl_param {
  const char* name; /* for messages; copied; may be NULL */
  int dims;         /* 0 (a scalar) .. FSCCL_MAX_DIMS */
  int64_t shape[FSCCL_MAX_DIMS];
  fsccl_dtype_t dtype; /* dtype of the shard: the "master" copy, e.g. FSCCL_FLOAT32 */
  uint32_t flags;
  /* index of an earlier parameter of this unit that it shares all bytes with, else -1. Shape,
   * dtype and block are then those of that parameter */
  int tied_to;
  /* the caller's memory for this rank's shard, or NULL: the unit allocates it from its pool */
  void* shard;
  /* the same for the reduced gradient (in grad_dtype). For one parameter either all ranks of the
   * replicate_comm give it, or none */
  void* sharded_grad;
  /* FSCCL_LAYOUT_RAGGED: elements that stay together on one rank, as for the scales of block
   * quantisation; 0 is 1, 1 x 1 is cut anywhere. The last two dimensions of the parameter are a
   * matrix (of one row if there is one dimension) and are tiled by blocks of block_rows x
   * block_columns, smaller at the right and lower edges; further dimensions count matrices. The
   * parameter is stored block after block, row by row of the tiling, each block row major. That is
   * the plain row-major order when block_rows is 1 or block_columns is at least the last dimension;
   * otherwise shard, param(i) and grad(i) all have it. */
  uint64_t block_rows, block_columns;
} fsccl_param_t;
#define FSCCL_PARAM_INIT \
  {NULL, 0, {0, 0, 0, 0, 0, 0, 0, 0}, FSCCL_FLOAT32, 0u, -1, NULL, NULL, 0, 0}

typedef struct fsccl_unit_config {
  size_t size;
  const char* name; /* for messages; copied; NULL: "unit" */
  fsccl_layout_t layout;
  fsccl_comm_t shard_comm;     /* the ranks that share the parameters, on one host or several */
  fsccl_comm_t replicate_comm; /* HSDP: the ranks that hold the same shard, or NULL */
  /* a pool made on shard_comm, on a communicator that contains it, or on its ranks of this host. In
   * host memory a pool has shared slots (`sharing`) for one group of ranks only: unshard of a unit
   * of another group returns FSCCL_ERR_INVALID_ARGUMENT */
  fsccl_pool_t pool;
  fsccl_dtype_t wire_dtype;   /* dtype of param(i) and of the bytes that travel */
  fsccl_dtype_t reduce_dtype; /* dtype of grad(i), the unsharded gradient */
  /* dtype of sharded_grad(i); sums are formed in fp32 (fp64 for fp64) whatever this is */
  fsccl_dtype_t grad_dtype;
  fsccl_sharing_t sharing;
  fsccl_keep_t keep;
  uint64_t keep_budget_bytes;
  /* 1: the caller says by mark_changed() when it has written shards. 0: it writes them only after
   * reduce_grads() and before the next unshard, or calls mark_changed() as well */
  int marks_changes;
  /* 1: every parameter has slots of its own, so that backward can give them back one by one with
   * fsccl_unit_release() and reduce gradients as they come (fsccl_reduce_config_t: first, count).
   * The peak of training falls from (prefetch + 3) units to about (prefetch + 1) units and two
   * parameters' gradients; slots are whole pages, planned each by itself. Not with keep or a
   * replicate_comm. 0: one slot a unit */
  int by_parameter;
  /* the codec of unshard (codec.h), or NULL; copied; the same on all ranks. FSCCL_CODEC_DELTA needs
   * a wire_dtype of fp16 or bf16; the other codecs of gathers also take fp32. In memory of a GPU:
   * FP8, INT8 or MXFP8. If all ranks are on one host, a codec with the scope
   * FSCCL_CODEC_BETWEEN_HOSTS does nothing */
  const struct fsccl_codec* gather_codec;
  size_t param_size; /* sizeof(fsccl_param_t) as the caller was compiled; 0: that of release 0.1 */
  /* the codec of reduce_grads between the ranks of the shard_comm, or NULL; copied; the same on all
   * ranks: BF16, INT8, INT4 or, in host memory, CUSTOM, for gradients in fp16, bf16 or fp32. If all
   * ranks are on one host, a codec with the scope FSCCL_CODEC_BETWEEN_HOSTS does nothing. It does
   * not apply to the sum over a replicate_comm */
  const struct fsccl_codec* reduce_codec;
} fsccl_unit_config_t;
/* clang-format off */
#define FSCCL_UNIT_CONFIG_INIT                                                              \
  {sizeof(fsccl_unit_config_t), NULL, FSCCL_LAYOUT_PER_PARAM, NULL, NULL, NULL,             \
   FSCCL_BFLOAT16, FSCCL_BFLOAT16, FSCCL_FLOAT32, FSCCL_SHARING_READ_ONLY, FSCCL_KEEP_NONE, \
   0, 0, 0, NULL, sizeof(fsccl_param_t), NULL}
/* clang-format on */

/*
 * Makes a unit: its layout, buffers and plans. Collective over shard_comm (and replicate_comm);
 * blocks. `params` has 1 to 2^20 elements and is copied. `config` is not used after the call. The
 * caller's shards and sharded gradients must live as long as the unit, or until they are moved. In
 * host memory those that the unit allocates are zeros at first. Shards, wire, gradients and their
 * sums are fp32, fp64, fp16 or bf16; fp8, integers and bool travel only as they are, in frozen
 * parameters. FSCCL_ERR_MISMATCH names a parameter that ranks define differently; it does not
 * damage the communicators.
 */
FSCCL_API fsccl_status_t fsccl_unit_create(const fsccl_unit_config_t* config,
                                           const fsccl_param_t* params, size_t count,
                                           fsccl_unit_t* unit);
/* Ends the unit, gives back the slots that it holds, and frees what it allocated from its pool. Not
 * collective. FSCCL_ERR_INVALID_STATE: an operation of it is in flight; in debug mode also, once,
 * where a slot was written beyond its ends (call again). On a GPU it waits for the unit's
 * operations, and until peers have read its slots; the last stream that the unit was given must
 * live until then. */
FSCCL_API fsccl_status_t fsccl_unit_destroy(fsccl_unit_t unit);

typedef struct fsccl_view {
  void* data;     /* NULL when count is 0 */
  uint64_t count; /* elements */
  /* first element's place in the parameter, in elements (row major; blocks: in their order); 0 for
   * whole ones */
  uint64_t offset;
  fsccl_dtype_t dtype;
} fsccl_view_t;

typedef enum fsccl_unshard_mode {
  FSCCL_UNSHARD_READ = 0,
  /* a private slot: this rank may write to it; reshard drops what was written. The same mode on all
   * ranks */
  FSCCL_UNSHARD_WRITABLE = 1
} fsccl_unshard_mode_t;

/*
 * Gathers the parameters into a slot, cast to wire_dtype. Collective over shard_comm. When the
 * operation is complete, param(i) is valid until reshard. The operation waits until every rank has
 * given back what was in the slot before; the call waits only where memory has to be made for the
 * slot, as in first steps. param(i) is at the same address in every step, from the first step on
 * with a declared schedule, from the second on with a recorded one.
 *
 * FSCCL_ERR_INVALID_STATE: the unit is unsharded already. FSCCL_ERR_OUT_OF_MEMORY: the limit, or
 * the blocks, machine or source of one rank, leave no room for the slot; all ranks get this error,
 * nothing has changed, and the communicator goes on.
 */
FSCCL_API fsccl_status_t fsccl_unit_unshard(fsccl_unit_t unit, fsccl_unshard_mode_t mode,
                                            void* stream, fsccl_work_t* work);
/* Writes where the whole parameter `index` is: row major (with blocks: in their order), contiguous,
 * aligned to 64 bytes (flat layout: to its element). Does not block. FSCCL_ERR_INVALID_STATE: the
 * unit is not unsharded, or the unshard is in flight (wait for its work). */
FSCCL_API fsccl_status_t fsccl_unit_param(fsccl_unit_t unit, size_t index, fsccl_view_t* view);
/* Writes where this rank's part of parameter `index` is, in the parameter's dtype: one contiguous
 * piece, which may be empty, of whole rows (per_param), any elements (flat) or whole blocks
 * (ragged). The pieces of ranks 0, 1, ... follow each other. The caller may read and write the
 * piece while no unshard is in flight, for as long as the unit lives. If it writes the piece at
 * another moment than between reduce_grads and the next unshard (from a checkpoint, say), it calls
 * fsccl_unit_mark_changed() afterwards: a unit that keeps its slot, or has a codec, gathers the old
 * values otherwise. */
FSCCL_API fsccl_status_t fsccl_unit_shard(fsccl_unit_t unit, size_t index, fsccl_view_t* view);
/* Makes the caller's memory at shards[i] shard(i), as it is: nothing is copied. One pointer per
 * parameter; NULL leaves a shard where it is, and the pointers of empty and tied ones are ignored.
 * All ranks call it at the same place in their order of calls, because it implies mark_changed; a
 * rank may move none. Does not communicate. FSCCL_ERR_INVALID_STATE: the unit is unsharded, an
 * operation of it is in flight, or it has a replicate_comm in host memory. */
FSCCL_API fsccl_status_t fsccl_unit_set_shards(fsccl_unit_t unit, void* const* shards);
/* Says that the shards were written: the next unshard gathers a kept slot again, and a codec
 * encodes the shards again. All ranks call it at the same place in their order of calls. Does not
 * communicate. */
FSCCL_API fsccl_status_t fsccl_unit_mark_changed(fsccl_unit_t unit);
/* Gives the parameters' slot back (see fsccl_keep_t); param(i) is invalid from here on. On a GPU
 * `stream` is the one that read the parameters, or another that is behind the unshard. In host
 * memory the call waits for an unshard that is in flight. Does not communicate.
 * FSCCL_ERR_INVALID_STATE: the unit is not unsharded. */
FSCCL_API fsccl_status_t fsccl_unit_reshard(fsccl_unit_t unit, void* stream);

/* Gives the slot of parameter `index` back before the rest, when this rank reads it no more, of a
 * unit with by_parameter = 1. param(index) is invalid from here on; reshard still has to come. All
 * ranks release the same parameters in the same order; a tied parameter is its owner's. Does not
 * communicate, but waits for an unshard that is in flight. FSCCL_ERR_INVALID_STATE: the unit is not
 * unsharded, has one slot for all, or the parameter was released already. */
FSCCL_API fsccl_status_t fsccl_unit_release(fsccl_unit_t unit, size_t index, void* stream);

/*
 * Writes where the whole gradient of parameter `index` is, in reduce_dtype, shaped and ordered as
 * param(index), for the caller to write; a tied parameter gives its owner's. The first call after
 * reduce_grads (or creation) takes the slot, whose contents are then undefined, for all parameters
 * (by_parameter: for this one). In host memory that call waits for the unit's previous reduction,
 * and until every rank is done with what was in the slot.
 *
 * FSCCL_ERR_INVALID_ARGUMENT: the parameter is frozen. FSCCL_ERR_PEER_DEAD, FSCCL_ERR_ABORTED and
 * FSCCL_ERR_TIMEOUT end the wait, and the shard_comm. FSCCL_ERR_OUT_OF_MEMORY is as with unshard.
 */
FSCCL_API fsccl_status_t fsccl_unit_grad(fsccl_unit_t unit, size_t index, void* stream,
                                         fsccl_view_t* view);
/* Writes where this rank's part of the reduced gradient is, in grad_dtype: the same elements as
 * shard(index), valid after reduce_grads until the next one begins. FSCCL_ERR_INVALID_STATE: the
 * reduction is in flight (wait for its work). FSCCL_ERR_INVALID_ARGUMENT: the parameter is frozen.
 */
FSCCL_API fsccl_status_t fsccl_unit_sharded_grad(fsccl_unit_t unit, size_t index,
                                                 fsccl_view_t* view);

typedef struct fsccl_reduce_result {
  /* the squared norm of this rank's sharded gradients of the unit, after scaling and
   * accumulation; sum it over ranks for the global norm. fp64 over fixed blocks: the same bits
   * in every run */
  double norm_squared;
  int finite; /* 0 if an element of them is infinite or NaN */
} fsccl_reduce_result_t;

typedef struct fsccl_reduce_config {
  size_t size;
  /* multiplies the sum. 0: the mean, which is the sum divided by the number of all ranks that
   * contribute, those of replicate_comm's included, as FSCCL_AVG divides */
  double scale;
  int accumulate; /* 1: sharded_grad += , 0: sharded_grad = */
  /* HSDP: 1 leaves the all-reduce over replicate_comm to a later call without it. For a mean in
   * fp32 or fp64, sharded_grad(i) and `result` are the undivided sums until then */
  int defer_replicas;
  /* NULL: from grad(i). Else one pointer per parameter to the caller's own whole gradient, in
   * reduce_dtype (frozen and tied ones NULL): only what other ranks need of it is published. The
   * array is read during the call; the gradients are the library's until the work is done */
  const void* const* grads;
  /* written when the operation is complete, and must live until then; with defer_replicas it is
   * about the sums so far. NULL: not wanted */
  fsccl_reduce_result_t* result;
  /* Called once for each parameter that is neither frozen nor tied and of which this rank holds a
   * piece, in order, as soon as its sharded gradient is final (never with defer_replicas), in the
   * thread that drives the operation. It may call fsccl_unit_sharded_grad() of this parameter, and
   * must not call fsccl operations of this communicator. NULL: none. */
  void (*shard_ready)(void* context, fsccl_unit_t unit, size_t index);
  void* shard_ready_context;
  /* NULL: sharded_grad(i) stays where it is. Else one pointer per parameter to the caller's memory
   * for it, from this call on (NULL: this one stays; frozen, tied and empty ones are not looked
   * at). In host memory not with a replicate_comm */
  void* const* sharded_grads;
  /* For a unit with by_parameter = 1: reduces the parameters first .. first + count - 1 only, gives
   * their gradient slots back, and `result` is about these. Both 0: all parameters whose gradient
   * slot grad() has taken, or all if `grads` is given. The same on all ranks. The first call
   * for a range of several parameters, but not all, takes longer, because it makes a plan */
  size_t first, count;
} fsccl_reduce_config_t;
#define FSCCL_REDUCE_CONFIG_INIT \
  {sizeof(fsccl_reduce_config_t), 0.0, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, 0}

/*
 * Reduces the unit's gradients over the ranks into sharded_grad(i) in one pass: sum, scale, cast,
 * store or add, norm and finite flag. Collective over shard_comm, and over replicate_comm unless
 * defer_replicas is set; the work is that of the whole. A config of NULL is
 * FSCCL_REDUCE_CONFIG_INIT. Gives the gradient slot back, and implies mark_changed unless the unit
 * marks changes itself. To accumulate without communication, keep adding into grad(i) and call this
 * once at the end. The caller has written every gradient that is reduced, with zeros for a
 * parameter that was not used: whatever lies in the slot counts. The call waits for a reduction of
 * the same gradients that is in flight.
 *
 * FSCCL_ERR_INVALID_STATE: grad() was not called and `grads` is NULL, or accumulate is set for
 * gradients that were summed over the replicas already. docs/api/unit.md has the sums of several
 * hosts and replicas.
 */
FSCCL_API fsccl_status_t fsccl_unit_reduce_grads(fsccl_unit_t unit,
                                                 const fsccl_reduce_config_t* config, void* stream,
                                                 fsccl_work_t* work);

/* Copies the shards of replicate_comm's rank `root` to the other replicas, in place, all parameters
 * in one operation. Collective over replicate_comm, whose work it gives; implies mark_changed; the
 * next unshard waits for it. A module's buffers are no part of a unit: fsccl_broadcast_list()
 * copies them. FSCCL_ERR_INVALID_STATE: there is no replicate_comm, or an operation of the unit is
 * in flight. */
FSCCL_API fsccl_status_t fsccl_unit_broadcast_state(fsccl_unit_t unit, int root, void* stream,
                                                    fsccl_work_t* work);

/* ----------------------------------------------------------------------------- collectives ---- */

/*
 * Buffers may be any memory of the process; blocks of a pool on this communicator (or on its
 * parent) cost least. Buffers of one call must not overlap, except in the in-place forms named
 * below. Counts may be 0. S is the size of the dtype. All functions of this section are collective
 * but those for messages. Either all buffers of a call are memory of one GPU on all ranks, or none
 * is; then the call is in the order of `stream`, and `work` is NULL (docs/api/collectives.md).
 */

/* Each rank gets recv[r * count ...] = rank r's send[0 .. count). recv holds size * count elements.
 * In place: send == recv + rank * count * S. */
FSCCL_API fsccl_status_t fsccl_all_gather(const void* send, void* recv, size_t count,
                                          fsccl_dtype_t dtype, fsccl_comm_t comm, void* stream,
                                          fsccl_work_t* work);
/* Each rank gets recv[0 .. count) = op over ranks q of q's send[rank * count ...]. send holds
 * size * count elements. In place: recv == send + rank * count * S. */
FSCCL_API fsccl_status_t fsccl_reduce_scatter(const void* send, void* recv, size_t count,
                                              fsccl_dtype_t dtype, fsccl_op_t op, fsccl_comm_t comm,
                                              void* stream, fsccl_work_t* work);
/* Each rank gets recv[0 .. count) = op over all ranks' send[0 .. count). In place: recv == send. */
FSCCL_API fsccl_status_t fsccl_all_reduce(const void* send, void* recv, size_t count,
                                          fsccl_dtype_t dtype, fsccl_op_t op, fsccl_comm_t comm,
                                          void* stream, fsccl_work_t* work);
/* Each rank gets buffer[0 .. count) = root's. */
FSCCL_API fsccl_status_t fsccl_broadcast(void* buffer, size_t count, fsccl_dtype_t dtype, int root,
                                         fsccl_comm_t comm, void* stream, fsccl_work_t* work);
/* Is complete when every rank has entered. */
FSCCL_API fsccl_status_t fsccl_barrier(fsccl_comm_t comm, void* stream, fsccl_work_t* work);

/*
 * The v forms take parts of different sizes. counts and displacements are arrays of `size` numbers
 * of elements, which are copied before the call returns. counts are the same on all ranks.
 */

/* Each rank gets recv[displacements[r] ...] = rank r's send[0 .. counts[r]). displacements say
 * where the parts lie in this rank's recv, without overlap; NULL is end to end. In place: send ==
 * recv + displacements[rank] * S. */
FSCCL_API fsccl_status_t fsccl_all_gather_v(const void* send, void* recv, const size_t* counts,
                                            const size_t* displacements, fsccl_dtype_t dtype,
                                            fsccl_comm_t comm, void* stream, fsccl_work_t* work);
/* Each rank gets recv[0 .. counts[rank]) = op over ranks q of q's part `rank`. The parts lie end to
 * end in send. In place: recv == this rank's part of send. */
FSCCL_API fsccl_status_t fsccl_reduce_scatter_v(const void* send, void* recv, const size_t* counts,
                                                fsccl_dtype_t dtype, fsccl_op_t op,
                                                fsccl_comm_t comm, void* stream,
                                                fsccl_work_t* work);
/* Each rank gets recv[recv_displacements[q] ...] = rank q's send[its send_displacements[rank] ...],
 * of which there must be recv_counts[q] elements: else FSCCL_ERR_MISMATCH on all ranks. Each rank
 * has counts of its own. No array is NULL; send and recv must not overlap. Each call makes its plan
 * anew. */
FSCCL_API fsccl_status_t fsccl_all_to_all_v(const void* send, const size_t* send_counts,
                                            const size_t* send_displacements, void* recv,
                                            const size_t* recv_counts,
                                            const size_t* recv_displacements, fsccl_dtype_t dtype,
                                            fsccl_comm_t comm, void* stream, fsccl_work_t* work);

/*
 * With a root. The larger buffer matters at the root only and may be NULL elsewhere. A rank is done
 * when its own part is, so a small operation may be over before everybody has entered; a later
 * operation then reports a disagreement.
 */

/* The root gets recv[0 .. count) = op over all ranks' send[0 .. count). In place at the root: recv
 * == send. */
FSCCL_API fsccl_status_t fsccl_reduce(const void* send, void* recv, size_t count,
                                      fsccl_dtype_t dtype, fsccl_op_t op, int root,
                                      fsccl_comm_t comm, void* stream, fsccl_work_t* work);
/* The root gets recv[r * count ...] = rank r's send[0 .. count). In place at the root: send == recv
 * + rank * count * S. */
FSCCL_API fsccl_status_t fsccl_gather(const void* send, void* recv, size_t count,
                                      fsccl_dtype_t dtype, int root, fsccl_comm_t comm,
                                      void* stream, fsccl_work_t* work);
/* Each rank gets recv[0 .. count) = root's send[rank * count ...]. In place at the root: recv ==
 * send + rank * count * S. */
FSCCL_API fsccl_status_t fsccl_scatter(const void* send, void* recv, size_t count,
                                       fsccl_dtype_t dtype, int root, fsccl_comm_t comm,
                                       void* stream, fsccl_work_t* work);
/* Each rank gets recv[q * count ...] = rank q's send[rank * count ...]. Both buffers hold size *
 * count elements and must not overlap. */
FSCCL_API fsccl_status_t fsccl_all_to_all(const void* send, void* recv, size_t count,
                                          fsccl_dtype_t dtype, fsccl_comm_t comm, void* stream,
                                          fsccl_work_t* work);

/*
 * Send a message from this rank to `peer`, another rank, and receive one. Not collective. The
 * messages of one direction between two ranks match in the order of the calls; count, dtype and tag
 * (any number) must then agree: else FSCCL_ERR_MISMATCH ends the communicator. Directions, peers
 * and collectives do not wait for each other. Calls that would wait in a ring belong in a group, or
 * take a work. The send of a small message may complete before the peer receives it; no program
 * should rely on that. The caller may reuse the buffer when the send is complete. At most 64
 * messages of a direction are in flight: a call beyond waits for the oldest, also in a group and
 * with a work.
 */
FSCCL_API fsccl_status_t fsccl_send(const void* buffer, size_t count, fsccl_dtype_t dtype, int peer,
                                    int tag, fsccl_comm_t comm, void* stream, fsccl_work_t* work);
FSCCL_API fsccl_status_t fsccl_recv(void* buffer, size_t count, fsccl_dtype_t dtype, int peer,
                                    int tag, fsccl_comm_t comm, void* stream, fsccl_work_t* work);
/*
 * Start and end a group. Between the two, collectives and messages of this thread with work == NULL
 * only submit, and the end waits for all of them: one thread can drive several communicators, or
 * send and receive in a ring. A call waits if 64 operations of its communicator, or 64 messages of
 * its direction, are in flight: a ring of more messages takes several groups. Calls on units block
 * as ever. Groups nest; the outermost end waits.
 * Buffers belong to the library until then. Each thread has groups of its own. The end returns the
 * first error, or FSCCL_ERR_INVALID_STATE without a start.
 */
FSCCL_API fsccl_status_t fsccl_group_start(void);
FSCCL_API fsccl_status_t fsccl_group_end(void);

/*
 * One tensor of a list. The list forms are one operation over `tensors` tensors, each with a count
 * and a dtype of its own, the same on all ranks; a list of 0 tensors is a barrier. The list and the
 * counts are copied before the call returns. Buffers must not overlap, except in the in-place
 * forms; the library does not check this between tensors. It makes a plan for each new sequence of
 * counts and dtypes, and keeps it.
 */
typedef struct fsccl_tensor {
  void* send;
  void* recv;
  /* elements of each rank's part, `size` numbers (uneven shards, 0 allowed); broadcast:
   * counts[0] */
  const size_t* counts;
  fsccl_dtype_t dtype;
} fsccl_tensor_t;
/* recv gets all ranks' parts end to end; send holds this rank's part, counts[rank] elements. In
 * place: send is its part of recv. */
FSCCL_API fsccl_status_t fsccl_all_gather_list(const fsccl_tensor_t* list, size_t tensors,
                                               fsccl_comm_t comm, void* stream, fsccl_work_t* work);
/* send holds a part for each rank, end to end; recv gets counts[rank] elements. In place: recv is
 * this rank's part of send. */
FSCCL_API fsccl_status_t fsccl_reduce_scatter_list(const fsccl_tensor_t* list, size_t tensors,
                                                   fsccl_op_t op, fsccl_comm_t comm, void* stream,
                                                   fsccl_work_t* work);
/* recv of every rank gets root's recv; send is not used. */
FSCCL_API fsccl_status_t fsccl_broadcast_list(const fsccl_tensor_t* list, size_t tensors, int root,
                                              fsccl_comm_t comm, void* stream, fsccl_work_t* work);

/* ------------------------------------------------------------------------------------ work ---- */

/*
 * A work is an operation in flight. Operations of one communicator complete in the order of their
 * submission, but units' operations may overtake reductions (docs/api/unit.md). Works stay valid
 * until the communicator is destroyed. Any thread may test them and wait for them, at any time.
 */

/* Returns FSCCL_OK when the operation is complete, FSCCL_IN_PROGRESS when it is not, or its error,
 * which may be that the communicator's deadline has passed. Does not block. */
FSCCL_API fsccl_status_t fsccl_work_test(fsccl_work_t work);
/* Waits until the operation is complete, at most timeout_ms (negative: without a limit of its own).
 * Returns FSCCL_IN_PROGRESS when timeout_ms have passed: nothing has changed, and the caller may
 * wait again. The communicator's deadline counts from the moment at which the operation began to
 * wait for a peer; when it passes, the call returns FSCCL_ERR_TIMEOUT and the communicator ends. */
FSCCL_API fsccl_status_t fsccl_work_wait(fsccl_work_t work, int64_t timeout_ms);
/*
 * Calls done(context, status) once: with FSCCL_OK when the operation is complete, with the error
 * when its communicator has failed. `done` runs in this thread if the operation is over already,
 * else in whichever thread completes it: one that waits or tests, or the library's own, which moves
 * the operation on from now on. `context` must live until then; fsccl_work_wait() may return
 * before. `done` must be short, and must not throw, block or destroy a communicator or pool. It may
 * test works, submit operations with a work, and abort. A work takes any number of callbacks, which
 * may run at once in several threads. Any thread.
 */
FSCCL_API fsccl_status_t fsccl_work_callback(fsccl_work_t work,
                                             void (*done)(void* context, fsccl_status_t status),
                                             void* context);
/* Writes an eventfd (close-on-exec, nonblocking) that becomes readable when the operation is
 * complete or has failed; fsccl_work_test() then says which. The caller owns the descriptor and
 * closes it, at any time. Each call makes another. The library moves the operation on from now on.
 * Any thread. FSCCL_ERR_LIMIT: the process has no descriptor left. */
FSCCL_API fsccl_status_t fsccl_work_event_fd(fsccl_work_t work, int* fd);
/* Says that the program no longer uses the handle. This release does nothing with it. NULL is
 * allowed. */
FSCCL_API fsccl_status_t fsccl_work_release(fsccl_work_t work);

#ifdef __cplusplus
}
#endif
#endif /* FSCCL_H */
