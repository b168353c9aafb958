/*
 * FSCCL insight: what the library knows, has done and would do. Nothing here is needed to train:
 * settings and launchers, counters and statistics, explanations of choices, layouts, topologies,
 * recordings, metrics, and forecasts of a training step.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef FSCCL_INSIGHT_H
#define FSCCL_INSIGHT_H

#include "fsccl/fsccl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* -------------------------------------------------------------------------------- settings ---- */

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

typedef struct fsccl_launch_info {
  size_t size; /* set by FSCCL_LAUNCH_INFO_INIT */
  /* "torchrun" (or whoever set RANK), "Open MPI", "MPICH", "PMIx" or "Slurm"; NULL: none */
  const char* launcher;
  int rank;
  int ranks;
  int local_rank;  /* among the ranks of this host; -1: unknown */
  int local_ranks; /* ranks of this host; 0: unknown */
  /* 1: all ranks are on this host, says the launcher or MASTER_ADDR=localhost */
  int one_host;
  /* address of rank 0's host: MASTER_ADDR, else what the launcher says; NULL: unknown */
  const char* master_address;
  /* MASTER_PORT, else one that follows from the job's name; 0: none. For the caller, such as a
   * store of PyTorch */
  int master_port;
} fsccl_launch_info_t;
#define FSCCL_LAUNCH_INFO_INIT {sizeof(fsccl_launch_info_t), NULL, -1, 0, -1, 0, 0, NULL, 0}
/*
 * Tells what the variables of a launcher say about this process; docs/clusters.md lists them.
 * Without a launcher it returns FSCCL_OK and launcher == NULL. Texts live until this thread's next
 * call of this function. Joins nothing. Any thread. FSCCL_ERR_CONFIG: the variables contradict each
 * other; the text names the one to change.
 */
FSCCL_API fsccl_status_t fsccl_launcher(fsccl_launch_info_t* info);

/* --------------------------------------------------------------------------- communicators ---- */

typedef struct fsccl_counters {
  size_t size;
  uint64_t operations; /* completed on this rank */
  uint64_t bytes_read; /* bytes of operands that this rank's cores read */
  uint64_t bytes_written;
  uint64_t kernel_copies; /* by the system, from or to a peer's private memory */
  uint64_t sleeps;        /* waits that gave up their core */
} fsccl_counters_t;
#define FSCCL_COUNTERS_INIT {sizeof(fsccl_counters_t), 0, 0, 0, 0, 0}
/* Tells what this rank has done on `comm` so far. Any thread. */
FSCCL_API fsccl_status_t fsccl_comm_counters(fsccl_comm_t comm, fsccl_counters_t* counters);

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
 * Names the call site of the operations that this rank issues on `comm` next, until the next call:
 * `site` becomes part of their fingerprints. 0, the value at first: none. Ranks whose operations
 * have different sites get FSCCL_ERR_MISMATCH before the result of an operation of any size can be
 * read, with both sites in the text, each as "site 0x" and 16 hexadecimal digits. So a program
 * whose calls may come in another order on another rank gives each call a number of its own, and
 * each repetition in a loop as well. Messages (fsccl_send) have no site, and what NCCL moves on
 * GPUs is not compared. It also applies to operations of pools and units made on `comm`. Does not
 * block and sends nothing. Call it in the thread that issues the operations. Errors: those of the
 * handle.
 */
FSCCL_API fsccl_status_t fsccl_comm_set_site(fsccl_comm_t comm, uint64_t site);
/*
 * Tells what this rank knows of the life of `rank` of `comm`, by heartbeats of the library's own
 * thread: a rank that computes for long is alive. Does not block and sends nothing. A suspect ends
 * no operation by itself. Any thread, also after `comm` has failed.
 */
FSCCL_API fsccl_status_t fsccl_comm_peer_state(fsccl_comm_t comm, int rank,
                                               fsccl_peer_state_t* state);

/* Returns FSCCL_OK when a message from `peer` has arrived that no fsccl_recv() has taken: the next
 * fsccl_recv() from `peer` receives it, whatever its tag. Returns FSCCL_IN_PROGRESS when no message
 * has arrived yet or a receive is in flight, FSCCL_ERR_PEER_DEAD when `peer` has left and none can
 * arrive, else the communicator's error. In host memory only. Does not block; not collective. */
FSCCL_API fsccl_status_t fsccl_probe(int peer, fsccl_comm_t comm);
/* Returns the operation's error, and sets fsccl_last_error() to it; FSCCL_OK when there is none
 * (yet). Any thread. */
FSCCL_API fsccl_status_t fsccl_work_error(fsccl_work_t work);

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

/* ----------------------------------------------------------------------------------- pools ---- */

typedef struct fsccl_pool_stats_s {
  size_t size;
  uint64_t limit_bytes;
  /* physical memory this rank holds for the pool: its own regions and, on the rank that hosts it,
   * the shared one */
  uint64_t reserved_bytes;
  /* the part of it that is shared slots, one copy per host (0 on ranks that do not host them) */
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
  /* slots that the plan placed, and others; those of a step are added at its end */
  uint64_t plan_hits, plan_misses;
  uint64_t allocations, frees;
  uint64_t growths; /* times memory was asked of the system */
  uint64_t steps;   /* fsccl_pool_step() calls */
  /* memory returned to the system so far: by fsccl_pool_trim(), surplus of a plan, and free bytes
   * in steps that the pool did not know */
  uint64_t given_back_bytes;
} fsccl_pool_stats_t;
#define FSCCL_POOL_STATS_INIT \
  {sizeof(fsccl_pool_stats_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
/* Tells what the pool holds and has done so far. Any thread. */
FSCCL_API fsccl_status_t fsccl_pool_stats(fsccl_pool_t pool, fsccl_pool_stats_t* stats);

/* Gives the unused memory that lies above all blocks back to the system; slots keep theirs.
 * *released: bytes. Not collective. On a GPU it waits for what streams have been given so far, and
 * gives whole segments back. Any thread. */
FSCCL_API fsccl_status_t fsccl_pool_trim(fsccl_pool_t pool, uint64_t* released);

/* The memory of one owner in a pool. */
typedef struct fsccl_pool_owner {
  size_t size;
  const char* kind;    /* "parameters", "gradients", "shards", "block", "import", "codec" */
  const char* owner;   /* the unit's name; NULL: no unit's */
  const void* stream;  /* the stream of blocks on a GPU */
  uint64_t live_bytes; /* now */
  uint64_t peak_bytes; /* the most at once */
  uint64_t allocations, frees;
  uint64_t allocated_bytes; /* in all */
} fsccl_pool_owner_t;
/* Calls visit(context, use) once for each kind, unit and stream that ever had memory of the pool.
 * The entry lives during the call, which must not call functions of the pool. Any thread. */
FSCCL_API fsccl_status_t fsccl_pool_owners(
    fsccl_pool_t pool, void (*visit)(void* context, const fsccl_pool_owner_t* use), void* context);

/*
 * Writes what the pool holds, and its last events (FSCCL_POOL_HISTORY of them), to `path`, in the
 * schema of PyTorch's memory snapshots: pytorch.org/memory_viz and torch/cuda/_memory_viz.py read
 * it. A path that ends in .pickle is written as pickle (protocol 2), any other as JSON, which
 * `fsccl-trace memory` makes a page of. Addresses are this process's. A file that is there is
 * replaced as a whole; a character device and a FIFO that is read are written to. Any thread.
 * FSCCL_ERR_SYSTEM: it cannot be written.
 */
FSCCL_API fsccl_status_t fsccl_pool_snapshot(fsccl_pool_t pool, const char* path);

/* ----------------------------------------------------------------------------------- units ---- */

/* Counts of a unit's codecs so far, on this rank. They are zero on a rank that codes nothing. With
 * FSCCL_CODEC_EVERYWHERE each rank counts as a host, and so it does in memory of a GPU. */
typedef struct fsccl_codec_report {
  size_t size;
  uint64_t gathers; /* gathers that the codec could code: coded + plain + declined */
  uint64_t coded;   /* this rank's part was sent with the codec */
  /* this rank's part was sent without it: no copy, too large differences, or a wrong copy */
  uint64_t plain;
  uint64_t declined; /* the codec was off, because it costs more time than it saves */
  /* gathers counted in `plain` in which a receiver's copy, or what it received, was wrong, and this
   * rank's part was sent again */
  uint64_t mended;
  /* bytes of this rank's part to each other host, without the codec and with it; declined
   * gathers do not count */
  uint64_t plain_bytes, sent_bytes;
  /* memory of the pool: copies of this unit, and the room that all units of a lane share */
  uint64_t state_bytes;
  /* predicted microseconds of a gather without and with the codec, from measured times; 0: nothing
   * was measured yet */
  double plain_us, coded_us;
  int declines; /* 1: the codec is off at present, because it costs more time than it saves */
  /* Block codecs: blocks that this rank encoded; those of them sent without the codec; those whose
   * error was measured; measured ones beyond the kind's bound (a defect) */
  uint64_t blocks, exact_blocks, audited_blocks, beyond_bound;
  double max_error; /* the largest measured error of a block that was sent with the codec */
  double bound;     /* largest error that the kind allows */
  /* reduce_codec: reductions (by_parameter: of each gradient); bytes of this rank's sums for other
   * hosts, without and with it; memory of the pool for errors, and that which units share */
  uint64_t reductions, reduce_plain_bytes, reduce_sent_bytes, reduce_state_bytes;
  /* names, as "int8" or that of a fsccl_block_codec_t, until the unit is destroyed; NULL: none */
  const char *gather_codec, *reduce_codec;
} fsccl_codec_report_t;
/* clang-format off */
#define FSCCL_CODEC_REPORT_INIT                                                               \
  {sizeof(fsccl_codec_report_t), 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0, 0, 0, 0, 0, 0.0, 0.0, 0, \
   0, 0, 0, NULL, NULL}
/* clang-format on */
/* Does not block or communicate; any thread. FSCCL_ERR_INVALID_STATE: the unit was made without a
 * codec. */
FSCCL_API fsccl_status_t fsccl_unit_codec(fsccl_unit_t unit, fsccl_codec_report_t* report);

/* Compares the shards over the replicas, by a 64-bit hash of each. FSCCL_OK, or FSCCL_ERR_MISMATCH,
 * on every rank of every replica alike, with the first parameter that differs, the shard and the
 * replica in the text. Neither communicator is damaged: go on, or make the replicas equal with
 * fsccl_unit_broadcast_state(). Collective over shard_comm and replicate_comm; blocking; for a
 * check now and then: it reads all shards and allocates. FSCCL_ERR_INVALID_STATE: the unit has no
 * replicate_comm, or an operation of it is in flight. */
FSCCL_API fsccl_status_t fsccl_unit_verify_replicas(fsccl_unit_t unit);

/* A run of elements of a parameter. */
typedef struct fsccl_piece {
  uint64_t begin; /* in the order in which the parameter is stored; 0 when count is 0 */
  uint64_t count;
} fsccl_piece_t;

/* The cost of a layout, in elements. */
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
 * parameters on `ranks` ranks (W = 1 .. 2^20). It reads dims, shape, tied_to and the block of each
 * parameter. Deterministic; does not block or communicate; any thread. Errors:
 * FSCCL_ERR_INVALID_ARGUMENT, FSCCL_ERR_OUT_OF_MEMORY.
 *
 * pieces: NULL; or `count` elements, for `rank`; or with FSCCL_ALL_RANKS ranks * count elements,
 * rank q's piece of parameter i at [q * count + i]. A tied parameter has the piece of its owner.
 * stats: NULL, or initialised with FSCCL_LAYOUT_STATS_INIT.
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

/* --------------------------------------------------------------------------------- choices ---- */

/*
 * Tells how `operation` ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce",
 * "gather", "scatter", "all_to_all", "send", "barrier") of `bytes` bytes is carried out on `comm`,
 * as one line of JSON, which docs/api/insight.md describes. `bytes` are those of the larger buffer,
 * as nccl-tests counts them. `json` has `capacity` bytes, of which 4096 suffice; FSCCL_ERR_LIMIT
 * names the number needed. Not collective; does not communicate; any thread.
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
 * Tells the same without a communicator, for ranks that need not exist (at most 65536): rank after
 * rank on the cores of each host, with the settings in force here. For several hosts it also has
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
  FSCCL_TOPOLOGY_JSON = 1
} fsccl_topology_form_t;
/*
 * Tells what a machine, or a cluster, is made of: packages, memory, caches, cores, GPUs, network
 * cards, switches and the links between them. Calls take(context, text, bytes) once; `text` ends in
 * a zero, which `bytes` does not count, and lives during the call. file: NULL for this machine
 * (asked through hwloc and /sys; without hwloc only its processors are known); else a file of
 * FSCCL_TOPOLOGY_JSON's form, in which vertices may also be repeated (tests/topologies), or hwloc's
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
/* Tells what lies between two places, as text: class, latency, bandwidth and the way. A place
 * is "host", "host/device", "host/core" with a name as FSCCL_TOPOLOGY_JSON gives it, or a switch.
 * FSCCL_ERR_INVALID_ARGUMENT when there is none of that name.
 */
FSCCL_API fsccl_status_t fsccl_topology_between(const char* file, const char* from, const char* to,
                                                void (*take)(void* context, const char* text,
                                                             size_t bytes),
                                                void* context);
/* Writes FSCCL_TOPOLOGY_JSON of this machine. json: `capacity` bytes, FSCCL_ERR_LIMIT names the
 * number needed if that is too few. Any thread. */
FSCCL_API fsccl_status_t fsccl_topology_dump(char* json, size_t capacity);

/* ------------------------------------------------------------------------------ recordings ---- */

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
 * Reads such a file, also one that a living or killed process wrote, as JSON, which
 * docs/api/insight.md describes. Calls take(context, json, bytes) once; `json` ends in a zero,
 * which `bytes` does not count, and lives during the call. The file is not trusted:
 * FSCCL_ERR_INVALID_ARGUMENT says what is wrong with it. FSCCL_ERR_SYSTEM: it cannot be read. Any
 * thread.
 */
FSCCL_API fsccl_status_t fsccl_trace_read(
    const char* path, void (*take)(void* context, const char* json, size_t bytes), void* context);

/*
 * Gives the numbers of this process as OpenMetrics 1.0 text: operations, bytes, waits and failures
 * of each communicator, memory of each pool, peers by state. Counters begin with their communicator
 * or pool, those of failures with the process; labels hold names, ranks and links, no contents and
 * no secrets. Calls take(context, text, bytes) once; `text` ends in a zero, which `bytes` does not
 * count, and lives during the call. FSCCL_METRICS_FILE writes the same into a file by itself
 * (docs/metrics.md). Any thread; takes no lock that an operation waits for.
 */
FSCCL_API fsccl_status_t fsccl_metrics(void (*take)(void* context, const char* text, size_t bytes),
                                       void* context);

/* ------------------------------------------------------------------------------- forecasts ---- */

/*
 * Forecasts the memory and the time of a sharded training step from the plans that would run: slots
 * by the planner of pools, gathers and reductions by the builders of plans and their cost model,
 * and two streams, of computation and of communication, as events. `configuration` is JSON:
 *
 * - "model": as perf/models, an object. A parameter without a gradient is [name, shape, "frozen"].
 *   A unit may also have, for a token, "forward_flops", "forward_flops_per_context",
 *   "activation_bytes", "checkpoint_bytes" and "loss_bytes", which fsccl_torch.export_model()
 *   writes. A key that a unit lacks is estimated by the rules of src/forecast/estimate.h.
 * - "machine": "name", "device" (gpu, cpu), "ranks_per_host", "cores_per_host" (where ranks share
 *   cores), "memory_bytes" and "context_bytes" of a rank, or "host_memory_bytes" that the ranks of
 *   a host share, "memory_gb_per_s", "tflops" (an object by type, of a rank), "efficiency" (the
 *   part of it that passes reach), "carrier" (plans, nccl), "within" (one way of a rank) and
 *   "between" (one way of a host), each with "link", "gb_per_s" and "ns", "topology" (a file, or
 *   "here"), and "measured" (as fsccl_explain() has it, and as docs/api/insight.md adds to it).
 * - The step: "ranks", "batch" (sequences of a rank), "sequence", "accumulate" (micro-batches),
 *   "shard_over" (ranks that share shards; 0: all; "host": a host's), "layout" (per_param, flat,
 *   ragged), "shard_type", "wire", "reduce", "gradient_type" (fp32, bf16, fp16), "compute" (key of
 *   "tflops"), "optimizer" (adam, momentum, sgd, none), "optimizer_bytes" (of an element),
 *   "keep_bytes", "prefetch", "by_parameter", "checkpoint" (none, selective, full), "loss" (fp32,
 *   fused), "codec" (delta, int8, fp8, mxfp8) or "codec_ratio", "codec_gb_per_s",
 *   "memory_limit_bytes", "experts_per_token".
 * - "calibration": a step that was measured on this machine with this model: "configuration" (what
 *   differs), "step_s" or "tokens_per_s_per_rank", "spread" (0.1), "source".
 * - "measured_communication_s": of a step without accumulation, as `fsccl-perf step` measures it.
 * - "search", "what_if", "scaling", "startup", "timeline": true for these parts; "system_call_us":
 *   processor time of a call of the system, for the start (3.2 on one host, 5.6 over TCP).
 *
 * The answer has memory by owner, the step's time with an interval, exposed and hidden
 * communication by unit, bytes by class of link, and what is not known; units are in the names
 * (_bytes, _s, _ms, _gb_per_s). A ranked search is made when the setup does not fit, too. Times are
 * of full hosts that are alike. Nothing is made for each rank: 100,000 ranks take as long as 8.
 *
 * Calls take(context, json, bytes) once; `json` ends in a zero, which `bytes` does not count, and
 * lives during the call. Reads a topology file; needs no communicator; blocks while it computes
 * (milliseconds; a search up to some seconds); any thread. FSCCL_ERR_INVALID_ARGUMENT says what is
 * wrong with which key and what to do.
 */
FSCCL_API fsccl_status_t fsccl_forecast(const char* configuration,
                                        void (*take)(void* context, const char* json, size_t bytes),
                                        void* context);

#ifdef __cplusplus
}
#endif
#endif /* FSCCL_INSIGHT_H */
