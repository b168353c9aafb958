/*
 * FSCCL, the Fully Sharded Collective Communication Library: the communication and the memory of
 * fully sharded data parallel (FSDP) training behind one C API.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Reading order: status, types, configuration, communicator, memory, units, collectives, work,
 * insight.
 *
 * Rules that hold for every function
 *   Status     Every call that can fail returns an fsccl_status_t: 0 is success, positive is
 *              progress, negative is an error. Outputs come last and are written unless the call
 *              returns an error. Details of the calling thread's last error, with advice, are in
 *              fsccl_last_error(). Every function may return the usage errors of its arguments and
 *              handles, and FSCCL_ERR_OUT_OF_MEMORY; every operation the error that ended its
 *              communicator. Each function's comment lists its other errors.
 *   Handles    NULL, foreign and destroyed handles are errors (FSCCL_ERR_INVALID_HANDLE), never
 *              undefined behaviour. A handle is a small number, not an address: do not dereference
 *              it. A call uses its object until it returns, so one thread may destroy what others
 *              use: the destroy waits until their calls have returned, and their next calls are
 *              FSCCL_ERR_INVALID_HANDLE. If such a call has not returned by the communicator's
 *              deadline (it waits for other ranks: abort the communicator first), the destroy
 *              returns FSCCL_ERR_INVALID_STATE and changes nothing. A destroy that is called inside
 *              a callback of that object returns this error at once.
 *   Structs    Configuration and output structs begin with their own size; initialise them with
 *              their FSCCL_..._INIT macro and then set fields. Fields are only ever appended. The
 *              library reads and writes the fields that the caller's size covers, so a program runs
 *              on older and newer libraries. Of arrays of structs the size of an element is a field
 *              of the config. fsccl_tensor_t, fsccl_view_t, fsccl_piece_t, fsccl_event_t and
 *              fsccl_reduce_result_t have no size and never change.
 *   Threads    One thread at a time may issue operations on a communicator, and on the pools and
 *              units made on it, and destroy them. What says "any thread" below may be called by
 *              any thread at any time, several at once.
 *   Order      All ranks of a communicator issue its collective operations (marked "collective") in
 *              the same order. Each operation carries a fingerprint (operation, count, dtype,
 *              operator, root, sequence number, history of collective memory events); ranks that
 *              disagree all get FSCCL_ERR_MISMATCH, with both calls in the text. (Small calls may
 *              complete before all ranks have called: then the text has the first call that may
 *              differ.)
 *   Blocking   Operations take a `work` output. In host memory, with work == NULL, the call returns
 *              when the operation is complete on this rank (on a GPU work is NULL, and the call
 *              returns when the operation is on its stream); otherwise it returns at once, FSCCL_OK
 *              if complete or FSCCL_IN_PROGRESS, with a work in either case, and the buffers belong
 *              to the library until fsccl_work_wait() says FSCCL_OK. A communicator holds 64
 *              operations in flight: a further call first waits for the oldest. Every wait ends at
 *              the communicator's deadline (FSCCL_TIMEOUT_MS, from when an operation first waits
 *              for a peer) at the latest.
 *   Streams    `stream` orders an operation on device memory (a cudaStream_t). For host memory it
 *              must be NULL, but for blocks of a pool, which have streams of their own
 *              (fsccl_pool_use).
 *   Sizes      Counts, displacements and what says so are in elements; sizes, and what is named
 *              ..._bytes, in bytes.
 *   Fork       After fork() the child's handles are invalid: every call returns FSCCL_ERR_FORKED.
 *              The parent is unaffected.
 *   Strings    Names and paths are copied. What a visit(), take() or other callback is given lives
 *              during its call.
 *   Callbacks  An exception of C++ that leaves one is logged, and ends there: on_pressure and
 *              on_failure count as 0, functions of an allocator's table as FSCCL_ERR_SYSTEM. One
 *              that leaves a visit(), take() or all_gather() ends its call with FSCCL_ERR_INTERNAL.
 *              Nothing is left behind.
 *   Not here   What a release, build or machine cannot do returns FSCCL_ERR_NOT_AVAILABLE; the
 *              error text says why and what to use instead.
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

/* Grouped by blast radius: what a negative value has damaged. Values are never renumbered. */
typedef enum fsccl_status {
  FSCCL_OK = 0,
  FSCCL_IN_PROGRESS = 1, /* not complete, or not there, yet */

  /* usage (-1 .. -19): this call did nothing; correct it and go on */
  FSCCL_ERR_INVALID_ARGUMENT = -1, /* a value is out of range, NULL, overlapping or inconsistent */
  FSCCL_ERR_INVALID_HANDLE = -2,   /* NULL, destroyed, or a handle of another kind */
  FSCCL_ERR_INVALID_STATE = -3,    /* right call, wrong moment (param() before unshard(), say) */
  /* not in this release, build or machine; the text says what to do */
  FSCCL_ERR_NOT_AVAILABLE = -4,
  /* header and library, or the libraries of two ranks, do not fit */
  FSCCL_ERR_VERSION = -5,
  /* an environment variable or configuration value is not accepted */
  FSCCL_ERR_CONFIG = -6,
  FSCCL_ERR_FORKED = -7, /* the process forked after the handle was made */

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
   * more, unless the function's comment says that the error does not damage it;
   * fsccl_comm_shrink(), _peer_state(), _async_error() and _destroy() still work */
  FSCCL_ERR_PEER_DEAD = -60,
  FSCCL_ERR_MISMATCH = -61, /* ranks disagree on an operation; the text holds both calls */
  FSCCL_ERR_AUTH = -62,     /* a peer could not prove that it belongs to the job */
  FSCCL_ERR_TIMEOUT = -63,  /* a deadline passed; the text names who was missing */

  /* communicator (-80 .. -99): likewise */
  FSCCL_ERR_ABORTED = -80,
  FSCCL_ERR_COMM_FAILED = -81, /* an earlier operation failed; its error is in the text */

  /* internal (-100): a defect of this library; please report it */
  FSCCL_ERR_INTERNAL = -100
} fsccl_status_t;

/* The name and a one-line meaning, for any value. Never NULL. Any thread. */
FSCCL_API const char* fsccl_status_string(fsccl_status_t status);

typedef struct fsccl_error_info {
  size_t size;           /* set by FSCCL_ERROR_INFO_INIT */
  fsccl_status_t code;   /* FSCCL_OK when this thread had no error yet */
  int rank;              /* this rank in the communicator, -1 if none was concerned */
  int peer;              /* the other rank concerned, -1 if none */
  uint64_t sequence;     /* the operation's sequence number in its communicator, 0 if none */
  const char* operation; /* the function or operation, "" if none */
  const char* text;      /* what happened, with the values, and what to do */
} fsccl_error_info_t;
#define FSCCL_ERROR_INFO_INIT {sizeof(fsccl_error_info_t), FSCCL_OK, -1, -1, 0, "", ""}

/* The calling thread's last error. The strings live until this thread's next error. Any thread.
 * FSCCL_ERR_INVALID_ARGUMENT, which is not recorded: info is NULL or not initialised. */
FSCCL_API fsccl_status_t fsccl_last_error(fsccl_error_info_t* info);

/* The library's FSCCL_VERSION. A program may compare it with its header's. Any thread. */
FSCCL_API fsccl_status_t fsccl_version(int* version);

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

/* Bytes per element; 0 for an unknown dtype. Any thread. */
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
 * A reduction operator, passed by value. 16-bit floats and fp32 accumulate in fp32, fp64 in fp64,
 * integers in their own width (wrapping); one rounding at the end. Contributions are folded in rank
 * order, so a result has the same bits in every run. Between several hosts large sums
 * (FSCCL_HIERARCHY) are over the ranks of each host first and then over hosts: the same bits in
 * every run on as many hosts. FSCCL_REPRODUCIBLE=placement keeps rank order whatever the hosts are.
 * The sums of hosts cross in the accumulator's type, so those of 16-bit floats take 4 bytes an
 * element between hosts, and results are rounded to 16 bits once.
 *
 * FSCCL_AVG of floats is the sum as it was accumulated, divided by the number of ranks. The
 * quotient is rounded once to the accumulator's type, and then to the result's (which is one
 * rounding, except for bf16 results below its smallest normal number). The average of equal values
 * is that value: 3.0 over 7 ranks is 3.0, and 60000 in fp16 is 60000. An fp32 or bf16 sum beyond
 * the largest fp32 number is infinite, and so is its average. AVG of integers is the wrapped sum
 * divided by the number of ranks, truncated towards zero: 127 as an int8 over two ranks is -1. AVG
 * of bool is true where all ranks' values are true. By NCCL, on memory of GPUs, two averages differ
 * if the number of ranks is no power of two: of 16-bit floats in fsccl_reduce(), and of all floats
 * where the library has no kernels for that GPU. NCCL multiplies each contribution by the rounded
 * inverse of the number: 3.0 over 7 ranks may be 3.0000002, and a result may differ from the
 * quotient by a unit in the last place for each rank.
 *
 * min and max return a NaN if any contribution is one (but by NCCL, on memory of GPUs, which then
 * may or may not).
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
  fsccl_op_t op;
  op.kind = FSCCL_OP_PREMUL_SUM;
  op.reserved = 0;
  op.scale = scale;
  return op;
}

/* --------------------------------------------------------------------------- configuration ---- */

/*
 * Every variable is listed in docs/env.md and by `fsccl-info config`. Authority: a default, then
 * the file named by FSCCL_CONFIG_FILE (lines NAME=value), then the environment, then
 * fsccl_config_set().
 */

/* Sets variable `name` ("FSCCL_TIMEOUT_MS"). FSCCL_ERR_CONFIG names the accepted values, or the
 * nearest known name. Affects objects created afterwards. Both strings are copied. Any thread. */
FSCCL_API fsccl_status_t fsccl_config_set(const char* name, const char* value);

/* Copies the value of `name` as text, NUL-terminated, into buffer[capacity] (bytes).
 * FSCCL_ERR_INVALID_ARGUMENT if it does not fit; FSCCL_ERR_CONFIG, with the nearest known name, if
 * there is no such variable. Any thread. */
FSCCL_API fsccl_status_t fsccl_config_get(const char* name, char* buffer, size_t capacity);

typedef struct fsccl_config_entry {
  const char *name, *value, *default_value;
  const char* source;   /* "default", "file", "environment" or "api" */
  const char* accepted; /* the type and range, as text */
  const char* doc;
} fsccl_config_entry_t;
/* Calls visit(context, entry) once for each variable, in the order of docs/env.md. The entry lives
 * during the call. Any thread. */
FSCCL_API fsccl_status_t fsccl_config_dump(void (*visit)(void* context,
                                                         const fsccl_config_entry_t* entry),
                                           void* context);

/* ---------------------------------------------------------------------------- communicator ---- */

/*
 * Names a job and carries its secret and the address where its ranks meet. Hand it to every rank
 * over a channel that you trust (a file with mode 0600, a pipe, MPI): whoever has it can join.
 * Opaque bytes; not valid after fsccl_comm_create() of all ranks.
 */
typedef struct fsccl_unique_id {
  unsigned char bytes[256];
} fsccl_unique_id_t;

/*
 * Makes an id and begins to listen for its ranks in this process, on a Unix socket and, unless
 * FSCCL_BOOTSTRAP_TCP=0, on TCP. The process must live until all ranks have joined; usually it is
 * rank 0's. One id makes one communicator. Does not block. Errors: FSCCL_ERR_CONFIG
 * (FSCCL_BOOTSTRAP_PORT is in use, FSCCL_BOOTSTRAP_INTERFACE is not there), FSCCL_ERR_SYSTEM.
 */
FSCCL_API fsccl_status_t fsccl_unique_id_create(fsccl_unique_id_t* id);

/*
 * A caller's own all-gather: every rank calls it with `bytes` bytes at `mine` and receives size *
 * bytes bytes at `all`, in rank order. Must be collective and blocking; returns 0, or anything else
 * to fail the communicator's creation.
 */
typedef int (*fsccl_all_gather_fn)(void* context, const void* mine, void* all, size_t bytes);

typedef struct fsccl_comm_config {
  size_t size; /* set by FSCCL_COMM_CONFIG_INIT, like `version` */
  int version;
  /* How the ranks find each other. unique_id: rank and ranks are required. all_gather: likewise,
   * the callback carries the id. Neither: from the environment, as fsccl_launcher() tells; rank and
   * ranks are taken from it. */
  const fsccl_unique_id_t* unique_id;
  fsccl_all_gather_fn all_gather;
  void* all_gather_context;
  int rank;
  int ranks;
  /* 1: return FSCCL_IN_PROGRESS at once; until fsccl_comm_async_error() tells that it is ready,
   * other functions say FSCCL_ERR_INVALID_STATE */
  int nonblocking;
  /* the deadline of every wait on this communicator; 0: FSCCL_TIMEOUT_MS, or that of the
   * communicator from which this one is made */
  int64_t timeout_ms;
  const char* name; /* for messages; copied; NULL: "comm" and a number */
} fsccl_comm_config_t;
#define FSCCL_COMM_CONFIG_INIT \
  {sizeof(fsccl_comm_config_t), FSCCL_VERSION, NULL, NULL, NULL, -1, 0, 0, 0, NULL}

/*
 * Joins a communicator. Collective: every rank calls it. Ranks are processes, or threads of one
 * process (each with its own handle). config == NULL means FSCCL_COMM_CONFIG_INIT, that is the
 * environment. Blocks until every rank has joined or the deadline has passed. Every link is
 * authenticated on both sides: by the id's secret, else by the secret in the file
 * FSCCL_JOB_SECRET_FILE, else, on one host, by both ends being the same user. Ranks of one host
 * exchange bytes through shared memory, ranks of several hosts over a network (FSCCL_NETWORK).
 * Errors: FSCCL_ERR_AUTH, FSCCL_ERR_TIMEOUT (the text says how many joined), FSCCL_ERR_VERSION,
 * FSCCL_ERR_CONFIG, FSCCL_ERR_LIMIT (a rank may open too few files: the same on all ranks),
 * FSCCL_ERR_NOT_AVAILABLE (a rank cannot use the transport: the text says which and why),
 * FSCCL_ERR_MISMATCH (settings that must be alike).
 */
FSCCL_API fsccl_status_t fsccl_comm_create(const fsccl_comm_config_t* config, fsccl_comm_t* comm);

typedef struct fsccl_launch_info {
  size_t size; /* set by FSCCL_LAUNCH_INFO_INIT */
  /* "torchrun" (or whoever set RANK), "Open MPI", "MPICH", "PMIx" or "Slurm"; NULL: none */
  const char* launcher;
  int rank;
  int ranks;
  int local_rank;  /* among the ranks of this host; -1: unknown */
  int local_ranks; /* of this host; 0: unknown */
  /* 1: all ranks are on this host, says the launcher or MASTER_ADDR=localhost */
  int one_host;
  /* of the host of rank 0: MASTER_ADDR, else what the launcher says; NULL: unknown */
  const char* master_address;
  /* MASTER_PORT, else one that follows from the job's name; 0: none. For the caller, such as a
   * store of PyTorch */
  int master_port;
} fsccl_launch_info_t;
#define FSCCL_LAUNCH_INFO_INIT {sizeof(fsccl_launch_info_t), NULL, -1, 0, -1, 0, 0, NULL, 0}
/*
 * What the variables of a launcher say about this process; docs/clusters.md lists them. FSCCL_OK
 * and launcher == NULL where there is none; FSCCL_ERR_CONFIG where they contradict each other, with
 * the variable to change. Texts live until this thread's next call of this function. Joins nothing.
 * Any thread.
 */
FSCCL_API fsccl_status_t fsccl_launcher(fsccl_launch_info_t* info);

#define FSCCL_COLOR_NONE (-1)
/*
 * Divides `comm`: ranks that give the same color (>= 0) form a new communicator, ordered by (key,
 * rank). A rank that gives FSCCL_COLOR_NONE gets the null handle. Collective, blocking. `config`
 * may be NULL; only timeout_ms and name of it are used, and nonblocking must be 0
 * (FSCCL_ERR_NOT_AVAILABLE). The parent stays usable; the two may be destroyed in any order.
 */
FSCCL_API fsccl_status_t fsccl_comm_split(fsccl_comm_t comm, int color, int key,
                                          const fsccl_comm_config_t* config, fsccl_comm_t* result);

/*
 * Makes a communicator of the ranks of `comm` that ranks[count] lists: the list's i-th rank is its
 * rank i. Blocking, and collective over the listed ranks alone; the others do not call. All give
 * the same list in the same order and the same tag, and to another list that begins with the same
 * rank another tag; one list and tag may be used again. Such calls do not disturb each other. The
 * ranks meet through the job of `comm`: no id, no measurement. `comm` stays usable; the two may be
 * destroyed in any order. `config`: as with fsccl_comm_split(). Any thread, also while operations
 * on `comm` are in flight; threads of a rank that call at once give different tags. Errors do not
 * damage `comm`: FSCCL_ERR_INVALID_ARGUMENT, where ranks[] holds a number twice, one that is none
 * of `comm`, or not this rank's; FSCCL_ERR_MISMATCH, where the first rank has given this tag and
 * another list; FSCCL_ERR_TIMEOUT, at the deadline, where a listed rank has not come (a further
 * attempt takes another tag); FSCCL_ERR_PEER_DEAD; what has ended `comm`, before or meanwhile.
 */
FSCCL_API fsccl_status_t fsccl_comm_subset(fsccl_comm_t comm, const int* ranks, size_t count,
                                           uint64_t tag, const fsccl_comm_config_t* config,
                                           fsccl_comm_t* result);

/*
 * Continues with the survivors: after a rank of `comm` has died or left, those that live make a
 * communicator of themselves, numbered in the order of their old ranks. Collective over the
 * survivors, blocking until they agree who they are, at most for config->timeout_ms, or else that
 * of `comm`. A rank that dies or destroys `comm` meanwhile is left out, too; one that is late is
 * waited for. `comm` must have failed on every survivor (abort it where some operations still go
 * on); it stays as it is, to be destroyed. `config`: as with fsccl_comm_split(). Pools and units
 * belong to `comm`: make new ones, and fill them with fsccl_reshard(). Any thread; once at a time.
 * Errors: FSCCL_ERR_INVALID_STATE, where `comm` has not failed; FSCCL_ERR_TIMEOUT, with the ranks
 * that did not come (all survivors may call again); FSCCL_ERR_PEER_DEAD, where other ranks consider
 * this rank dead.
 */
FSCCL_API fsccl_status_t fsccl_comm_shrink(fsccl_comm_t comm, const fsccl_comm_config_t* config,
                                           fsccl_comm_t* result);

/*
 * Ends every operation of `comm` on every rank with FSCCL_ERR_ABORTED, including those in which
 * threads wait now. Any thread, at any time, needs no cooperation. Returns at once. Afterwards
 * `comm` can be shrunk and destroyed.
 */
FSCCL_API fsccl_status_t fsccl_comm_abort(fsccl_comm_t comm);

/*
 * Ends the handle and gives everything back. Complete or abort operations in flight, messages
 * included, and destroy pools and units made on `comm` first: else FSCCL_ERR_INVALID_STATE, as in a
 * function given to fsccl_work_callback(), and nothing has changed. Calls of other threads on
 * `comm` and its works are waited for (Handles, above); after fsccl_comm_abort() they return soon.
 * Does not wait for other ranks, unless `comm` is still being created (nonblocking); one that later
 * waits for this rank gets FSCCL_ERR_PEER_DEAD ("rank N has left"). A process that ends by exit(0)
 * or a return from main leaves all its communicators; one that ends otherwise has died, which ends
 * them on all ranks.
 */
FSCCL_API fsccl_status_t fsccl_comm_destroy(fsccl_comm_t comm);

/* This rank's number, 0 .. size - 1, and how many ranks there are. Any thread. */
FSCCL_API fsccl_status_t fsccl_comm_rank(fsccl_comm_t comm, int* rank);
FSCCL_API fsccl_status_t fsccl_comm_size(fsccl_comm_t comm, int* size);
/* This rank's number among the ranks of its host, and how many those are. Any thread. */
FSCCL_API fsccl_status_t fsccl_comm_local_rank(fsccl_comm_t comm, int* local_rank, int* local_size);
/* *state: FSCCL_OK, FSCCL_IN_PROGRESS (still being created), or the error that ended the
 * communicator, of which fsccl_last_error() then tells more. Does not block. Any thread. */
FSCCL_API fsccl_status_t fsccl_comm_async_error(fsccl_comm_t comm, fsccl_status_t* state);

typedef enum fsccl_peer_state {
  FSCCL_PEER_ALIVE = 0,
  /* its process has been silent for FSCCL_SUSPECT_MS: stopped, swapped out or cut off; may come
   * back */
  FSCCL_PEER_SUSPECT = 1,
  FSCCL_PEER_LEFT = 2, /* it has destroyed its communicator, or ended by exit(0) */
  /* it has ended in another way, or has been silent for FSCCL_DEAD_MS; never alive again */
  FSCCL_PEER_DEAD = 3
} fsccl_peer_state_t;
/*
 * What this rank knows of the life of `rank` of `comm`, by heartbeats of the library's own thread:
 * a rank that computes for long is alive. Does not block and sends nothing. A suspect ends no
 * operation by itself. Any thread, also after `comm` has failed.
 */
FSCCL_API fsccl_status_t fsccl_comm_peer_state(fsccl_comm_t comm, int rank,
                                               fsccl_peer_state_t* state);

/* ---------------------------------------------------------------------------------- memory ---- */

typedef enum fsccl_memory {
  FSCCL_MEMORY_HOST = 0,
  FSCCL_MEMORY_CUDA = 1 /* of a GPU, fsccl_pool_config_t.device */
} fsccl_memory_t;

typedef struct fsccl_pool_config {
  size_t size;
  fsccl_memory_t memory;
  int device; /* for device memory */
  /* the most memory that this rank may reserve, usable up to its last whole page. Every rank counts
   * shared slots in full. All slots together stay within the smallest limit of the ranks: a slot
   * that exceeds it is refused on every rank (docs/memory.md: when there is room). 0:
   * FSCCL_POOL_LIMIT; if that is unset too, on a GPU 90 % of its free memory, shared by the ranks
   * of `comm` that are on it */
  uint64_t limit_bytes;
  /* 1 (default): record the first step and plan from it; 0: only a declared schedule plans */
  int record;
  const char* name; /* for messages and metrics; copied; NULL: the library makes one */
  /* 1: a rehearsal. Units on this pool do all but bytes: addresses, plans, signals, statistics and
   * counters are real, no memory is reserved or touched (the caller's neither), contents are
   * undefined. For models that do not fit; all ranks alike; units with a replicate_comm are
   * refused. 0 (default): no. On host memory only */
  int dry_run;
  /* Asked for memory before the pool refuses: when `bytes` more would pass the soft limit or the
   * limit, or the machine has no more. It may free blocks of this pool and memory of its own, and
   * returns how many bytes that were; 0: it cannot. The pool tries once more in either case. Called
   * in the thread that asked the pool, which holds no lock then; at most once for one request; must
   * not call collective functions. NULL: none. */
  uint64_t (*on_pressure)(void* context, fsccl_pool_t pool, uint64_t bytes);
  void* on_pressure_context;
  /* beyond it the pool asks on_pressure, and gives what is unused back at the end of a step; it
   * does not refuse. 0: FSCCL_POOL_SOFT_LIMIT */
  uint64_t soft_limit_bytes;
  /* 1: watched for wrong use, as with FSCCL_POOL_DEBUG=1; all ranks alike. What is found is
   * FSCCL_ERR_INVALID_STATE of the call that can see it, said once, or SIGSEGV (docs/memory.md). On
   * a GPU: fresh and freed bytes are 0xFF, a NaN, and nothing else is watched */
  int debug;
  /* where the memory comes from (allocator.h), copied; NULL: the library's own */
  const struct fsccl_allocator* source;
} fsccl_pool_config_t;
#define FSCCL_POOL_CONFIG_INIT \
  {sizeof(fsccl_pool_config_t), FSCCL_MEMORY_HOST, 0, 0, 1, NULL, 0, NULL, NULL, 0, 0, NULL}

/*
 * Makes a pool over one arena: memory that the ranks of a host map together, so that collectives on
 * it move each byte once or not at all. Collective over `comm`; blocking. On a communicator of
 * several hosts it is a pool for each host. The arena is an anonymous file: it vanishes with its
 * processes, whatever ends them. Memory is reserved when the pool grows: a shortage is
 * FSCCL_ERR_OUT_OF_MEMORY there, never a signal later. config == NULL: FSCCL_POOL_CONFIG_INIT.
 * Errors besides: FSCCL_ERR_LIMIT (of address space or descriptors), FSCCL_ERR_SYSTEM,
 * FSCCL_ERR_MISMATCH (ranks differ in what must be alike).
 *
 * With FSCCL_MEMORY_CUDA it is memory of this rank's GPU `device` (the driver is loaded when it is
 * there; else FSCCL_ERR_NOT_AVAILABLE, and all ranks then have an error). Ranks of a host whose
 * GPUs are the same or peers map each other's slots; the others are not reached, and the pool works
 * all the same (FSCCL_DEVICE_TRANSPORT, alike on all ranks). Streams are CUDA's (cudaStream_t;
 * NULL: the legacy default stream; not cudaStreamPerThread), and no call waits for the device but
 * those that give memory back to it. A stream must live while others are used with the pool; it may
 * be gone when the pool is destroyed. fsccl_pool_import is FSCCL_ERR_NOT_AVAILABLE there,
 * fsccl_pool_use, _record and _wait are FSCCL_ERR_INVALID_ARGUMENT: what CUDA is told of events and
 * streams, the pool follows.
 */
FSCCL_API fsccl_status_t fsccl_pool_create(fsccl_comm_t comm, const fsccl_pool_config_t* config,
                                           fsccl_pool_t* pool);
/* Units must be destroyed, blocks freed and imports ended before: else FSCCL_ERR_INVALID_STATE, and
 * the text lists them, blocks with their sizes, their streams and the number of the call that made
 * them; the pool is as before. Not collective; does not block, but on a GPU. */
FSCCL_API fsccl_status_t fsccl_pool_destroy(fsccl_pool_t pool);

/*
 * A block of `bytes` bytes, aligned to 64 (to 4096 from 64 KiB on; on a GPU to 512), from the local
 * region: any rank may allocate alone. Contents are undefined. bytes == 0 gives a unique non-NULL
 * address. Blocks of the pool are the fastest buffers for collectives. `stream` is the one whose
 * work uses it first: on a GPU what it is given from now on follows the last use of these bytes. In
 * debug mode FSCCL_ERR_INVALID_STATE says that memory was written to after it was freed; then
 * nothing was allocated, and the next call goes on. FSCCL_ERR_OUT_OF_MEMORY: the pool's limit, or
 * the machine; FSCCL_ERR_LIMIT: a ninth stream of host memory. The block is the caller's until
 * fsccl_pool_free(). Any thread.
 */
FSCCL_API fsccl_status_t fsccl_pool_alloc(fsccl_pool_t pool, size_t bytes, void* stream,
                                          void** pointer);
/* Gives a block back, or ends an import, when the work is done that `stream` has been given so far.
 * NULL is allowed. A foreign or freed pointer is FSCCL_ERR_INVALID_ARGUMENT and changes nothing,
 * and so is FSCCL_ERR_NOT_AVAILABLE where `stream` is being captured: its graph uses the block
 * whenever it runs. In debug mode FSCCL_ERR_INVALID_STATE says that the block was written beyond
 * its ends, and it is freed all the same; or that an import cannot end yet. Any thread. */
FSCCL_API fsccl_status_t fsccl_pool_free(fsccl_pool_t pool, void* pointer, void* stream);
/*
 * Makes the caller's own memory [pointer, pointer + bytes) memory of the pool, so that collectives
 * on it are as fast as on blocks. Any rank may import alone; does not communicate. Addresses and
 * contents stay: the pages behind them are exchanged for pages of the arena, so it takes as much of
 * the pool's limit, and the time of one copy. fsccl_pool_free(pool, pointer, NULL) ends it: private
 * pages at the same addresses with the contents of that moment.
 *   - pointer and bytes are multiples of the page size (4096), in private anonymous memory that is
 *     readable and writable: aligned_alloc(4096, ...), mmap(MAP_PRIVATE | MAP_ANONYMOUS). Files,
 *     shared mappings, huge-page mappings (MAP_HUGETLB), the stack of the main or the calling
 *     thread and memory that is imported already are FSCCL_ERR_INVALID_ARGUMENT; the text says what
 *     it is.
 *   - No other thread may touch the memory, and no operation use it, during the import and during
 *     the free that ends it.
 *   - End the import before the memory goes back to the system (free, munmap), also before realloc.
 *   - A child of fork() does not have these pages, as it has none of the pool's: touching them
 *     there is SIGSEGV. The parent is unaffected, as are children that exec.
 *   - A buffer is recognised when it lies whole inside one import. Operations on other memory work
 *     as before.
 * Errors besides: FSCCL_ERR_OUT_OF_MEMORY (the pool's limit, or the machine), FSCCL_ERR_LIMIT (1024
 * imports at once), FSCCL_ERR_SYSTEM (the system refuses the mapping), FSCCL_ERR_INVALID_STATE (a
 * dry_run pool). Then nothing has changed.
 */
FSCCL_API fsccl_status_t fsccl_pool_import(fsccl_pool_t pool, void* pointer, size_t bytes);

typedef struct fsccl_pool_stats_s {
  size_t size;
  uint64_t limit_bytes;
  /* physical memory this rank holds for the pool: its own regions and, on the rank that hosts it,
   * the shared one */
  uint64_t reserved_bytes;
  /* of which shared slots, one copy per host (0 on ranks that do not host them) */
  uint64_t shared_reserved_bytes;
  uint64_t live_bytes;      /* in slots and blocks now */
  uint64_t live_peak_bytes; /* the most ever live at once */
  /* slots of units, shared ones included on every rank that uses them */
  uint64_t collective_live_bytes;
  /* the most of shared slots and the most of own ones, each at its time, together */
  uint64_t collective_peak_bytes;
  uint64_t local_live_bytes; /* blocks of fsccl_pool_alloc(), and imports */
  uint64_t local_peak_bytes;
  uint64_t planned_bytes; /* extent of the current plan, 0 without one */
  /* the most live bytes at any moment of the planned schedule: no plan can need less */
  uint64_t plan_bound_bytes;
  /* slot requests served from the plan, and beside it; those of a step when it is over */
  uint64_t plan_hits, plan_misses;
  uint64_t allocations, frees;
  uint64_t growths; /* times memory was asked of the system */
  uint64_t steps;   /* fsccl_pool_step() calls */
  /* memory given back to the system, in all: beyond what the plan needs, by trimming, and, in steps
   * that nobody knew, free bytes elsewhere for those of a slot that fits no gap */
  uint64_t given_back_bytes;
} fsccl_pool_stats_t;
#define FSCCL_POOL_STATS_INIT \
  {sizeof(fsccl_pool_stats_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
/* What the pool holds and has done so far. Any thread. */
FSCCL_API fsccl_status_t fsccl_pool_stats(fsccl_pool_t pool, fsccl_pool_stats_t* stats);

/* Gives the unused memory that lies above all blocks back to the system; slots keep theirs.
 * *released: bytes. Not collective. On a GPU it waits for what streams have been given so far, and
 * gives whole segments back. Any thread. */
FSCCL_API fsccl_status_t fsccl_pool_trim(fsccl_pool_t pool, uint64_t* released);

/*
 * Streams of host memory (those of a pool on a GPU are CUDA's, and these functions are not for it):
 * any address but NULL names a queue of the caller's own in which work runs in order (a thread,
 * say); NULL is the program itself: its work is done when the call is made, and what a stream is
 * given later follows it. The program's own work follows that of a stream only where it says that
 * it has waited (fsccl_pool_wait with stream = NULL). A block that was freed on one stream is given
 * to another only when events order that behind its last use. An event is any address, too; to
 * record it again replaces it, and one that was never recorded orders nothing. A pool knows at most
 * 8 streams, NULL among them (FSCCL_ERR_LIMIT). None of these functions waits, or does anything but
 * tell the pool. Any thread.
 */

/* Work on `stream` reads, or writes, [pointer, pointer + bytes), which lies inside one block or
 * import; else FSCCL_ERR_INVALID_ARGUMENT. In debug mode a use that is not ordered behind the last
 * write of these bytes, a write that is not behind their last reads, and a use after the block was
 * freed are FSCCL_ERR_INVALID_STATE; the text names both uses. */
FSCCL_API fsccl_status_t fsccl_pool_use(fsccl_pool_t pool, const void* pointer, size_t bytes,
                                        void* stream, int writes);
/* `event` is complete when all work is that `stream` has been given so far. */
FSCCL_API fsccl_status_t fsccl_pool_record(fsccl_pool_t pool, const void* event, void* stream);
/* Work that `stream` is given from now on begins after `event`. */
FSCCL_API fsccl_status_t fsccl_pool_wait(fsccl_pool_t pool, const void* event, void* stream);

/* What one owner has in a pool. */
typedef struct fsccl_pool_use_s {
  size_t size;
  const char* kind;    /* "parameters", "gradients", "shards", "block", "import", "codec" */
  const char* owner;   /* the unit's name; NULL: no unit's */
  const void* stream;  /* of blocks */
  uint64_t live_bytes; /* now */
  uint64_t peak_bytes; /* the most at once */
  uint64_t allocations, frees;
  uint64_t allocated_bytes; /* in all */
} fsccl_pool_use_t;
/* Calls visit(context, use) once for each kind, unit and stream that ever had memory of the pool.
 * The entry lives during the call, which must not call functions of the pool. Any thread. */
FSCCL_API fsccl_status_t fsccl_pool_uses(fsccl_pool_t pool,
                                         void (*visit)(void* context, const fsccl_pool_use_t* use),
                                         void* context);

/*
 * Writes what the pool holds, and its last events (FSCCL_POOL_HISTORY of them), to `path`, in the
 * schema of PyTorch's memory snapshots: pytorch.org/memory_viz and torch/cuda/_memory_viz.py read
 * it. A path that ends in .pickle is written as pickle (protocol 2), any other as JSON, which
 * `fsccl-trace memory` makes a page of. Addresses are this process's. A file that is there is
 * replaced as a whole; a character device and a FIFO that is read are written to. Any thread.
 * FSCCL_ERR_SYSTEM: it cannot be written.
 */
FSCCL_API fsccl_status_t fsccl_pool_snapshot(fsccl_pool_t pool, const char* path);

/* One event of a step: what happens to the slots of a unit, in order. */
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
  /* Of a unit with by_parameter = 1: which parameters RELEASE, GRAD and REDUCE are about, first ..
   * first + count - 1. count == 0: all of which it can be said. Of other units 0. */
  size_t first, count;
} fsccl_event_t;
/*
 * Declares the order of a step before it runs, so that the pool is planned and its memory reserved
 * now. Collective (the same on all ranks), between steps, with no slot in use. Once for each kind
 * of step (training, evaluation): up to eight are known. Others are served from the gaps, counted
 * (plan_misses) and, with `record`, known from then on. FSCCL_ERR_INVALID_ARGUMENT names the event
 * when a unit would take a slot that it holds, or give back one that it does not (GRAD and REDUCE:
 * reduce_grads, too).
 */
FSCCL_API fsccl_status_t fsccl_pool_schedule(fsccl_pool_t pool, const fsccl_event_t* events,
                                             size_t count);
/* Marks the end of a step. Same place in the order of collective calls on all ranks. It does not
 * communicate. When a new plan needs less memory than the old one, the call one step later waits
 * until every rank has released the surplus, as fsccl_unit_grad() waits, and gives the surplus
 * back. */
FSCCL_API fsccl_status_t fsccl_pool_step(fsccl_pool_t pool);

/* ----------------------------------------------------------------------------------- units ---- */

/*
 * A unit's life in a step: unshard -> param(i) is valid -> reshard -> unshard -> grad(i), filled by
 * the caller -> reshard -> reduce_grads -> sharded_grad(i) is valid -> the optimizer writes
 * shard(i) -> (mark_changed). All calls that take a slot or give one back (unshard, reshard, the
 * first grad of a step, reduce_grads) come in the same order on all ranks.
 */

typedef enum fsccl_layout {
  /* All parameters end to end, cut into equal parts; only the tail is padded. FSDP1's FlatParameter
   * (arXiv 2304.11277), ZeRO-3. */
  FSCCL_LAYOUT_FLAT = 0,
  /* Each parameter cut along its first dimension into chunks of ceil(dim0 / ranks) rows, later
   * ranks may hold fewer or none. FSDP2 (torch.chunk's rule). */
  FSCCL_LAYOUT_PER_PARAM = 1,
  /* Cut only between blocks that the parameters name (fsccl_param_t), and dealt out so that the
   * largest shard is as small as possible: see fsccl_layout_plan(). Ranks hold different amounts.
   * veScale's RaggedShard (arXiv 2602.22437). */
  FSCCL_LAYOUT_RAGGED = 2
} fsccl_layout_t;

typedef enum fsccl_sharing {
  /* default: one slot per host, mapped by its ranks; do not write to param(i) */
  FSCCL_SHARING_READ_ONLY = 0,
  /* A slot of its own on every rank. What a rank writes to param(i) after unshard, no other rank
   * ever sees. (In memory of a GPU that holds for FSCCL_UNSHARD_WRITABLE only: after
   * FSCCL_UNSHARD_READ other ranks may still be reading this rank's slot. Do not write to it.) A
   * slot that is kept (fsccl_keep_t) keeps what was written, for this rank alone. Debug mode
   * reports a write after FSCCL_UNSHARD_READ whatever the sharing is. */
  FSCCL_SHARING_PRIVATE = 1,
  /* One slot per host, and param(i) may be written to: a page that a rank writes becomes its own,
   * and is dropped at reshard. For a caller who cannot say what a program does with its parameters.
   * Reshard asks the system which pages were written: that takes time by the slot's size
   * (docs/measured.md). */
  FSCCL_SHARING_COPY_ON_WRITE = 2
} fsccl_sharing_t;

typedef enum fsccl_keep {
  FSCCL_KEEP_NONE = 0, /* reshard gives the slot back (reshard_after_forward = True) */
  /* reshard keeps slot and contents; until mark_changed the next unshard moves nothing */
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
  fsccl_dtype_t dtype; /* of the shard: the "master" copy, e.g. FSCCL_FLOAT32 */
  uint32_t flags;
  /* index of the parameter of this unit that it shares all bytes with, else -1 */
  int tied_to;
  /* the caller's memory for this rank's shard, or NULL: the unit allocates it from its pool */
  void* shard;
  void* sharded_grad; /* likewise for the reduced gradient (in grad_dtype) */
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

/* How parameters and gradients travel between hosts. */
typedef enum fsccl_codec_kind {
  FSCCL_CODEC_NONE = 0,
  /* Of gathers. 16-bit floats as their differences from the last gather, in units in the last
   * place, as half a byte each or coded by their frequencies, whichever takes less time. What
   * arrives is the same, bit for bit, with or without it. Ranks that exchange with other hosts keep
   * what they exchange as it was: together, each host keeps one copy of the unit, 2 bytes an
   * element, in the pool, and room for the coded bytes of the largest unit (fsccl_codec_report_t:
   * state_bytes). A copy that is not the sender's is found by its sum, and that sender's part goes
   * plain once. Differences that take more than half of the plain bytes go plain as well. */
  FSCCL_CODEC_DELTA = 1,
  /* Of gathers, with a loss: fp16, bf16 or fp32 as 8 bits and a scale for each block of elements.
   * FP8: E4M3, scales in fp32; INT8: integers of -127 .. 127, scales in fp32; MXFP8: E4M3, scales
   * that are powers of two. The error of a block, the largest |x - x'| over the largest |x|, is at
   * most 1/28, 1/254, 1/16, plus 1/256 for a wire_dtype of bf16, 1/2048 for fp16. All ranks get the
   * same parameters, those of the host that sends them too. A block that is not finite, or whose
   * error is more than max_relative_error, goes as it is; where these are more than one in 16, all
   * of what a host sends does. Hosts encode when the unit was changed (reduce_grads,
   * fsccl_unit_mark_changed), and send the same bytes until then. Blocks begin with each piece of a
   * parameter that a rank holds: what is lost depends on the number of ranks. The pool has 1.1
   * bytes for each element that a host sends, and as many for what it receives of the largest unit.
   * They do not decline: what arrives never depends on times. */
  FSCCL_CODEC_FP8 = 2,
  FSCCL_CODEC_INT8 = 3, /* of reductions, too */
  FSCCL_CODEC_MXFP8 = 4,
  /* Of reductions, with a loss. Ranks of a host sum in fp32 as ever; what they have for another
   * host goes in bf16, in 8 bits as above, or in 4 bits and a scale in fp32 for each block, of
   * gradients that a Hadamard matrix has rotated, 32 at a time. Who gets a sum adds up what hosts
   * have, in their order, in fp32, its own part as it is. A block that is not finite, or above
   * 2^100, makes all of the block NaN, so that the step can be skipped. With
   * FSCCL_CODEC_ERROR_FEEDBACK a rank keeps what each element that it sent was short of, and adds
   * it to the next reduction's: 4 bytes for each of them in the pool, in units of the gradients. A
   * loss scale that changes between steps is therefore to be taken off before. No bit depends on
   * times. */
  FSCCL_CODEC_BF16 = 5,
  FSCCL_CODEC_INT4 = 6
} fsccl_codec_kind_t;
typedef enum fsccl_codec_scope {
  /* inside a host nothing is coded: parameters are written once, where they are used */
  FSCCL_CODEC_BETWEEN_HOSTS = 0
} fsccl_codec_scope_t;
/* Flags of FSCCL_CODEC_DELTA. */
#define FSCCL_CODEC_NIBBLES_ONLY \
  1u /* not coded by frequencies: more bytes, less time of processors */
#define FSCCL_CODEC_FEWEST_BYTES \
  4u /* coded by frequencies whatever that takes of processors; not with NIBBLES_ONLY */
#define FSCCL_CODEC_NEVER_DECLINES \
  2u /* also where the link is so fast that coding takes longer than it saves */
/* Flags of codecs of reductions. */
#define FSCCL_CODEC_ERROR_FEEDBACK 8u
typedef struct fsccl_codec {
  size_t size;
  fsccl_codec_kind_t kind;
  fsccl_codec_scope_t scope;
  uint32_t flags;
  /* Of gathers by FP8, INT8 and MXFP8; else 0. Of a block, as above; 0: the kind's */
  double max_relative_error;
  /* Elements of a block: a power of two of 32 .. 1024; 0: 128, of MXFP8 32. Of DELTA and BF16 0. */
  uint32_t block;
  /* Of gathers by FP8, INT8 and MXFP8: one block in so many is decoded by its sender, and its
   * error measured (fsccl_codec_report_t: max_error); 0: 256. With a max_relative_error all are. */
  uint32_t audit_every;
} fsccl_codec_t;
#define FSCCL_CODEC_INIT \
  {sizeof(fsccl_codec_t), FSCCL_CODEC_NONE, FSCCL_CODEC_BETWEEN_HOSTS, 0u, 0.0, 0u, 0u}

typedef struct fsccl_unit_config {
  size_t size;
  const char* name; /* for messages; copied; NULL: "unit" */
  fsccl_layout_t layout;
  fsccl_comm_t shard_comm;     /* the ranks that share the parameters, on one host or several */
  fsccl_comm_t replicate_comm; /* HSDP: the ranks that hold the same shard, or NULL */
  /* made on shard_comm, or on a communicator that contains it, or its ranks of this host. In host
   * memory it has shared slots (`sharing`) for one group of ranks: else unshard is
   * FSCCL_ERR_INVALID_ARGUMENT */
  fsccl_pool_t pool;
  fsccl_dtype_t wire_dtype;   /* of param(i) and of what travels */
  fsccl_dtype_t reduce_dtype; /* of grad(i), the unsharded gradient */
  /* of sharded_grad(i); sums are formed in fp32 (fp64 for fp64) whatever this is */
  fsccl_dtype_t grad_dtype;
  fsccl_sharing_t sharing;
  fsccl_keep_t keep;
  uint64_t keep_budget_bytes;
  int marks_changes; /* 1: the caller calls mark_changed() itself; 0: reduce_grads() implies it */
  /* 1: every parameter has slots of its own, so that backward can give them back one by one with
   * fsccl_unit_release() and reduce gradients as they come (fsccl_reduce_config_t: first, count).
   * The peak of training falls from (prefetch + 3) units to about (prefetch + 1) units and two
   * parameters' gradients; slots are whole pages, planned each by itself. Not with keep or a
   * replicate_comm. 0: one slot a unit */
  int by_parameter;
  /* of unshard, or NULL; copied, alike on all ranks. FSCCL_CODEC_DELTA needs a wire_dtype of fp16
   * or bf16, the others one of these or fp32, all of them host memory; where all ranks are on one
   * host it does nothing */
  const fsccl_codec_t* gather_codec;
  size_t param_size; /* sizeof(fsccl_param_t) as the caller was compiled; 0: that of release 0.1 */
  /* of reduce_grads between the ranks of the shard_comm, or NULL; copied, alike on all ranks: BF16,
   * INT8 or INT4, for gradients in fp16, bf16 or fp32, in host memory, not by_parameter. Where all
   * ranks are on one host it does nothing. The sum over a replicate_comm is not coded */
  const fsccl_codec_t* reduce_codec;
} fsccl_unit_config_t;
#define FSCCL_UNIT_CONFIG_INIT  \
  {sizeof(fsccl_unit_config_t), \
   NULL,                        \
   FSCCL_LAYOUT_PER_PARAM,      \
   NULL,                        \
   NULL,                        \
   NULL,                        \
   FSCCL_BFLOAT16,              \
   FSCCL_BFLOAT16,              \
   FSCCL_FLOAT32,               \
   FSCCL_SHARING_READ_ONLY,     \
   FSCCL_KEEP_NONE,             \
   0,                           \
   0,                           \
   0,                           \
   NULL,                        \
   sizeof(fsccl_param_t),       \
   NULL}

/*
 * Makes a unit: its layout, buffers and plans. Collective over shard_comm (and replicate_comm); the
 * ranks' definitions are compared and a difference is FSCCL_ERR_MISMATCH, naming the parameter.
 * Blocking. `params`, 1 to 2^20 of them, is copied. Shards and sharded gradients of the caller's
 * must live as long as the unit, or until they are moved; those that the unit allocates are zeros
 * at first, in host memory. Supported dtypes: shards fp32, fp64, fp16, bf16; wire, reduce and grad:
 * the same; fp8, integers and bool only where shard and wire dtype are equal and the parameter is
 * frozen.
 */
FSCCL_API fsccl_status_t fsccl_unit_create(const fsccl_unit_config_t* config,
                                           const fsccl_param_t* params, size_t count,
                                           fsccl_unit_t* unit);
/* Not collective. Slots in use are given back; what the unit allocated from its pool is freed.
 * FSCCL_ERR_INVALID_STATE while an operation of it is in flight; in debug mode also, once, where a
 * slot was written beyond its ends: then call again. */
FSCCL_API fsccl_status_t fsccl_unit_destroy(fsccl_unit_t unit);

/* A piece of memory of a unit. */
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
  /* a private slot: this rank may write to it; writes are dropped at reshard. All ranks alike. */
  FSCCL_UNSHARD_WRITABLE = 1
} fsccl_unshard_mode_t;

/*
 * Gathers the parameters into a slot, cast to wire_dtype. Collective. When complete, param(i) is
 * valid until reshard. A second unshard before reshard is FSCCL_ERR_INVALID_STATE. Waits (in the
 * operation, not in the thread) until every rank has given back what was in the slot before.
 * Addresses: param(i) is at the same address in every unshard of a step and in every step, from the
 * first step on with a declared schedule (fsccl_pool_schedule), from the second on with a recorded
 * one. Where memory has to be made for the slot, as in first steps and in those that go another way
 * than any before, the call waits for the other ranks, also with a work. FSCCL_ERR_OUT_OF_MEMORY:
 * the limit, or the blocks, machine or source of one rank, leave no room for the slot; it is the
 * error of all ranks, nothing has changed, and the communicator goes on.
 */
FSCCL_API fsccl_status_t fsccl_unit_unshard(fsccl_unit_t unit, fsccl_unshard_mode_t mode,
                                            fsccl_work_t* work);

/* What a unit's codec has done so far, on this rank. A rank without a lane to other hosts has
 * nothing to tell: zeros. */
typedef struct fsccl_codec_report {
  size_t size;
  uint64_t gathers; /* that brought anything between hosts: coded + plain + declined */
  uint64_t coded;   /* this rank's part went coded */
  /* ... plain: there was no copy, or the differences were too large, or a copy was mended */
  uint64_t plain;
  uint64_t declined; /* all of it went plain, without a trial, because the codec was losing */
  /* of `plain`: a receiver's copy, or what it received, was not right, and it got the part again */
  uint64_t mended;
  /* of this rank's part, to each other host: without the codec, with it; not the declined ones */
  uint64_t plain_bytes, sent_bytes;
  /* memory of the pool: copies of this unit, and the room that all units of a lane share */
  uint64_t state_bytes;
  /* predicted of a gather, without and with the codec, from what was measured; 0: nothing yet */
  double plain_us, coded_us;
  int declines; /* 1: it goes plain at present, since coded_us is more */
  /* Of a block codec: blocks that this rank encoded; of these, those that went as they were; those
   * whose error was measured; and of these, those beyond the kind's bound, which went as they were.
   * That is a defect. */
  uint64_t blocks, exact_blocks, audited_blocks, beyond_bound;
  double max_error; /* the largest that was measured of a block that went coded */
  double bound;     /* of the kind */
  /* Of the reduce_codec: reductions; what this rank had for others, without the codec and with it;
   * memory of the pool: feedback, and the room that all units of a lane share. */
  uint64_t reductions, reduce_plain_bytes, reduce_sent_bytes, reduce_state_bytes;
} fsccl_codec_report_t;
#define FSCCL_CODEC_REPORT_INIT  \
  {sizeof(fsccl_codec_report_t), \
   0,                            \
   0,                            \
   0,                            \
   0,                            \
   0,                            \
   0,                            \
   0,                            \
   0,                            \
   0.0,                          \
   0.0,                          \
   0,                            \
   0,                            \
   0,                            \
   0,                            \
   0,                            \
   0.0,                          \
   0.0,                          \
   0,                            \
   0,                            \
   0,                            \
   0}
/* Does not block or communicate; any thread. FSCCL_ERR_INVALID_STATE: the unit was made without a
 * codec. */
FSCCL_API fsccl_status_t fsccl_unit_codec(fsccl_unit_t unit, fsccl_codec_report_t* report);
/* The whole parameter `index`, row major (with blocks: in their order), contiguous, aligned to 64
 * bytes (flat layout: to its element). FSCCL_ERR_INVALID_STATE unless unsharded, and while the
 * unshard is in flight: wait for its work. Does not block. */
FSCCL_API fsccl_status_t fsccl_unit_param(fsccl_unit_t unit, size_t index, fsccl_view_t* view);
/* This rank's part of parameter `index`, in the parameter's dtype; may be empty. Always valid; the
 * caller's to read and write between unshard operations. Always one contiguous piece, elements
 * offset .. offset + count of the parameter: whole rows (per_param), any elements (flat), whole
 * blocks (ragged). The pieces of ranks 0, 1, ... follow each other. */
FSCCL_API fsccl_status_t fsccl_unit_shard(fsccl_unit_t unit, size_t index, fsccl_view_t* view);
/* From now on the shards lie at shards[i], one pointer per parameter (NULL: this one stays where it
 * is; empty and tied ones are not looked at). For a program that replaces its parameters' memory,
 * as loading a checkpoint by assignment does. The unit's own block, if it has one, is kept. Implies
 * mark_changed: all ranks alike, though each rank may move its shards alone. Does not communicate.
 * FSCCL_ERR_INVALID_STATE while the unit is unsharded or an operation of it is in flight, and in
 * host memory with a replicate_comm (whose ranks know each other's shards by address). */
FSCCL_API fsccl_status_t fsccl_unit_set_shards(fsccl_unit_t unit, void* const* shards);
/* Says that the shards were written: a kept slot is gathered again at the next unshard, and a block
 * codec encodes them again. All ranks alike. Does not communicate. */
FSCCL_API fsccl_status_t fsccl_unit_mark_changed(fsccl_unit_t unit);
/*
 * Units of a pool on a GPU. Their operations are put on a stream (a cudaStream_t, NULL: the legacy
 * default stream) and return at once, `work` is NULL: what the caller puts on the stream afterwards
 * follows them, and other streams wait for an event, as ever in CUDA. This names the stream of the
 * calls that follow, unshard, reshard, grad and reduce_grads: reshard on the stream that read the
 * parameters, so that their memory goes to the next unit behind that. Until the first call it is
 * the legacy default stream. FSCCL_ERR_INVALID_ARGUMENT for a unit on host memory. Does not block,
 * does not communicate; ranks need not agree. What else differs on a GPU: param(i) may be used on
 * the stream at once. Shards, gradients and sharded gradients of the caller's are memory of the
 * pool's device. reduce_grads writes a `result` in host memory before it returns, for which it
 * waits for the stream; one in device memory (aligned to 8) in the stream's order. shard_ready is
 * called when the reduction has been put on the stream: what it puts there follows. Other
 * `sharded_grads` and `grads` than last time cost a table. Every rank has a slot of its own,
 * whatever `sharing`. Replicas that do not reach each other's slots sum by collectives of the
 * replicate_comm, for which the call waits unless they are NCCL's, as unshard and reduce_grads do
 * where ranks do not reach each other's slots. by_parameter is FSCCL_ERR_NOT_AVAILABLE, and so is a
 * stream that is being captured. The communicator's deadline counts from when the stream has come
 * to an operation; when it passes, or a peer dies, this rank's streams go on, with undefined
 * contents, and the next call returns the error. destroy waits for the unit's operations, and until
 * peers have read its slots. A stream that was named must live as long as fsccl_pool_create() says:
 * while other streams are used with the pool.
 */
FSCCL_API fsccl_status_t fsccl_unit_set_stream(fsccl_unit_t unit, void* stream);
/* Gives the parameters' slot back (see fsccl_keep_t). param(i) is invalid from here on. Does not
 * communicate; waits for the unshard, if that is in flight. FSCCL_ERR_INVALID_STATE unless
 * unsharded. */
FSCCL_API fsccl_status_t fsccl_unit_reshard(fsccl_unit_t unit);

/* Of a unit with by_parameter = 1: gives the slot of parameter `index` back before the rest, when
 * this rank reads it no more. param(index) is invalid from here on; reshard still has to come, for
 * what is left. The same on all ranks, in the same order. Does not communicate; waits for the
 * unshard, if that is in flight. FSCCL_ERR_INVALID_STATE: not unsharded, released already, a unit
 * with one slot. A tied one is its owner's. */
FSCCL_API fsccl_status_t fsccl_unit_release(fsccl_unit_t unit, size_t index);

/* The whole gradient of parameter `index` in reduce_dtype, shaped and ordered as param(index), for
 * the caller to write. The first call after fsccl_unit_reduce_grads() (or after creation) takes the
 * slot, whose contents are then undefined; the unit keeps it until the next reduce_grads.
 * FSCCL_ERR_INVALID_ARGUMENT for a frozen parameter; a tied one gives its owner's. By parameter:
 * takes the slot of this one alone. In host memory the call that takes a slot waits for the unit's
 * (by parameter: this one's) previous reduction, and until every rank is done with what was in the
 * slot. The wait ends with an error, and the shard_comm fails, when a rank that it waits for dies
 * or leaves (FSCCL_ERR_PEER_DEAD), when somebody aborts the shard_comm (FSCCL_ERR_ABORTED) and
 * after the deadline (FSCCL_ERR_TIMEOUT). FSCCL_ERR_OUT_OF_MEMORY as with unshard. */
FSCCL_API fsccl_status_t fsccl_unit_grad(fsccl_unit_t unit, size_t index, fsccl_view_t* view);
/* This rank's part of the reduced gradient, in grad_dtype: the same elements as shard(index). Valid
 * after reduce_grads until the next one begins. FSCCL_ERR_INVALID_STATE while it is in flight: wait
 * for its work; FSCCL_ERR_INVALID_ARGUMENT for a frozen one.
 */
FSCCL_API fsccl_status_t fsccl_unit_sharded_grad(fsccl_unit_t unit, size_t index,
                                                 fsccl_view_t* view);

typedef struct fsccl_reduce_result {
  /* of this rank's sharded gradients of the unit, after scaling and accumulation; sum it over ranks
   * for the global norm. fp64 over fixed blocks: the same bits in every run */
  double norm_squared;
  int finite; /* 0 if an element of them is infinite or NaN */
} fsccl_reduce_result_t;

typedef struct fsccl_reduce_config {
  size_t size;
  /* multiplies the sum. 0: the mean, which is the sum divided by the number of all ranks that
   * contribute, those of replicate_comm's included, as FSCCL_AVG divides */
  double scale;
  int accumulate; /* 1: sharded_grad += , 0: sharded_grad = */
  /* HSDP: 1 leaves the all-reduce over replicate_comm to a later call without it. Of a mean in fp32
   * or fp64 sharded_grad(i) and `result` are the undivided sums until then */
  int defer_replicas;
  /* NULL: from grad(i). Else one pointer per parameter to the caller's own whole gradient, in
   * reduce_dtype (frozen and tied ones NULL): only what other ranks need of it is published. The
   * array is read during the call; the gradients are the library's until the work is done */
  const void* const* grads;
  /* written at completion, until when it must live; with defer_replicas of the sums so far. NULL:
   * not wanted */
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
  /* of a unit with by_parameter = 1: the parameters first .. first + count - 1 only, whose gradient
   * slots it gives back; `result` is of these. Both 0: all that grad() was called for since their
   * last reduction, with `grads` all. The same on all ranks. Of several, but not all, the first
   * call plans */
  size_t first, count;
} fsccl_reduce_config_t;
#define FSCCL_REDUCE_CONFIG_INIT \
  {sizeof(fsccl_reduce_config_t), 0.0, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, 0}

/*
 * Reduces the unit's gradients over the ranks into sharded_grad(i), in one pass: n sources, wide
 * accumulator, scale, cast, store or add, norm and finite flag. Collective. config == NULL:
 * FSCCL_REDUCE_CONFIG_INIT. To accumulate without communication, keep adding into grad(i) and call
 * this once at the end. Gives the gradient slot back. Implies mark_changed unless the unit marks
 * changes itself. With a replicate_comm the sums over the shard ranks are then summed over the
 * replicas, each in grad_dtype; the work is that of the whole, on replicate_comm, and nothing of it
 * blocks the call when there is a work. With defer_replicas it is that of the first sum: call with
 * accumulate = 1 and, the last time, without defer_replicas. Once summed over the replicas a
 * gradient cannot be accumulated to (FSCCL_ERR_INVALID_STATE). The call waits for the unit's
 * previous reduction (by parameter: of these), if that is in flight. In host memory of several
 * hosts the sum is over the ranks of each host, and then over hosts in the order of their first
 * ranks. It is accumulated, and crosses between hosts, in fp32 (fp64 where reduce_dtype or
 * grad_dtype is), whatever reduce_dtype is: with bf16 gradients and several ranks on a host 4 bytes
 * an element instead of 2. These sums lie behind the gradients in the gradient slot, which is
 * larger by 4 bytes for each element that the ranks of a lane (docs/clusters.md) hold. With
 * FSCCL_REPRODUCIBLE=placement or FSCCL_HIERARCHY=off the sum is over all ranks in their order,
 * with the bits of one host, and each rank's gradients cross between hosts in reduce_dtype.
 */
FSCCL_API fsccl_status_t fsccl_unit_reduce_grads(fsccl_unit_t unit,
                                                 const fsccl_reduce_config_t* config,
                                                 fsccl_work_t* work);

/* HSDP state sync: copies the shards of replicate_comm's rank `root` to the other replicas, in
 * place, all parameters in one operation. A module's buffers (batch-norm statistics, say) are no
 * part of a unit: fsccl_broadcast_list() over replicate_comm syncs them in one operation likewise,
 * when and as often as the program wants. Collective over replicate_comm; implies mark_changed; the
 * next unshard waits for it. The work is one of replicate_comm. FSCCL_ERR_INVALID_STATE without a
 * replicate_comm, or while an operation of the unit is in flight. */
FSCCL_API fsccl_status_t fsccl_unit_broadcast_state(fsccl_unit_t unit, int root,
                                                    fsccl_work_t* work);

/* Compares the shards over the replicas, by a 64-bit hash of each. FSCCL_OK, or FSCCL_ERR_MISMATCH,
 * on every rank of every replica alike, with the first parameter that differs, the shard and the
 * replica in the text. Neither communicator is damaged: go on, or make the replicas equal with
 * fsccl_unit_broadcast_state(). Collective over shard_comm and replicate_comm; blocking; for a
 * check now and then: it reads all shards and allocates. FSCCL_ERR_INVALID_STATE as above. */
FSCCL_API fsccl_status_t fsccl_unit_verify_replicas(fsccl_unit_t unit);

/* A run of elements of a parameter. */
typedef struct fsccl_piece {
  uint64_t begin; /* in the order in which the parameter is stored; 0 when count is 0 */
  uint64_t count;
} fsccl_piece_t;

/* What a layout costs, in elements. */
typedef struct fsccl_layout_stats {
  size_t size;
  uint64_t elements;      /* N: of all parameters, tied ones once */
  uint64_t largest_shard; /* the most that one rank holds */
  /* W * largest_shard - N: by how much W equal shards would exceed the parameters */
  uint64_t padding;
  uint64_t padding_bound; /* no assignment of the blocks has less padding than this */
} fsccl_layout_stats_t;
#define FSCCL_LAYOUT_STATS_INIT {sizeof(fsccl_layout_stats_t), 0, 0, 0, 0}

#define FSCCL_ALL_RANKS (-1)
/*
 * Plans the layout of a unit without a communicator: what fsccl_unit_create() would do for `count`
 * parameters on `ranks` ranks (W = 1 .. 2^20). Of each parameter it reads dims, shape, tied_to and
 * the block. Deterministic; does not block or communicate; any thread. Errors:
 * FSCCL_ERR_INVALID_ARGUMENT, FSCCL_ERR_OUT_OF_MEMORY.
 *
 * pieces: NULL; or `count` elements, for `rank`; or with FSCCL_ALL_RANKS ranks * count elements,
 * rank q's piece of parameter i at [q * count + i]. A tied parameter has its owner's. stats: NULL,
 * or initialised with FSCCL_LAYOUT_STATS_INIT.
 *
 * Padding measures imbalance: it is neither stored nor moved. No assignment of blocks to ranks has
 * less of it than
 *     padding_bound = max(N, W * b * ceil(B / W), W * g * ceil(T / (g * W))) - N
 * for the worst b > 1, where B blocks have at least b elements, T together, all multiples of g:
 * some rank holds N / W elements or more, some rank ceil(B / W) of those blocks, and every rank a
 * multiple of g of their elements. With one size b of blocks that is the larger of N and W * b *
 * ceil(B / W). Blocks are the parameters' own (ragged), rows (per_param) or elements (flat).
 * Ragged: largest_shard exceeds the bound of ceil(N / W) and blocks by at most the largest block,
 * and is equal to it when each block size divides the next larger one and the shapes divide into
 * blocks.
 */
FSCCL_API fsccl_status_t fsccl_layout_plan(fsccl_layout_t layout, const fsccl_param_t* params,
                                           size_t count, int ranks, int rank, fsccl_piece_t* pieces,
                                           fsccl_layout_stats_t* stats);

#define FSCCL_NO_SHARD (-1)
/* How parameters are dealt out, and this rank's part of them. */
typedef struct fsccl_sharding {
  fsccl_layout_t layout;
  int ranks; /* shards that there are: the size of the shard_comm of such units */
  /* which of them is this rank's, 0 .. ranks - 1, or FSCCL_NO_SHARD. Several ranks may have the
   * same: replicas */
  int rank;
} fsccl_sharding_t;

/* What is dealt out as one parameter is: the parameter itself, a state of the optimizer. */
typedef struct fsccl_resharded {
  size_t param;        /* index in fsccl_reshard_config_t.params */
  fsccl_dtype_t dtype; /* of its elements, not converted */
  /* this rank's old piece: fsccl_unit_shard() of the old unit. Not looked at where there is none */
  const void* from;
  void* to; /* this rank's new piece: of the new unit. Likewise */
} fsccl_resharded_t;

typedef struct fsccl_reshard_config {
  size_t size;
  /* `count` of them: dims, shape, tied_to and the block are read, as by fsccl_layout_plan(); and
   * the name, for messages */
  const fsccl_param_t* params;
  size_t count;
  fsccl_sharding_t from, to; /* layouts and numbers of shards are the same on all ranks */
  uint64_t version;          /* what the state at `from` is of: the number of steps done, say */
  /* memory that this rank gives to the exchange; 0: 64 MiB. At least 128 bytes per rank are
   * taken */
  uint64_t limit_bytes;
  /* sizeof(fsccl_param_t) and sizeof(fsccl_resharded_t) as the caller was compiled; 0: those of
   * release 0.1 */
  size_t param_size, buffer_size;
} fsccl_reshard_config_t;
#define FSCCL_RESHARD_CONFIG_INIT               \
  {sizeof(fsccl_reshard_config_t),              \
   NULL,                                        \
   0,                                           \
   {FSCCL_LAYOUT_PER_PARAM, 0, FSCCL_NO_SHARD}, \
   {FSCCL_LAYOUT_PER_PARAM, 0, FSCCL_NO_SHARD}, \
   0,                                           \
   0,                                           \
   sizeof(fsccl_param_t),                       \
   sizeof(fsccl_resharded_t)}

/*
 * Deals parameters, and what belongs to them, out anew: from the shards that ranks of `comm` hold
 * to others, of another layout or number of ranks. So the survivors of HSDP go on without a
 * checkpoint after deaths and fsccl_comm_shrink(): each gives its shard of the old unit, and takes
 * one of a new unit made on the new communicator. (fsccl_unit_reshard() is something else.)
 * Collective over `comm`; blocking; in host memory.
 *   - buffers: `count` of them, the same parameters and dtypes in the same order on all ranks.
 *     Those of a rank must not overlap.
 *   - What is at `from` is not changed. When a rank dies meanwhile (FSCCL_ERR_PEER_DEAD; what is at
 *     `to` is undefined), shrink and call again: keep it until all ranks have come back from here,
 *     of which a barrier tells.
 *   - Each byte comes to each rank that takes it once: from its own shard, else from a rank that
 *     holds it, of the same host if there is one, copies sharing the work. It goes in rounds,
 *     through limit_bytes of memory.
 *   - Shards of one version only are combined: the newest of which the ranks hold all. Others are
 *     not read. *version (NULL: not wanted): that one. Who died amid a step may have left it done
 *     on some ranks only; docs/design.md says how none is lost.
 * Errors, of all ranks or none, that damage nothing: FSCCL_ERR_INVALID_STATE, where the ranks hold
 * all shards of no version (the text names a shard that is lost, its elements and parameter: that
 * has to come from a checkpoint); FSCCL_ERR_INVALID_ARGUMENT, where nobody takes a new shard, or an
 * argument of some rank is wrong, which that rank is told; FSCCL_ERR_MISMATCH, where ranks give
 * other parameters, layouts or buffers; FSCCL_ERR_NOT_AVAILABLE, where a buffer is memory of a GPU,
 * or blocks that are not stored in row-major order (fsccl_param_t) go between ragged and another
 * layout; FSCCL_ERR_OUT_OF_MEMORY.
 */
FSCCL_API fsccl_status_t fsccl_reshard(const fsccl_reshard_config_t* config,
                                       const fsccl_resharded_t* buffers, size_t count,
                                       fsccl_comm_t comm, uint64_t* version);

/* ----------------------------------------------------------------------------- collectives ---- */

/*
 * Buffers may be any memory of the process; blocks of a pool on this communicator (or on its
 * parent) cost least. Memory of the caller's own costs a kernel copy where the system permits
 * reading a peer's memory (process_vm_readv), and two more user copies where it does not. Buffers
 * of one call must not overlap, except in the in-place forms named below. Counts may be 0. S =
 * dtype size.
 *
 * Memory of a GPU: all buffers of a call are, on all ranks; on a rank that has none (a barrier,
 * parts of no elements) the stream, not NULL, says so. The call is in the order of `stream` and
 * returns when it is put there (by UCX, or staged through the host: when the stream has come to it
 * and the other ranks have; FSCCL_DEVICE_TRANSPORT); work must be NULL (FSCCL_ERR_NOT_AVAILABLE):
 * record an event on the stream. The first such call of a communicator is collective and blocks; it
 * uses one GPU from then on. Sums by NCCL have its order (docs/tuning.md).
 */

/* recv[r * count ...] = rank r's send[0 .. count). recv holds size * count elements. In place: send
 * == recv + rank * count * S. */
FSCCL_API fsccl_status_t fsccl_all_gather(const void* send, void* recv, size_t count,
                                          fsccl_dtype_t dtype, fsccl_comm_t comm, void* stream,
                                          fsccl_work_t* work);
/* recv[0 .. count) = op over ranks q of q's send[rank * count ...]. send holds size * count
 * elements. In place: recv == send + rank
 * * count * S. */
FSCCL_API fsccl_status_t fsccl_reduce_scatter(const void* send, void* recv, size_t count,
                                              fsccl_dtype_t dtype, fsccl_op_t op, fsccl_comm_t comm,
                                              void* stream, fsccl_work_t* work);
/* recv[0 .. count) = op over all ranks' send[0 .. count). In place: recv == send. */
FSCCL_API fsccl_status_t fsccl_all_reduce(const void* send, void* recv, size_t count,
                                          fsccl_dtype_t dtype, fsccl_op_t op, fsccl_comm_t comm,
                                          void* stream, fsccl_work_t* work);
/* buffer[0 .. count) of every rank = root's. */
FSCCL_API fsccl_status_t fsccl_broadcast(void* buffer, size_t count, fsccl_dtype_t dtype, int root,
                                         fsccl_comm_t comm, void* stream, fsccl_work_t* work);
/* Complete when every rank has entered. */
FSCCL_API fsccl_status_t fsccl_barrier(fsccl_comm_t comm, void* stream, fsccl_work_t* work);

/*
 * The v forms: parts of different sizes. counts and displacements are arrays of `size` elements, in
 * elements. counts are the same on all ranks (they are part of the fingerprint). All arrays are
 * copied before the call returns.
 */

/* recv[displacements[r] ...] = rank r's send[0 .. counts[r]). displacements: where the parts lie in
 * this rank's recv, without overlap; NULL: end to end. In place: send == recv + displacements[rank]
 * * S. */
FSCCL_API fsccl_status_t fsccl_all_gather_v(const void* send, void* recv, const size_t* counts,
                                            const size_t* displacements, fsccl_dtype_t dtype,
                                            fsccl_comm_t comm, void* stream, fsccl_work_t* work);
/* recv[0 .. counts[rank]) = op over ranks q of q's part `rank`; parts lie end to end in send. In
 * place: recv == this rank's part of send. */
FSCCL_API fsccl_status_t fsccl_reduce_scatter_v(const void* send, void* recv, const size_t* counts,
                                                fsccl_dtype_t dtype, fsccl_op_t op,
                                                fsccl_comm_t comm, void* stream,
                                                fsccl_work_t* work);
/* Each rank's own counts: recv[recv_displacements[q] ...] = rank q's send[its
 * send_displacements[rank] ... + its send_counts[rank]), of which there must be recv_counts[q]:
 * else FSCCL_ERR_MISMATCH on all ranks. No array is NULL. send and recv must not overlap. Makes its
 * plan anew for each call. */
FSCCL_API fsccl_status_t fsccl_all_to_all_v(const void* send, const size_t* send_counts,
                                            const size_t* send_displacements, void* recv,
                                            const size_t* recv_counts,
                                            const size_t* recv_displacements, fsccl_dtype_t dtype,
                                            fsccl_comm_t comm, void* stream, fsccl_work_t* work);

/*
 * With a root. The larger buffer matters at the root only and may be NULL elsewhere. A rank is done
 * when its own part is: a small operation may be over at the root of a broadcast or scatter, or at
 * the others of a gather or reduce, before everybody has entered; a disagreement is then reported
 * by a later operation.
 */

/* root's recv[0 .. count) = op over all ranks' send[0 .. count). In place at the root: recv ==
 * send. */
FSCCL_API fsccl_status_t fsccl_reduce(const void* send, void* recv, size_t count,
                                      fsccl_dtype_t dtype, fsccl_op_t op, int root,
                                      fsccl_comm_t comm, void* stream, fsccl_work_t* work);
/* root's recv[r * count ...] = rank r's send[0 .. count). In place at the root: send == recv + rank
 * * count * S. */
FSCCL_API fsccl_status_t fsccl_gather(const void* send, void* recv, size_t count,
                                      fsccl_dtype_t dtype, int root, fsccl_comm_t comm,
                                      void* stream, fsccl_work_t* work);
/* recv[0 .. count) = root's send[rank * count ...]. In place at the root: recv == send + rank *
 * count * S. */
FSCCL_API fsccl_status_t fsccl_scatter(const void* send, void* recv, size_t count,
                                       fsccl_dtype_t dtype, int root, fsccl_comm_t comm,
                                       void* stream, fsccl_work_t* work);
/* recv[q * count ...] = rank q's send[rank * count ...]. Both hold size * count elements and must
 * not overlap. */
FSCCL_API fsccl_status_t fsccl_all_to_all(const void* send, void* recv, size_t count,
                                          fsccl_dtype_t dtype, fsccl_comm_t comm, void* stream,
                                          fsccl_work_t* work);

/*
 * Messages from this rank to `peer`, another one, and back. Not collective. Those of one direction
 * between two ranks match in the order of the calls; count, dtype and tag (any number) must then
 * agree (FSCCL_ERR_MISMATCH, which ends the communicator). Directions, peers and collectives do not
 * wait for each other; calls that would wait in a ring belong in a group, or take a work. A small
 * message (FSCCL_EAGER_BYTES) is sent, and its buffer free, before it is received, up to a few of
 * them; a larger one when it has been received. The first message to a peer reserves some pages for
 * the pair.
 */
FSCCL_API fsccl_status_t fsccl_send(const void* buffer, size_t count, fsccl_dtype_t dtype, int peer,
                                    int tag, fsccl_comm_t comm, void* stream, fsccl_work_t* work);
FSCCL_API fsccl_status_t fsccl_recv(void* buffer, size_t count, fsccl_dtype_t dtype, int peer,
                                    int tag, fsccl_comm_t comm, void* stream, fsccl_work_t* work);
/* Returns FSCCL_OK when a message from `peer` has arrived that no fsccl_recv() has taken: the next
 * fsccl_recv() from `peer` receives it, whatever its tag. FSCCL_IN_PROGRESS: no message has arrived
 * yet, or a receive from `peer` is in flight. Else the communicator's error. For messages in host
 * memory. Does not block, is not collective. */
FSCCL_API fsccl_status_t fsccl_probe(int peer, fsccl_comm_t comm);
/*
 * Between start and the matching end, calls of this thread with work == NULL only submit
 * (collectives of this section; calls on units block as ever), and the end waits for all of them:
 * one thread can drive several communicators, or send and receive in a ring. Groups nest; the
 * outermost end waits. fsccl_group_end returns the first error, or FSCCL_ERR_INVALID_STATE without
 * a start. Buffers belong to the library until then. Each thread has groups of its own.
 */
FSCCL_API fsccl_status_t fsccl_group_start(void);
FSCCL_API fsccl_status_t fsccl_group_end(void);

/*
 * Fused list forms for a caller that owns its layout: one operation over `tensors` tensors, each
 * with a count and a dtype of its own, the same on all ranks (part of the fingerprint). Lists that
 * fit a slot (FSCCL_SLOT_BYTES) travel packed in one exchange; else bytes go straight between
 * blocks of pools, or through slots when any buffer of any rank lies elsewhere. The list and the
 * counts are copied before the call returns. Plans are kept by the list's counts and dtypes; a call
 * allocates a few words per tensor. A list of 0 tensors is a barrier. Buffers must not overlap,
 * except in the in-place forms; between tensors that is not looked at.
 */
typedef struct fsccl_tensor {
  void* send;
  void* recv;
  /* elements of each rank's part, `size` numbers (uneven shards, 0 allowed); broadcast:
   * counts[0] */
  const size_t* counts;
  fsccl_dtype_t dtype;
} fsccl_tensor_t;
/* recv: all ranks' parts end to end; send: this rank's part, counts[rank] elements. In place: send
 * is its part of recv. */
FSCCL_API fsccl_status_t fsccl_all_gather_list(const fsccl_tensor_t* list, size_t tensors,
                                               fsccl_comm_t comm, void* stream, fsccl_work_t* work);
/* send: a part for each rank, end to end; recv: counts[rank] elements. In place: recv is this
 * rank's part of send. */
FSCCL_API fsccl_status_t fsccl_reduce_scatter_list(const fsccl_tensor_t* list, size_t tensors,
                                                   fsccl_op_t op, fsccl_comm_t comm, void* stream,
                                                   fsccl_work_t* work);
/* recv of every rank = root's recv; send is not used. */
FSCCL_API fsccl_status_t fsccl_broadcast_list(const fsccl_tensor_t* list, size_t tensors, int root,
                                              fsccl_comm_t comm, void* stream, fsccl_work_t* work);

/* ------------------------------------------------------------------------------------ work ---- */

/*
 * Operations of one communicator complete in the order of their submission. Submitting runs until
 * the first peer that is not there yet; after that any test or wait of the process moves it on, or
 * the library's own thread. A work stays valid until its communicator is destroyed; it may be
 * tested and waited for any number of times, by any thread.
 */

/* FSCCL_OK: complete. FSCCL_IN_PROGRESS: not yet. Else the operation's error. Does not block. */
FSCCL_API fsccl_status_t fsccl_work_test(fsccl_work_t work);
/* Waits at most timeout_ms (negative: to the communicator's deadline, which is FSCCL_ERR_TIMEOUT
 * and ends the communicator). FSCCL_IN_PROGRESS when timeout_ms are over and the operation is not:
 * nothing has changed, wait again. */
FSCCL_API fsccl_status_t fsccl_work_wait(fsccl_work_t work, int64_t timeout_ms);
/* The operation's error, with fsccl_last_error() set to it; FSCCL_OK when there is none (yet). */
FSCCL_API fsccl_status_t fsccl_work_error(fsccl_work_t work);
/*
 * Calls done(context, status) once, when the operation is complete (FSCCL_OK) or its communicator
 * has failed or was aborted (that error). If the operation is over already, `done` runs in this
 * thread before this function returns (asked from inside another callback: in this thread, when
 * that one has returned). Else it runs in whichever thread completes the operation: one that waits
 * or tests, or the library's service thread, which progresses it from now on; fsccl_comm_destroy()
 * calls those that are left. So callbacks of one communicator may run at once in several threads,
 * and fsccl_work_wait() may return before a callback has: `context` must live until done was
 * called. Any number of callbacks per work. `done` must be short, must not throw and must not wait:
 * not for another thread, nor in a blocking function of this library (it may test works, submit
 * operations with a work while fewer than 64 are in flight, and abort). Destroying a communicator
 * or pool in it is FSCCL_ERR_INVALID_STATE. Any thread. Errors: those of the handle; done == NULL.
 */
FSCCL_API fsccl_status_t fsccl_work_callback(fsccl_work_t work,
                                             void (*done)(void* context, fsccl_status_t status),
                                             void* context);
/*
 * *fd: an eventfd (close-on-exec, nonblocking) that becomes readable when the operation is complete
 * or has failed, at once if it is over already; fsccl_work_test() then says which. The caller owns
 * it and closes it, at any time. The library keeps a duplicate until the operation is over. Each
 * call makes another. Progress and threads as with fsccl_work_callback(). Errors: those of the
 * handle; fd == NULL; FSCCL_ERR_LIMIT when the process has no descriptor left.
 */
FSCCL_API fsccl_status_t fsccl_work_event_fd(fsccl_work_t work, int* fd);
/* Does nothing today: a work stays valid until its communicator is destroyed. Call it when the
 * handle is no longer used. NULL is allowed. */
FSCCL_API fsccl_status_t fsccl_work_release(fsccl_work_t work);

/* --------------------------------------------------------------------------------- insight ---- */

typedef struct fsccl_counters {
  size_t size;
  uint64_t operations; /* completed on this rank */
  uint64_t bytes_read; /* of operands, by this rank's cores */
  uint64_t bytes_written;
  uint64_t kernel_copies; /* reads of a peer's private memory by the system */
  uint64_t sleeps;        /* waits that gave up their core */
} fsccl_counters_t;
#define FSCCL_COUNTERS_INIT {sizeof(fsccl_counters_t), 0, 0, 0, 0, 0}
/* What this rank has done on `comm` so far. Any thread. */
FSCCL_API fsccl_status_t fsccl_comm_counters(fsccl_comm_t comm, fsccl_counters_t* counters);

typedef struct fsccl_transport_info {
  const char* name; /* "shm", "tcp", "ucx", "nccl" */
  int available;    /* 1: this process can use it */
  const char* why;  /* why it is not available; "" when it is */
} fsccl_transport_info_t;
/* Calls visit(context, info) once for each transport that this release knows, those built in first.
 * The system is asked; `info` lives during the call. Any thread. */
FSCCL_API fsccl_status_t fsccl_transport_list(void (*visit)(void* context,
                                                            const fsccl_transport_info_t* info),
                                              void* context);

typedef struct fsccl_device_info {
  int device;      /* as this process counts (CUDA_VISIBLE_DEVICES) */
  int available;   /* 1: pools, units and collectives can use it */
  const char* why; /* why it is not available; "" when it is, and else there is nothing more */
  const char* name;
  uint64_t memory_bytes;
  int capability; /* 90 for 9.0 */
  int multiprocessors;
  int copy_engines;
  int descriptors; /* 1: its memory goes to other processes of the host as file descriptors */
  int fabric;      /* 1: and to other hosts of an NVLink domain */
  int values_64;   /* 1: streams wait for and write values of 64 bits */
  int batches;     /* 1: the driver takes copies in batches */
  int driver;      /* the CUDA that the driver is for: 13000 for 13.0 */
} fsccl_device_info_t;
/* Calls visit(context, info) once for each GPU of this process; `info` lives during the call.
 * Nothing is made on them. Without any it is FSCCL_ERR_NOT_AVAILABLE, and the text says what is
 * missing. Any thread. */
FSCCL_API fsccl_status_t fsccl_device_list(void (*visit)(void* context,
                                                         const fsccl_device_info_t* info),
                                           void* context);

/*
 * How `operation` ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "gather",
 * "scatter", "all_to_all", "send", "barrier") of `bytes` bytes is carried out on `comm`, as one
 * line of JSON:
 *   {"operation", "bytes", "ranks",
 *    "measured": {"exchange_ns", "message_ns", "sizes", "slots_ns", "slots_past_caches_ns",
 *                 "side_by_side", "read_ns" or null, "copy_ns_per_kib"},
 *    "costs_from", "machine", "transport", "path" (of bytes, if the transport has several), "link",
 *    "hosts", "ranks_per_host", "why",
 *    "candidates": [{"plan", "chunk", "memory", "predicted_us", "chosen"}],
 *    "device" (docs/tuning.md; from the first collective on memory of a GPU on)}
 *
 * `bytes`: of the larger buffer, as nccl-tests counts them, cut to whole bytes per rank. measured:
 * the costs of steps (sizes: bytes, for which slots_ns, slots_past_caches_ns and read_ns have one
 * figure each; message_ns: what a signal that is a message takes at either end), and which copies
 * through slots take pages side by side ("none", those "from_slots", "both"); costs_from:
 * "calibration" at the start of the communicator, the "tuning file", or the "table" of what is
 * typical of `link`, the class of link between the farthest two ranks. ranks_per_host: 0 where
 * hosts differ. why: of the choice, in a sentence. plan: as FSCCL_PLAN takes it (docs/tuning.md).
 * chunk: of a slot, what a round uses, 0 for all at once. memory: the candidate is for buffers in
 * "pool"s that all ranks map, for the ranks' "private" memory, or for "any". The predicted times
 * are those of an operation that all ranks enter at once. Up to two candidates are chosen: one
 * where the buffers lie in pools, one where they do not. Or "by_hosts", inside hosts and between
 * them in turn, with "stages": [{"between_hosts", "operation", "plan", "predicted_us"}].
 * "gather_codec" and "block_codecs" of an all_gather between hosts, "reduce_codecs" of a
 * reduce_scatter: what `bytes` bytes of 16-bit floats (sums: fp32) would take with such a codec and
 * without: bytes that a host receives, time, bytes of copies; whether it pays. Not collective, does
 * not communicate; any thread. json: `capacity` bytes, FSCCL_ERR_LIMIT names the number needed if
 * that is too few; 4096 suffice.
 */
FSCCL_API fsccl_status_t fsccl_explain(fsccl_comm_t comm, const char* operation, size_t bytes,
                                       char* json, size_t capacity);

typedef struct fsccl_explain_config {
  size_t size;
  int hosts, ranks_per_host;
  const char* topology; /* a file, as for fsccl_topology_describe; NULL: this machine */
  const char* tuning;   /* a tuning file; NULL: FSCCL_TUNING_FILE, if it is set */
} fsccl_explain_config_t;
#define FSCCL_EXPLAIN_CONFIG_INIT {sizeof(fsccl_explain_config_t), 1, 2, NULL, NULL}
/*
 * The same without a communicator, for ranks that need not exist (at most 65536): rank after rank
 * on the cores of each host, with the settings in force here. For several hosts it also has
 * "transport_why". The costs are those of the tuning file or typical of the topology's links, so a
 * communicator, which measures, may choose otherwise. Calls take(context, json, bytes) once; `json`
 * ends in a zero, which `bytes` does not count, and lives during the call. Reads files; does not
 * communicate; any thread.
 */
FSCCL_API fsccl_status_t
fsccl_explain_for(const fsccl_explain_config_t* config, const char* operation, size_t bytes,
                  void (*take)(void* context, const char* json, size_t bytes), void* context);

typedef enum fsccl_topology_form {
  /* text: hosts that are alike once, and what lies between cores and devices, by class of link */
  FSCCL_TOPOLOGY_TREE = 0,
  /* {"fsccl_topology": 1, "hosts": [..], "switches": [..], "links": [..]}: a file to load again */
  FSCCL_TOPOLOGY_JSON = 1,
  FSCCL_TOPOLOGY_SVG = 2 /* a picture that needs nothing else */
} fsccl_topology_form_t;
/*
 * What a machine, or a cluster, is made of: packages, memory, caches, cores, GPUs, network cards,
 * switches and the links between them. Calls take(context, text, bytes) once; `text` ends in a
 * zero, which `bytes` does not count, and lives during the call. file: NULL for this machine (asked
 * through hwloc and /sys; without hwloc only its processors are known); else a file of
 * FSCCL_TOPOLOGY_JSON's form, in which nodes may also be repeated (tests/topologies), or hwloc's
 * XML (`lstopo machine.xml`). Latencies and bandwidths are what the file or the system says, else
 * typical ones of a class of link (src/topo/connection.h says whose); nothing is measured. Does not
 * communicate; reads files; allocates; any thread. Errors: FSCCL_ERR_INVALID_ARGUMENT (names the
 * place in the file), FSCCL_ERR_SYSTEM (it cannot be read), FSCCL_ERR_NOT_AVAILABLE (XML without
 * hwloc).
 */
FSCCL_API fsccl_status_t fsccl_topology_describe(const char* file, fsccl_topology_form_t form,
                                                 void (*take)(void* context, const char* text,
                                                              size_t bytes),
                                                 void* context);
/* Likewise, what lies between two places, as text: class, latency, bandwidth and the way. A place
 * is "host", "host/device", "host/core" with a name as FSCCL_TOPOLOGY_JSON gives it, or a switch.
 * FSCCL_ERR_INVALID_ARGUMENT when there is none of that name.
 */
FSCCL_API fsccl_status_t fsccl_topology_between(const char* file, const char* from, const char* to,
                                                void (*take)(void* context, const char* text,
                                                             size_t bytes),
                                                void* context);
/* FSCCL_TOPOLOGY_JSON of this machine. json: `capacity` bytes, FSCCL_ERR_LIMIT names the number
 * needed if that is too few. Any thread. */
FSCCL_API fsccl_status_t fsccl_topology_dump(char* json, size_t capacity);

/*
 * The flight recorder is always on: each rank remembers the last FSCCL_TRACE_EVENTS things that its
 * communicators did. With FSCCL_TRACE_DIR it is a file there from the start, fsccl-JOB-RANK.ring,
 * which stays when the process ends, however that is; else it is in memory. It holds names of
 * communicators, operations, counts, times and the texts of errors; no contents and no secrets.
 */
/* Writes the recorders of this process's ranks into `directory`, in the same form.
 * FSCCL_ERR_CONFIG: a file of that name is there, or cannot be made. Any thread. */
FSCCL_API fsccl_status_t fsccl_trace_dump(const char* directory);
/*
 * Reads such a file, also one that a living or killed process wrote, as JSON:
 *   {"fsccl_recording": 1, "job", "rank", "ranks", "pid", "host", "last_look_ns", "overwritten",
 *    "torn",
 *    "communicators": [{"id", "tag", "name", "rank", "size", "lives",
 *                       "error": {"code", "peer", "text"}}],
 *    "events": [{"at_ns", "event", "communicator", "peer", "sequence", "operation", "count",
 *                "dtype", "silent_ms", "stopped", "duty"}]}
 * job, tag: the same on all ranks. at_ns, last_look_ns: since 1970, by the host's clock.
 * overwritten: older events that are gone; torn: events that were just being written. Of operations
 * that were over at once, after few looks, the last 64 of each communicator are there, with one
 * time for both events. event: "submitted" (peer: the root), "completed", "blocked" (peer: the rank
 * of the job that is waited for; only waits that slept), "failed" (the communicator's error says
 * why), "lost" and "left" (peer), "suspect" and "alive" again (peer: a rank of the job; silent_ms:
 * for how long, stopped: its host says so), "waits" and "goes_on" (a wait outside of operations;
 * peer: the rank of the job that is waited for, duty: what it has to do). Later releases may have
 * more. Calls take(context, json, bytes) once; `json` ends in a zero, which `bytes` does not count,
 * and lives during the call. The file is not trusted: FSCCL_ERR_INVALID_ARGUMENT says what is wrong
 * with it; FSCCL_ERR_SYSTEM: it cannot be read. Any thread.
 */
FSCCL_API fsccl_status_t fsccl_trace_read(
    const char* path, void (*take)(void* context, const char* json, size_t bytes), void* context);

/*
 * The numbers of this process as OpenMetrics 1.0 text: operations, bytes, waits and failures of
 * each communicator, memory of each pool, peers by state. Counters begin with their communicator or
 * pool, those of failures with the process; labels hold names, ranks and links, no contents and no
 * secrets. Calls take(context, text, bytes) once; `text` ends in a zero, which `bytes` does not
 * count, and lives during the call. FSCCL_METRICS_FILE writes the same into a file by itself
 * (docs/metrics.md). Any thread; takes no lock that an operation waits for.
 */
FSCCL_API fsccl_status_t fsccl_metrics(void (*take)(void* context, const char* text, size_t bytes),
                                       void* context);

#ifdef __cplusplus
}
#endif
#endif /* FSCCL_H */
